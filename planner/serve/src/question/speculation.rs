//! What drafts for vLLM, by its speculative config and the shortcuts to it.

use cacheplan_handlers::Growth;
use cacheplan_planner::ModelCaches;
use serde_json::Value;

use super::vllm::{heads, words};
use super::{Question, speculative};
use crate::error::ServeError;
use crate::remedy::Remedy;

/// The model that drafts, where the speculative config names one of its own.
pub(super) fn draft(question: &Question) -> Result<Option<String>, ServeError> {
    let Some(config) = speculative::config(question)? else { return Ok(None) };
    let model = config.get("model").and_then(Value::as_str).map(str::to_owned);
    let is_itself = |model: &str| heads::is_method(speculative::method(&config)) && is_own(question, model);
    Ok(model.filter(|model| !matches!(speculative::method(&config), "ngram" | "suffix") && !is_itself(model)))
}

/// Whether a name is that of the model that is served.
fn is_own(question: &Question, model: &str) -> bool {
    question.model.split('@').next() == Some(model)
}

/// Whether a model drafts by itself, and not from what the served one computes.
pub(super) fn is_by_a_model(question: &Question) -> Result<bool, ServeError> {
    let Some(config) = speculative::config(question)? else { return Ok(false) };
    let model = config.get("model").and_then(Value::as_str).filter(|model| !model.trim_matches(['[', ']']).eq("ngram"));
    Ok(model.is_some() && matches!(speculative::method(&config), "" | "draft_model"))
}

/// Layers of DeepSeek-V4's own that draft by DSpark where its config says no number.
const DSPARK_LAYERS: u64 = 3;

/// What drafts, and how many tokens.
pub(super) fn settle(question: &mut Question, model: &ModelCaches) -> Result<(), ServeError> {
    const FLAG: &str = "--speculative-config";
    let Some(config) = speculative::config(question)? else { return Ok(()) };
    let stated = config.get("num_speculative_tokens");
    if let Some(number) = stated.and_then(Value::as_i64).filter(|number| *number <= 0) {
        let said = format!(
            "1 validation error for SpeculativeConfig: num_speculative_tokens: Input should be greater than 0 (it is {number})"
        );
        return Err(question.refused(said, [Remedy::Remove(FLAG), Remedy::Set("--spec-tokens", "1".into())]));
    }
    let Some(tokens) = stated.and_then(words::whole).filter(|tokens| *tokens > 0) else {
        let said = "num_speculative_tokens must be provided with speculative config unless the draft model config contains an n_predict parameter.";
        return Err(question.refused(said, [Remedy::Remove(FLAG)]));
    };
    let own = question.value("--kv-cache-dtype").unwrap_or("auto");
    if let Some(word) = config.get("kv_cache_dtype").and_then(Value::as_str).filter(|word| *word != own) {
        let why = format!("keys and values of drafts in `{word}` beside those of the model in `{own}` are not planned");
        return Err(ServeError::NotHandled { flag: FLAG.into(), why, remedies: vec![Remedy::Remove(FLAG)] });
    }
    question.default_of("speculation.draft_tokens", tokens);
    let stated_model = config.get("model").and_then(Value::as_str);
    match speculative::method(&config) {
        // Another checkpoint is asked what it is once it was opened.
        name if heads::is_method(name) && stated_model.is_none_or(|model| is_own(question, model)) => {
            let caches = question.caches(model)?;
            let is_full = |growth: Growth| matches!(growth, Growth::Paged { window: None, .. });
            // Those that predict are like its full attention, which every model with such layers has.
            if !caches.iter().any(|cache| is_full(cache.handler.growth())) {
                let said = format!("Unsupported speculative method: '{name}'");
                return Err(question.refused(said, [Remedy::Remove(FLAG), Remedy::Remove("--spec-method")]));
            }
            heads::settle(question, model, name, tokens)?;
        }
        "ngram" | "suffix" => {}
        _ if stated_model.is_some() => {}
        "dspark" if model.info().model_type.starts_with("deepseek_v4") => {
            let stated = model.model().and_then(|model| model.config.get("n_mtp_layers")).and_then(Value::as_u64);
            question.default_of("speculation.mtp_layers", stated.filter(|layers| *layers > 0).unwrap_or(DSPARK_LAYERS));
        }
        other => {
            let why = format!("what `{other}` drafts with was not read");
            return Err(ServeError::unread(FLAG, why, [Remedy::Remove(FLAG)]));
        }
    }
    Ok(())
}
