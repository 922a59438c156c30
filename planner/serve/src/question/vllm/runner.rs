//! Which of its two runners vLLM takes (`use_v2_model_runner`), what the older does not overlap, and how long the newer's drafts are.
//!
//! Read in 0.33.0 alone, so that it holds from there on.

use cacheplan_planner::ModelCaches;
use cacheplan_planner::engines::Version;
use serde_json::Value;

use super::super::{Question, of_config, overrides, speculation, speculative};
use super::{is_on, words};
use crate::error::ServeError;
use crate::remedy::Remedy;

const READ: Version = Version(0, 33, 0);
const SPECULATIVE: &str = "--speculative-config";
const OVERLAPS: &str = "--async-scheduling";
const VARIABLE: &str = "VLLM_USE_V2_MODEL_RUNNER";
/// Methods by a model with which the older runner's steps overlap; `mtp` by its many names is one too.
const OVERLAPPING: [&str; 8] =
    ["eagle", "eagle3", "extract_hidden_states", "dflash", "ngram_gpu", "draft_model", "dspark", "mtp"];

/// Leaves steps apart where the older runner does not overlap them.
pub(super) fn settle(question: &mut Question) -> Result<(), ServeError> {
    if question.engine.version < READ {
        return Ok(());
    }
    let config = speculative::config(question)?;
    let lacks = newer_lacks(question, config.as_ref());
    match (is_on(question, VARIABLE), lacks) {
        (Some(true), Some(lacks)) => {
            let flags = [SPECULATIVE].into_iter().filter(|flag| question.flag(flag).is_some()).map(Remedy::Remove);
            let said = format!("Model Runner V2 does not yet support: {lacks}");
            Err(question.refused(said, flags.collect::<Vec<_>>()))
        }
        (Some(true), None) | (None, None) => Ok(()),
        _ if question.flag("--watermark-config").is_some() => Ok(()),
        _ => without_overlap(question, config.as_ref()),
    }
}

fn without_overlap(question: &mut Question, config: Option<&Value>) -> Result<(), ServeError> {
    let stages = question.count("--pipeline-parallel-size").unwrap_or(1) > 1;
    let says = |key: &str| config.and_then(|config| config.get(key)).and_then(Value::as_bool) == Some(true);
    let method = config.map(method);
    let what = match method {
        Some(method) if !OVERLAPPING.contains(&method) && !method.ends_with("_mtp") => {
            format!("{method}-based speculative decoding")
        }
        _ if says("disable_padded_drafter_batch") => "disable_padded_drafter_batch=True".to_owned(),
        _ if stages => "pipeline parallelism".to_owned(),
        _ => return Ok(()),
    };
    if question.is_on(OVERLAPS) {
        let said = format!("Async scheduling is not supported by the V1 model runner with {what}.");
        return Err(question.refused(said, [Remedy::Remove(OVERLAPS)]));
    }
    question.default_of("engine.async_scheduling", false);
    Ok(())
}

/// What the newer runner has not, of what the command asks for.
fn newer_lacks(question: &Question, config: Option<&Value>) -> Option<String> {
    let says = |key: &str| config.and_then(|config| config.get(key)).and_then(Value::as_bool) == Some(true);
    let stages = question.count("--pipeline-parallel-size").unwrap_or(1) > 1;
    let small = question.is_on("--enable-dbo") || question.count("--ubatch-size").is_some_and(|size| size > 1);
    match config.map(method) {
        _ if stages && question.value("--distributed-executor-backend") == Some("external_launcher") => {
            Some("pipeline parallelism with external_launcher".to_owned())
        }
        Some(method @ ("suffix" | "custom_class")) => Some(format!("speculative method '{method}'")),
        Some(method) if says("parallel_drafting") && !matches!(method, "dflash" | "dspark") => {
            Some("parallel drafting for EAGLE speculative decoding".to_owned())
        }
        Some(_) if says("use_heterogeneous_vocab") => Some("heterogeneous-vocabulary draft models".to_owned()),
        // Told to take it, it does so for some models.
        _ if small && is_on(question, VARIABLE).is_none() => Some("dual batch overlap".to_owned()),
        _ => None,
    }
}

/// The method, also where the model alone says it.
fn method(config: &Value) -> &str {
    let model = config.get("model").and_then(Value::as_str).unwrap_or_default();
    match speculative::method(config) {
        "" | "[ngram]" if model.trim_matches(['[', ']']) == "ngram" => "ngram",
        "" => "draft_model",
        "[ngram]" => "ngram",
        method => method,
    }
}

/// A model that drafts by itself must know the same words (`verify_equal_vocab_size_if_draft_model`).
pub(super) fn same_words(question: &Question, model: &ModelCaches, draft: &ModelCaches) -> Result<(), ServeError> {
    let Some(config) = speculative::config(question)?.filter(|_| question.engine.version >= READ) else {
        return Ok(());
    };
    let translates = config.get("use_heterogeneous_vocab").and_then(Value::as_bool) == Some(true);
    let by_itself = speculation::is_by_a_model(question)? && !learned(&config, draft);
    let [of_model, of_draft] = [model, draft].map(|model| of_config(model, "vocab_size"));
    match (of_model, of_draft) {
        (Some(of_model), Some(of_draft)) if of_model != of_draft && by_itself && !translates => {
            let said = format!(
                "Target and draft model should have the same vocabulary size. Target model vocab_size={of_model}. Draft model vocab_size={of_draft}. Using models with different tokenizers can cause out-of-bounds errors during speculative decoding."
            );
            Err(question.refused(said, [Remedy::Remove(SPECULATIVE)]))
        }
        _ => Ok(()),
    }
}

/// The longest sequence beside a model that drafts by itself: the newer runner cannot go on without it (`_limit_max_model_len_to_draft`).
pub(super) fn longest(question: &Question, draft: &ModelCaches, most: u64) -> Result<u64, ServeError> {
    let is_by_a_model = question.engine.version >= READ && speculation::is_by_a_model(question)?;
    let Some(config) = speculative::config(question)?.filter(|_| is_by_a_model) else { return Ok(most) };
    let own = overrides::own(question.engine, draft);
    let stated = config.get("max_model_len").and_then(words::whole);
    if let (Some(stated), Some(own)) = (stated, own)
        && stated > own
        && overrides::is_stated(draft)
    {
        let said = format!("speculative_max_model_len={stated} cannot be larger than draft_max_model_len={own}");
        return Err(question.refused(said, [Remedy::Remove(SPECULATIVE)]));
    }
    if let Some(stated) = stated.filter(|stated| *stated > most) {
        let said = format!("speculative_max_model_len={stated} cannot be larger than target_max_model_len={most}");
        return Err(question.refused(said, [Remedy::Remove(SPECULATIVE)]));
    }
    let is_old = takes_older(question, &config);
    let learned = learned(&config, draft);
    Ok(stated.or(own).filter(|_| !is_old && !learned).map_or(most, |longest| longest.min(most)))
}

/// Whether it takes the older runner beside what drafts.
fn takes_older(question: &Question, config: &Value) -> bool {
    is_on(question, VARIABLE).map_or_else(|| newer_lacks(question, Some(config)).is_some(), |newer| !newer)
}

/// The older runner divides a model that drafts by itself as the served one (`_raise_if_draft_tp_mismatch`); the newer does so whatever
/// its config says.
pub(super) fn same_ranks(question: &Question, draft: &ModelCaches) -> Result<(), ServeError> {
    let Some(config) = speculative::config(question)?.filter(|_| question.engine.version >= READ) else {
        return Ok(());
    };
    let own = question.count("--tensor-parallel-size").unwrap_or(1);
    let by_itself = speculation::is_by_a_model(question)? && !learned(&config, draft) && takes_older(question, &config);
    let ranks = config.get("draft_tensor_parallel_size").and_then(words::whole);
    match ranks.filter(|ranks| by_itself && *ranks != own) {
        None => Ok(()),
        Some(ranks) => {
            let said = format!(
                "Currently, 'draft_tensor_parallel_size' and 'tensor_parallel_size' must be the same. Got {ranks} and {own}. Please pass 'draft_tensor_parallel_size' in the speculative_config."
            );
            Err(question.refused(said, [Remedy::Remove(SPECULATIVE)]))
        }
    }
}

/// Whether what drafts learned from the model, by its name or its class: it follows the model's positions.
fn learned(config: &Value, draft: &ModelCaches) -> bool {
    const NAMES: [&str; 6] = ["eagle", "dflash", "dspark", "medusa", "mtp", "assistant"];
    let is_one = |name: &str| NAMES.iter().any(|part| name.to_lowercase().contains(part));
    let classes = draft.model().and_then(|model| model.config.get("architectures")).and_then(Value::as_array);
    let mut classes = classes.into_iter().flatten().filter_map(Value::as_str);
    classes.any(is_one) || config.get("model").and_then(Value::as_str).is_some_and(is_one)
}
