//! `--speculative-config` of vLLM, with what its shortcuts state (`create_speculative_config`).

use serde_json::{Map, Value};

use super::Question;
use super::vllm::words;
use crate::error::ServeError;
use crate::remedy::Remedy;

/// The tokens of a tree of suffixes, by default.
const SUFFIX_DEPTH: u64 = 24;

/// The config, if one is stated.
pub(super) fn config(question: &Question) -> Result<Option<Value>, ServeError> {
    const FLAG: &str = "--speculative-config";
    let mut config = question.object(FLAG)?.unwrap_or_default();
    let shortcuts =
        [("--spec-method", "method"), ("--spec-model", "model"), ("--spec-tokens", "num_speculative_tokens")];
    for (flag, key) in shortcuts {
        let Some(setting) = question.flag(flag) else { continue };
        if config.contains_key(key) {
            let said = format!("{flag} and {FLAG}['{key}'] are mutually exclusive");
            return Err(question.refused(said, [Remedy::Remove(flag)]));
        }
        let number = setting.whole().filter(|_| key == "num_speculative_tokens");
        config.insert(key.to_owned(), number.map_or_else(|| Value::from(setting.value()), Value::from));
    }
    let mut config: Map<String, Value> =
        config.into_iter().map(|(key, value)| (key.replace('-', "_"), value)).collect();
    // It drafts as far as its tree goes where nobody says how far.
    if config.get("method").and_then(Value::as_str) == Some("suffix") {
        let depth = config.get("suffix_decoding_max_tree_depth").cloned().unwrap_or(SUFFIX_DEPTH.into());
        config.entry("num_speculative_tokens").or_insert(depth);
    }
    words::speculative(question, &config)?;
    Ok((!config.is_empty()).then_some(Value::Object(config)))
}

/// The method that it names; empty where a model that drafts tells it.
pub(super) fn method(config: &Value) -> &str {
    config.get("method").and_then(Value::as_str).unwrap_or("")
}
