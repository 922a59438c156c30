//! What a checkpoint says of its caches, which an engine looks at from some version on.

use cacheplan_planner::ModelCaches;
use cacheplan_planner::engines::Version;
use serde_json::Value;

use super::Question;

/// The first versions that look at what each tool wrote.
#[derive(Clone, Copy)]
pub(super) struct Reads {
    pub(super) modelopt: Version,
    /// llm-compressor, `kv_cache_scheme`.
    pub(super) compressor: Version,
}

/// Older versions keep what the model runs in.
pub(super) fn settle(question: &mut Question, model: &ModelCaches, reads: Reads) {
    if is_taken(question, model, reads) == Some(false) {
        let own = if model.info().dtype.name() == "f32" { "bf16" } else { model.info().dtype.name() };
        question.default_of("dtypes.kv", format!("\"{own}\""));
    }
}

/// Whether this version takes it; none where the checkpoint says nothing of caches.
pub(super) fn is_taken(question: &Question, model: &ModelCaches, reads: Reads) -> Option<bool> {
    let section = model.model()?.config.get("quantization_config")?;
    let stated = |key: &str| section.get(key).is_some_and(|value| !value.is_null());
    let by_modelopt =
        section.get("quant_method").and_then(Value::as_str).is_some_and(|name| name.starts_with("modelopt"));
    let since = if by_modelopt { reads.modelopt } else { reads.compressor };
    let says = stated("kv_cache_scheme") || stated("kv_cache_quant_algo");
    says.then_some(question.engine.version >= since)
}
