//! Keys of a model's config that a command states otherwise: those of the longest sequence are read, as vLLM's
//! `_get_and_verify_max_len` does, others are refused by their name.

use cacheplan_planner::ModelCaches;
use cacheplan_planner::engines::Version;
use serde_json::{Map, Value};

use super::Question;
use crate::error::ServeError;
use crate::remedy::Remedy;

/// Read in 0.30.0, and not in 0.28.0: with YaRN the config's longest sequence is the scaled one.
const YARN_IS_SCALED: Version = Version(0, 30, 0);
/// Keys on which no cache depends.
const BESIDE_CACHES: [&str; 8] = [
    "rope_theta",
    "rope_local_base_freq",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "use_cache",
    "is_matryoshka",
    "matryoshka_dimensions",
];
const SCALED: [&str; 2] = ["rope_scaling", "rope_parameters"];
const LENGTH: &str = "max_position_embeddings";

/// The longest sequence that the model is made for, by its config and by what the command states otherwise.
pub(super) fn longest(question: &Question, flag: &'static str, model: &ModelCaches) -> Result<Option<u64>, ServeError> {
    let known = model.info().max_position_embeddings;
    let Some(stated) = stated(question, flag)? else { return Ok(known) };
    let refused = |key: &str| ServeError::NotHandled {
        flag: flag.into(),
        why: format!("what `{key}` does to caches was not read; ask about a folder whose config.json says it"),
        remedies: vec![Remedy::Remove(flag)],
    };
    let nested = stated.get("text_config").and_then(Value::as_object);
    let outer = stated.iter().filter(|(key, _)| *key != "text_config" || nested.is_none());
    let mut length = None;
    let mut scaled = None;
    for (key, value) in outer.chain(nested.into_iter().flatten()) {
        match value {
            Value::Number(_) if key == LENGTH => length = Some(value.as_u64().ok_or_else(|| refused(key))?),
            Value::Object(rope) if SCALED.contains(&&**key) => scaled = Some(rope),
            _ if BESIDE_CACHES.contains(&&**key) => {}
            _ => return Err(refused(key)),
        }
    }
    let config = model.model().map(|model| &model.config);
    let own = config.and_then(|config| config.get(LENGTH).or_else(|| config.get("text_config")?.get(LENGTH)));
    let length = length.or(own.and_then(Value::as_u64)).or(known);
    let Some(rope) = scaled else { return Ok(length) };
    let text = |key: &str| rope.get(key).and_then(Value::as_str);
    let factor =
        rope.get("factor").and_then(Value::as_f64).filter(|factor| (1.0..=1e6).contains(factor)).unwrap_or(1.0);
    let times = |length: u64| (length as f64 * factor) as u64;
    Ok(match text("rope_type").or(text("type")) {
        Some("su" | "longrope" | "llama3") => length,
        Some("yarn" | "deepseek_yarn") if question.engine.version >= YARN_IS_SCALED => length,
        Some("yarn") => rope.get("original_max_position_embeddings").and_then(Value::as_u64).or(length).map(times),
        _ => length.map(times),
    })
}

/// The object that the flag states, and older versions' flag for its scaling.
fn stated(question: &Question, flag: &'static str) -> Result<Option<Map<String, Value>>, ServeError> {
    let mut all = question.object(flag)?;
    if let Some(rope) = question.object("--rope-scaling")? {
        all.get_or_insert_default().insert(SCALED[0].to_owned(), Value::Object(rope));
    }
    Ok(all.filter(|all| !all.is_empty()))
}
