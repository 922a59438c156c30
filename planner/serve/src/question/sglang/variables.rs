//! Variables that change what caches have, what starts or what weights take, and are not planned (`environ.py` of 0.5.23).

use super::super::rules::{Case, lists};
use super::states;
use crate::error::ServeError;

const OFF: &str = "0 false no n";
const ON: &str = "1 true yes y";

/// A variable, the words that say what it says where nobody states it, the commands of which it counts, and why it is not planned.
struct Variable {
    name: &'static str,
    usual: &'static str,
    counts: fn(&Case<'_>) -> bool,
    why: &'static str,
}

const fn row(name: &'static str, usual: &'static str, counts: fn(&Case<'_>) -> bool, why: &'static str) -> Variable {
    Variable { name, usual, counts, why }
}

const CODE: &str = "code that is not SGLang's own was not read";
const ENTRIES: &str = "how entries lie in pools otherwise was not read";
const WEIGHTS: &str =
    "it changes what weights take; state that with --weights, or the bytes of caches with --cache-bytes";

const VARIABLES: &[Variable] = &[
    row("SGLANG_EXTERNAL_MODEL_PACKAGE", "", any, CODE),
    row("SGLANG_PLUGINS", "", any, CODE),
    row("SGLANG_PLATFORM", "", any, CODE),
    row("SGLANG_DISABLED_MODEL_ARCHS", "", any, "which models it then runs was not read"),
    row("SGLANG_RUST_SERVER", OFF, any, "which flags its server in Rust takes was not read"),
    row(
        "SGLANG_ENABLE_POST_CAPTURE_KV_SIZING",
        OFF,
        by_share,
        "what graphs leave for caches is known on the GPU alone",
    ),
    row(
        "SGLANG_SWA_EVICTION_INTERVAL",
        "128",
        states::sizes_windows_by_requests,
        "windows that are let go of at other distances were not read",
    ),
    row("SGLANG_DSV4_COMPRESS_STATE_DTYPE", "float32 fp32", is_v4, ENTRIES),
    row("SGLANG_OPT_USE_ONLINE_COMPRESS", OFF, is_v4, ENTRIES),
    row("SGLANG_DSV4_KV_LAYOUT", "v4", |case| case.model_type() == "deepseek_v4", ENTRIES),
    row("SGLANG_DSV4_KV_LAYOUT", "", |case| case.model_type().starts_with("deepseek_v41"), ENTRIES),
    row("SGLANG_DSV4_COMPRESSED_KV_LAYOUT", "auto", is_v4, ENTRIES),
    row("SGLANG_HACK_FLASHMLA_BACKEND", "auto", |case| is_v4(case) && is_amd(case), ENTRIES),
    row("SGLANG_OPT_MINIMAX_M3_FP8_INDEX_CACHE", ON, |case| case.model_type().starts_with("minimax_m3"), ENTRIES),
    row("SGLANG_AITER_KV_CACHE_LAYOUT", "nhd", is_amd, ENTRIES),
    row("SGLANG_USE_AITER_UNIFIED_ATTN", OFF, is_amd, ENTRIES),
    row(
        "SGLANG_DISAGG_STAGING_BUFFER",
        OFF,
        |case| case.is_stated(super::ROLE),
        "buffers on the GPU for what is handed over were not read",
    ),
    row("SGLANG_SHARED_EXPERT_TP1", OFF, weighs, WEIGHTS),
    row("SGLANG_ENABLE_EMBED_REPLICATION", OFF, weighs, WEIGHTS),
    row("SGLANG_INT4_WEIGHT", OFF, weighs, WEIGHTS),
    row("SGLANG_NVFP4_CKPT_FP8_GEMM_IN_ATTN", OFF, weighs, WEIGHTS),
    row("SGLANG_NVFP4_CKPT_FP8_NEXTN_MOE", OFF, weighs, WEIGHTS),
    row("SGLANG_DSV4_FP4_DEQUANT", OFF, |case| is_v4(case) && weighs(case), WEIGHTS),
];

/// Refuses the first that says something else than where nobody states it.
pub(super) fn look(case: &Case<'_>) -> Result<(), ServeError> {
    let says = |variable: &&Variable| {
        let said = case.question.env.get(variable.name).map(|value| value.trim().to_lowercase());
        said.is_some_and(|said| !said.is_empty() && !lists(variable.usual, &said)) && (variable.counts)(case)
    };
    match VARIABLES.iter().find(says) {
        Some(Variable { name, why, .. }) => Err(ServeError::unread(name, *why, [])),
        None => Ok(()),
    }
}

const fn any(_: &Case<'_>) -> bool {
    true
}

fn is_v4(case: &Case<'_>) -> bool {
    case.model_type().starts_with("deepseek_v4")
}

fn is_amd(case: &Case<'_>) -> bool {
    case.question.is_on_amd()
}

fn by_share(case: &Case<'_>) -> bool {
    !case.question.is_stated("engine.cache_bytes")
}

fn weighs(case: &Case<'_>) -> bool {
    by_share(case) && !case.question.is_stated("memory.weights")
}
