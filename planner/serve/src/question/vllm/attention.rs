//! What `--attention-config` says: kernels by their names, and what they do beside caches.

use std::ops::Range;

use cacheplan_planner::engines::{Version, vllm};
use serde_json::Value;

use super::super::Question;
use super::is_on;
use crate::error::ServeError;
use crate::remedy::Remedy;

pub(super) const FLAG: &str = "--attention-config";
pub(super) const NAMED_BY: &str = "--attention-backend";
/// Read in 0.33.0, and not in 0.11.0: no variable names kernels.
const WITHOUT_VARIABLE: Version = Version(0, 33, 0);
/// The key that `--attention-backend` is.
const BACKEND: &str = "backend";
/// Keys of 0.20.1 to 0.33.0 on which no cache depends.
const BESIDE_CACHES: [&str; 20] = [
    "flex_attn_kv_block_size",
    "use_trtllm_attention",
    "flash_attn_version",
    "use_prefill_decode_attention",
    "flash_attn_max_num_splits_for_cuda_graph",
    "tq_max_kv_splits_for_cuda_graph",
    "use_cudnn_prefill",
    "disable_flashinfer_prefill",
    "use_trtllm_ragged_deepseek_prefill",
    "disable_flashinfer_q_quantization",
    "mla_prefill_backend",
    "use_prefill_query_quantization",
    "use_non_causal",
    "sparse_mla_force_mqa",
    "flex_attn_block_m",
    "flex_attn_block_n",
    "flex_attn_q_block_size",
    "trtllm_ragged_backend",
    "tokenspeed_mla_min_split_kv",
    "sparse_mla_prefill_workspace_factor",
];
/// Read in 0.20.1 to 0.27.1, and not in 0.28.0: an index in 4 bits has the room of one in 8.
const NARROW_INDEX: &str = "use_fp4_indexer_cache";
const NARROW_IN_WIDE_ROOM: Range<Version> = Version(0, 20, 0)..Version(0, 28, 0);

/// Kernels read blocks of so many tokens and multiples of that.
pub(super) const READ: u64 = 16;
/// Read in 0.33.0 alone: what each kernel takes.
const LISTED: Version = Version(0, 33, 0);
/// Its parser takes any block, as it did not in 0.17.0.
const ANY_BLOCK: Version = Version(0, 18, 0);

/// Refuses what was not read.
pub(super) fn settle(question: &Question) -> Result<(), ServeError> {
    let config = question.object(FLAG)?.unwrap_or_default();
    let is_read = |key: &&String| match key.as_str() {
        BACKEND => true,
        NARROW_INDEX => NARROW_IN_WIDE_ROOM.contains(&question.engine.version),
        key => BESIDE_CACHES.contains(&key),
    };
    let Some(unread) = config.keys().find(|key| !is_read(key)) else { return Ok(()) };
    let why = format!("what its key `{unread}` does to caches was not read");
    Err(ServeError::NotHandled { flag: FLAG.into(), why, remedies: vec![Remedy::Remove(FLAG)] })
}

/// Blocks of the kernels that a command names, where it states none and they read others than those that are chosen.
pub(super) fn named_block(question: &mut Question) {
    let block = named(question).and_then(|name| vllm::dense_block(&name)).filter(|block| *block > READ);
    if let Some(block) = block.filter(|_| question.engine.version >= LISTED) {
        question.default_of("engine.block_size", block);
    }
}

/// A block that no kernel reads (`get_supported_kernel_block_sizes`), where they were not read one by one; before, the parser had a list of them.
pub(super) fn block(question: &Question) -> Result<(), ServeError> {
    const FLAG: &str = "--block-size";
    let Some(block) = question.count(FLAG).filter(|block| !block.is_multiple_of(READ)) else { return Ok(()) };
    if !(ANY_BLOCK..LISTED).contains(&question.engine.version) {
        return Ok(());
    }
    let said = format!(
        "No valid attention backend found: block_size not supported ({block}); kernels read multiples of {READ}"
    );
    let fitting = block.checked_next_multiple_of(READ).unwrap_or(READ);
    Err(question.refused(said, [Remedy::Set(FLAG, fitting.to_string()), Remedy::Remove(FLAG)]))
}

/// Whether AMD's own kernels of latents are turned on.
pub(super) fn aiter(question: &Question) -> bool {
    is_on(question, "VLLM_ROCM_USE_AITER") == Some(true) && is_on(question, "VLLM_ROCM_USE_AITER_MLA") != Some(false)
}

/// The kernels that the command names, in capitals, unless it also says what they are to be like.
pub(super) fn checked(question: &Question) -> Option<String> {
    const LIKE: [&str; 3] = ["flash_attn_version", "use_trtllm_attention", "use_non_causal"];
    let config = question.object(FLAG).ok().flatten().unwrap_or_default();
    named(question).filter(|_| !LIKE.iter().any(|key| config.contains_key(*key)))
}

/// The kernels that the command names, in capitals.
pub(super) fn named(question: &Question) -> Option<String> {
    let stated = question.value(NAMED_BY).map(str::to_owned);
    let stated = stated.or_else(|| backend(question));
    let by_variable =
        || question.env.get("VLLM_ATTENTION_BACKEND").filter(|_| question.engine.version < WITHOUT_VARIABLE);
    stated.or_else(|| by_variable().cloned()).map(|name| name.to_uppercase())
}

/// Those that `--attention-config` names.
pub(super) fn backend(question: &Question) -> Option<String> {
    let config = question.object(FLAG).ok()??;
    config.get(BACKEND).and_then(Value::as_str).map(str::to_uppercase)
}
