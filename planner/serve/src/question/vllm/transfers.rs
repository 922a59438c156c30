//! What vLLM refuses of connectors, which move caches to other servers and to the host, and of those that move what encoders give.

use std::ops::Range;

use cacheplan_handlers::Kind;
use cacheplan_planner::ModelCaches;
use cacheplan_planner::engines::Version;
use serde_json::Value;

use super::super::rules::{Case, Rule, lists, since, takes_more_than_text, within};
use super::super::{Question, connectors, of_config};
use crate::error::ServeError;
use crate::remedy::Remedy;

const READ: Version = Version(0, 33, 0);
/// Read in 0.22.0 to 0.24.0 and 0.33.0.
const EXPANDS: Version = Version(0, 22, 0);
/// Read in 0.22.0 and 0.23.0, and not in 0.24.0.
const CUTS_NO_PROMPTS: Range<Version> = Version(0, 22, 0)..Version(0, 24, 0);

const TRANSFER: &str = "--kv-transfer-config";
const OFFLOADING: &str = "--kv-offloading-size";
const ENCODED: &str = "--ec-transfer-config";
const ALLOCATOR: &str = "PYTORCH_CUDA_ALLOC_CONF";
const SLEEPS: &str = "--enable-sleep-mode";
const MANAGER: &str = "--disable-hybrid-kv-cache-manager";
const CONTEXT: &str = "--decode-context-parallel-size";
/// What divides the blocks that a connector of NIXL moves.
const DIVIDES: [&str; 2] = ["--tensor-parallel-size", "--prefill-context-parallel-size"];

/// Connectors whose blocks may not move (`supports_sleep_mode`).
const AWAKE: &str = "MooncakeStoreConnector MoRIIOConnector NixlPushConnector";

pub(super) const RULES: &[Rule] = &[
    since(EXPANDS, &[TRANSFER, OFFLOADING], |case| {
        let name = connector(case)?;
        let expands = case.question.env.get(ALLOCATOR)?.contains("expandable_segments:True");
        let beside = case.is_on("--enable-cumem-allocator") || case.is_on(SLEEPS);
        (expands && !beside).then(|| {
            format!(
                "KV connector {name} is incompatible with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True unless enable_cumem_allocator is also enabled."
            )
        })
    }),
    within(CUTS_NO_PROMPTS, &[TRANSFER], |case| {
        let is_it = connector(case)? == "ExampleHiddenStatesConnector" && super::cuts_prompts(case.question);
        is_it.then(|| {
            "ExampleHiddenStatesConnector does not support chunked prefill. Please disable chunked prefill (--no-enable-chunked-prefill)."
                .into()
        })
    }),
    since(READ, &[TRANSFER, SLEEPS], |case| {
        let name = connector(case).filter(|_| case.is_on(SLEEPS))?;
        let stays = connectors::names(case.question).ok()?.iter().any(|name| lists(AWAKE, name));
        stays.then(|| format!("{name} does not support sleep mode."))
    }),
    since(READ, &[TRANSFER, MANAGER], |case| {
        // Of one kind of layers there is no more than one group, but the connector is asked all the same.
        let is_kept = case.question.flag(MANAGER).is_some_and(|setting| !setting.on);
        let names = connectors::names(case.question).ok()?;
        let name = names
            .iter()
            .find(|name| connectors::knows_no_groups(case.question.engine.version, name))
            .filter(|_| is_kept)?;
        Some(format!(
            "Connector {name} does not support HMA but HMA is enabled. Please set `--disable-hybrid-kv-cache-manager`."
        ))
    }),
    since(READ, &[MANAGER], |case| {
        const KEEPS: &str = "VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE";
        let is_kept = case.question.flag(MANAGER).is_some_and(|setting| !setting.on);
        let in_chunks = of_config(case.model, "attention_chunk_size").is_some();
        let is_off = case.question.env.get(KEEPS).is_some_and(|value| value.trim() == "0");
        (is_kept && in_chunks && is_off).then(|| {
            "Hybrid KV cache manager was explicitly enabled but is not supported in this configuration. Consider omitting the --enable-hybrid-kv-cache-manager flag to let vLLM decide automatically."
                .into()
        })
    }),
    since(READ, &[TRANSFER, CONTEXT], |case| {
        let by_nixl = connectors::names(case.question).ok()?.iter().any(|name| name == "NixlConnector");
        let (context, ranks) = (case.size(CONTEXT), DIVIDES.map(|flag| case.size(flag)).into_iter().max()?);
        match by_nixl && context > 1 {
            true if context != ranks => Some(format!(
                "decode_context_parallel_size={context} must be 1 or equal to the NIXL transfer parallel size={ranks}."
            )),
            true if !case.keeps(&Kind::MlaPaged) => {
                Some("PD with decode_context_parallel_size > 1 is only supported for MLA models.".into())
            }
            _ => None,
        }
    }),
    since(READ, &[TRANSFER], |case| {
        let config = case.object(TRANSFER);
        let offloads = connector(case)? == "OffloadingConnector" && !case.is_stated(OFFLOADING);
        let bytes = config.get("kv_connector_extra_config").and_then(|extra| extra.get("cpu_bytes_to_use"));
        let is_none = bytes.is_none_or(|bytes| bytes.is_null() || bytes.as_f64() == Some(0.0));
        (offloads && is_none).then(|| "cpu_bytes_to_use must be specified in kv_connector_extra_config".into())
    }),
    since(READ, &[ENCODED], |case| {
        (encodes_alone(case.question) && !takes_more_than_text(case.model))
            .then(|| "An EC producer-only instance requires a multimodal model.".into())
    }),
];

/// An instance that encodes for others, and has no caches.
pub(super) fn refuse_encoders(question: &Question, model: &ModelCaches) -> Result<(), ServeError> {
    if question.engine.version < READ || !encodes_alone(question) || !takes_more_than_text(model) {
        return Ok(());
    }
    Err(ServeError::unread(ENCODED, "an encoder alone has no caches", [Remedy::Remove(ENCODED)]))
}

fn encodes_alone(question: &Question) -> bool {
    let Ok(Some(config)) = question.object(ENCODED) else { return false };
    let says = |key: &str| config.get(key).and_then(Value::as_str);
    says("ec_connector").is_some() && says("ec_role") == Some("ec_producer")
}

/// The connector that a command names, several behind one as that one.
fn connector(case: &Case<'_>) -> Option<String> {
    match case.object(TRANSFER).get("kv_connector").and_then(Value::as_str) {
        Some(name) => Some(name.to_owned()),
        None => connectors::names(case.question).ok()?.pop(),
    }
}
