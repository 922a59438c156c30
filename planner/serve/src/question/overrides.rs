//! The longest sequence by a model's config, and by its keys that a command states otherwise: as vLLM's
//! `_get_and_verify_max_len`, SGLang's `get_context_length` and TensorRT-LLM's `infer_max_seq_len` find it. Other keys
//! that a command states are refused by their name.

use cacheplan_planner::ModelCaches;
use cacheplan_planner::engines::{EngineSpec, Version};
use serde_json::{Map, Value};

use super::Question;
use crate::error::ServeError;
use crate::remedy::Remedy;

/// Read in 0.30.0, and not in 0.28.0: with YaRN the config's longest sequence is the scaled one.
const YARN_IS_SCALED: Version = Version(0, 30, 0);
/// vllm-project/vllm#27431.
const LONGROPE_IS_SHORT: Version = Version(0, 11, 1);
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
/// Next-token layers, which only what drafts has.
const NEXT_TOKEN_LAYERS: &str = "num_nextn_predict_layers";
const SCALED: [&str; 2] = ["rope_scaling", "rope_parameters"];
const LENGTH: &str = "max_position_embeddings";

/// Keys of which SGLang takes the first that is stated, its `CONTEXT_LENGTH_KEYS`.
const SGLANG_LENGTHS: [&str; 5] = ["max_sequence_length", "seq_length", "max_seq_len", "model_max_length", LENGTH];
const OTHER_LENGTHS: [&str; 5] = ["n_positions", "max_target_positions", "max_seq_length", "seq_len", "context_length"];
/// A `rope_scaling`.
type Scaling = Map<String, Value>;

/// What engines take where neither a config nor its class says a length.
const NO_LENGTH: u64 = 2048;

/// The longest sequence that the model is made for, by its config and by what the command states otherwise.
pub(super) fn longest(question: &Question, flag: &'static str, model: &ModelCaches) -> Result<Option<u64>, ServeError> {
    Ok(by_config(question.engine, model, read(question, flag)?))
}

/// The same by its config alone.
pub(super) fn own(engine: EngineSpec, model: &ModelCaches) -> Option<u64> {
    by_config(engine, model, (None, None))
}

fn by_config(
    engine: EngineSpec,
    model: &ModelCaches,
    (stated_length, stated_rope): (Option<u64>, Option<Scaling>),
) -> Option<u64> {
    let known = model.info().max_position_embeddings;
    let Some(config) = model.model().map(|model| &model.config) else { return stated_length.or(known) };
    let first = |keys: &[&str]| keys.iter().find_map(|key| config.get(*key)?.as_u64());
    let own = if engine.engine.name() == "sglang" { first(&SGLANG_LENGTHS) } else { None };
    let length = stated_length.or(own).or(known).unwrap_or(NO_LENGTH);
    // Gemma 3's is the scaled one already.
    if model.info().model_type.contains("gemma3") {
        return Some(length);
    }
    let ropes = stated_rope.map_or_else(|| ropes(config), |rope| dictionaries(&rope));
    Some(ropes.iter().find_map(|rope| scaled(engine, rope, length)).unwrap_or(length))
}

/// Whether the config says a length: one that only its class has is taken, and holds against no flag, since files of which
/// a part is left out have that too.
pub(super) fn is_stated(model: &ModelCaches) -> bool {
    let states = |config: &Map<String, Value>| {
        SGLANG_LENGTHS.iter().chain(&OTHER_LENGTHS).any(|key| config.get(*key).is_some_and(Value::is_number))
    };
    model.model().is_none_or(|model| states(&model.config))
}

/// Where a LongRoPE config does not say otherwise, vLLM serves the length that the model had before.
pub(super) fn unscaled(question: &Question, model: &ModelCaches) -> Option<u64> {
    let config = model.model().map(|model| &model.config)?;
    let long = ropes(config).iter().any(|rope| rope_type(rope) == Some("longrope"));
    let original = config.get("original_max_position_embeddings").and_then(Value::as_u64);
    original.filter(|_| long && question.engine.version >= LONGROPE_IS_SHORT)
}

/// What the command states of the length, and of its scaling.
fn read(question: &Question, flag: &'static str) -> Result<(Option<u64>, Option<Scaling>), ServeError> {
    let Some(stated) = stated(question, flag)? else { return Ok((None, None)) };
    let refused = |key: &str| {
        let why = format!("what `{key}` does to caches was not read; ask about a folder whose config.json says it");
        ServeError::unread(flag, why, [Remedy::Remove(flag)])
    };
    let nested = stated.get("text_config").and_then(Value::as_object);
    let outer = stated.iter().filter(|(key, _)| *key != "text_config" || nested.is_none());
    let mut length = None;
    let mut scaled = None;
    for (key, value) in outer.chain(nested.into_iter().flatten()) {
        match value {
            Value::Number(_) if key == LENGTH => length = Some(value.as_u64().ok_or_else(|| refused(key))?),
            Value::Object(rope) if SCALED.contains(&&**key) => scaled = Some(rope.clone()),
            _ if BESIDE_CACHES.contains(&&**key) => {}
            _ if key == NEXT_TOKEN_LAYERS && has_no_other_drafts(question, value) => {}
            _ => return Err(refused(key)),
        }
    }
    Ok((length, scaled))
}

/// Whether so many next-token layers change nothing in SGLang: where nothing drafts with them, or the one that is planned does
/// (`_compute_model_num_layers`).
fn has_no_other_drafts(question: &Question, layers: &Value) -> bool {
    let drafts = question.flag("--speculative-algorithm").is_some();
    question.engine.engine.name() == "sglang" && (!drafts || layers.as_u64() == Some(1))
}

/// The scalings of a config.
fn ropes(config: &Map<String, Value>) -> Vec<Map<String, Value>> {
    let stated = SCALED.iter().find_map(|key| config.get(*key)?.as_object());
    stated.map(dictionaries).unwrap_or_default()
}

/// One scaling, or one for each sort of layer.
fn dictionaries(rope: &Map<String, Value>) -> Vec<Map<String, Value>> {
    let nested: Vec<_> = rope.values().filter_map(Value::as_object).cloned().collect();
    if nested.is_empty() { vec![rope.clone()] } else { nested }
}

fn rope_type(rope: &Map<String, Value>) -> Option<&str> {
    ["rope_type", "type"].iter().find_map(|key| rope.get(*key)?.as_str())
}

/// The length by a scaling that engines multiply by; `None` where they do not.
fn scaled(engine: EngineSpec, rope: &Map<String, Value>, length: u64) -> Option<u64> {
    const ORIGINAL: &str = "original_max_position_embeddings";
    let factor = rope.get("factor").and_then(Value::as_f64).filter(|factor| (1.0..=1e6).contains(factor))?;
    let times = |length: u64| (length as f64 * factor) as u64;
    match (engine.engine.name(), rope_type(rope)) {
        ("sglang", Some("llama3")) => None,
        ("sglang", _) => (!rope.contains_key(ORIGINAL)).then(|| times(length)),
        (_, Some("su" | "longrope" | "llama3")) => None,
        ("tensorrt-llm", Some("yarn")) => None,
        ("tensorrt-llm", _) => Some((length as f64 * factor).ceil() as u64),
        (_, Some("yarn" | "deepseek_yarn")) if engine.version >= YARN_IS_SCALED => None,
        (_, Some("yarn")) => Some(times(rope.get(ORIGINAL).and_then(Value::as_u64).unwrap_or(length))),
        _ => Some(times(length)),
    }
}

/// The object that the flag states, and older versions' flag for its scaling.
fn stated(question: &Question, flag: &'static str) -> Result<Option<Map<String, Value>>, ServeError> {
    let mut all = question.object(flag)?;
    if let Some(rope) = question.object("--rope-scaling")? {
        all.get_or_insert_default().insert(SCALED[0].to_owned(), Value::Object(rope));
    }
    Ok(all.filter(|all| !all.is_empty()))
}
