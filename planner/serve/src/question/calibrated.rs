//! What a checkpoint says of its caches, which an engine looks at from some version on.

use std::ops::Range;

use cacheplan_planner::ModelCaches;
use cacheplan_planner::engines::Version;
use serde_json::Value;

use super::Question;

/// The first versions that look at what each tool wrote.
pub(super) struct Reads {
    pub(super) modelopt: Version,
    /// llm-compressor, `kv_cache_scheme`.
    pub(super) compressor: Version,
    /// Versions in which the latter stands above `--kv-cache-dtype`.
    pub(super) overrides: Range<Version>,
}

/// Older versions keep what the model runs in.
pub(super) fn settle(question: &mut Question, model: &ModelCaches, reads: &Reads) {
    const FLAG: &str = "--kv-cache-dtype";
    let overrides = !by_modelopt(model) && reads.overrides.contains(&question.engine.version);
    if overrides && question.flag(FLAG).is_some() && is_taken(question, model, reads) == Some(true) {
        question.stated.retain(|stated| stated.key != "dtypes.kv");
        let version = question.engine.version_name();
        question.notes.push(format!("{version} takes the checkpoint's `kv_cache_scheme` whatever {FLAG} says"));
    }
    if is_taken(question, model, reads) == Some(false) {
        let own = if model.info().dtype.name() == "f32" { "bf16" } else { model.info().dtype.name() };
        question.default_of("dtypes.kv", format!("\"{own}\""));
    }
}

/// Whether this version takes it; none where the checkpoint says nothing of caches.
pub(super) fn is_taken(question: &Question, model: &ModelCaches, reads: &Reads) -> Option<bool> {
    let section = section(model)?;
    let inner = section.get("quantization");
    let stated = |key: &str| {
        [Some(section), inner].into_iter().flatten().filter_map(|of| of.get(key)).any(|value| !value.is_null())
    };
    let since = if by_modelopt(model) { reads.modelopt } else { reads.compressor };
    let says = stated("kv_cache_scheme") || stated("kv_cache_quant_algo");
    says.then_some(question.engine.version >= since)
}

fn section(model: &ModelCaches) -> Option<&Value> {
    model.model()?.config.get("quantization_config")
}

fn by_modelopt(model: &ModelCaches) -> bool {
    let method = section(model).and_then(|section| section.get("quant_method")).and_then(Value::as_str);
    method.is_some_and(|name| name.starts_with("modelopt"))
}
