//! Which of its two runners vLLM takes (`use_v2_model_runner`), what the older does not overlap, and how long the newer's drafts are.
//!
//! Read in 0.26.0 to 0.28.0, 0.30.0, 0.32.0 and 0.33.0.

use cacheplan_handlers::ResourceHandler;
use cacheplan_planner::ModelCaches;
use cacheplan_planner::engines::Version;
use serde_json::Value;

use super::super::rules::{lists, takes_more_than_text};
use super::super::{Question, of_config, overrides, speculation, speculative};
use super::graphs::Graphs;
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

/// Read in 0.26.0, and not in 0.25.0: the windows of a sequence hold the tokens of all steps under way.
const COUNTS_STEPS: Version = Version(0, 26, 0);
/// Read in 0.30.0, and not in 0.28.0: every model takes the newer runner, and steps overlap that a model drafts for by itself.
const OF_EVERY_MODEL: Version = Version(0, 30, 0);
/// Classes with experts that took it before (`DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES`), and since when.
const LISTED: [(Version, &str); 3] = [
    (
        COUNTS_STEPS,
        "DeepseekV2ForCausalLM GraniteMoeForCausalLM InklingForCausalLM InklingForConditionalGeneration LongcatFlashNgramForCausalLM Qwen2MoeForCausalLM",
    ),
    (Version(0, 27, 0), "KimiK3ForConditionalGeneration"),
    (Version(0, 28, 0), "DeepseekV4ForCausalLM"),
];
/// Methods that the newer runner had then.
const OF_NEWER: [&str; 4] = ["eagle", "mtp", "dflash", "dspark"];

/// Of versions before those that say so themselves: where the older runner has several stages, and where a drafter needs the end of a step.
fn settle_earlier(question: &mut Question, model: &ModelCaches) -> Result<(), ServeError> {
    let config = speculative::config(question)?;
    let says = |key: &str| config.as_ref().and_then(|config| config.get(key)).and_then(Value::as_bool) == Some(true);
    let method = config.as_ref().map(method);
    let version = question.engine.version;
    let stages = question.count("--pipeline-parallel-size").unwrap_or(1) > 1;
    let waits = says("disable_padded_drafter_batch") || method == Some("draft_model") && version < OF_EVERY_MODEL;
    let is_older = match is_on(question, VARIABLE) {
        Some(newer) => !newer,
        None if question.is_on("--enable-dbo") || newer_lacks(question, config.as_ref()).is_some() => true,
        None if method == Some("dspark") => false,
        None if version >= OF_EVERY_MODEL => false,
        None => {
            let lacks = method.is_some_and(|method| !OF_NEWER.contains(&method) && !method.ends_with("_mtp"));
            lacks || !takes_newer(question, model)?
        }
    };
    if waits || stages && is_older {
        question.default_of("engine.async_scheduling", false);
    }
    Ok(())
}

fn has_states(question: &Question, model: &ModelCaches) -> Result<bool, ServeError> {
    Ok(question.caches(model)?.iter().any(|cache| ResourceHandler::is_state(&cache.handler)))
}

/// Whether a model took the newer runner before all did (`_is_default_v2_model_runner_model`).
fn takes_newer(question: &Question, model: &ModelCaches) -> Result<bool, ServeError> {
    let has_states = has_states(question, model)?;
    let Some(model) = model.model() else { return Ok(!has_states) };
    let class = model.stated("architectures").and_then(|classes| classes.get(0)?.as_str()).unwrap_or_default();
    let is_listed = LISTED.iter().any(|(since, classes)| question.engine.version >= *since && lists(classes, class));
    Ok(!has_states && (is_listed || model.expert_channels().next().is_none()))
}

/// Leaves steps apart where the older runner does not overlap them.
pub(super) fn settle(question: &mut Question, model: &ModelCaches) -> Result<(), ServeError> {
    if (COUNTS_STEPS..READ).contains(&question.engine.version) {
        return settle_earlier(question, model);
    }
    if question.engine.version < READ {
        return Ok(());
    }
    let config = speculative::config(question)?;
    let of_model =
        [("hybrid models", has_states(question, model)?), ("multimodal models", takes_more_than_text(model))];
    let of_model = of_model.into_iter().find(|(_, is)| *is && halves(question));
    let lacks = newer_lacks(question, config.as_ref());
    let lacks = lacks.or_else(|| Some(format!("{HALVES} with {}", of_model?.0)));
    match (is_on(question, VARIABLE), lacks) {
        (Some(true), Some(lacks)) => {
            let flags = [SPECULATIVE].into_iter().filter(|flag| question.flag(flag).is_some()).map(Remedy::Remove);
            let said = format!("Model Runner V2 does not yet support: {lacks}");
            Err(question.refused(said, flags.collect::<Vec<_>>()))
        }
        (Some(true), None) | (None, None) => Ok(()),
        (Some(false), _) if let Some(lacks) = older_lacks(question, config.as_ref()) => {
            let said = format!("Model Runner V1 does not support: {lacks}");
            Err(question.refused(said, []))
        }
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

/// What the older runner has not, of what the command asks for (`_get_v1_model_runner_unsupported_features`).
fn older_lacks(question: &Question, config: Option<&Value>) -> Option<&'static str> {
    let is_stated = question.count("--prefill-context-parallel-size").is_some_and(|size| size > 1);
    match config.map(method) {
        _ if is_stated => Some("prefill context parallel"),
        Some("dspark") => Some("dspark speculative decoding"),
        _ if question.is_on("--enable-batch-sharded-sampling") => Some("batch-sharded sampling"),
        _ => None,
    }
}

/// What the newer runner has not, of what the command asks for.
fn newer_lacks(question: &Question, config: Option<&Value>) -> Option<String> {
    let says = |key: &str| config.and_then(|config| config.get(key)).and_then(Value::as_bool) == Some(true);
    let stages = question.count("--pipeline-parallel-size").unwrap_or(1) > 1;
    let several = |flag: &str| question.count(flag).is_some_and(|count| count > 1);
    let beside = [
        ("LoRA", question.is_on("--enable-lora")),
        ("speculative decoding", config.is_some()),
        ("pipeline parallelism", stages),
        (
            "context parallelism",
            several("--decode-context-parallel-size") || several("--prefill-context-parallel-size"),
        ),
        ("PIECEWISE CUDA graphs", Graphs::of(question) == Graphs::Piecewise),
    ];
    let beside = beside.into_iter().find(|(_, is)| *is);
    match config.map(method) {
        _ if stages && question.value("--distributed-executor-backend") == Some("external_launcher") => {
            Some("pipeline parallelism with external_launcher".to_owned())
        }
        Some(method @ ("suffix" | "custom_class")) => Some(format!("speculative method '{method}'")),
        Some(method) if says("parallel_drafting") && !matches!(method, "dflash" | "dspark") => {
            Some("parallel drafting for EAGLE speculative decoding".to_owned())
        }
        Some(_) if says("use_heterogeneous_vocab") => Some("heterogeneous-vocabulary draft models".to_owned()),
        // Told to take it, it does so for plain steps of some models.
        _ if halves(question) && is_on(question, VARIABLE).is_none() => Some(HALVES.to_owned()),
        _ => beside.filter(|_| halves(question)).map(|(what, _)| format!("{HALVES} with {what}")),
    }
}

const HALVES: &str = "dual batch overlap";

/// Whether steps are cut into parts that overlap.
fn halves(question: &Question) -> bool {
    question.is_on("--enable-dbo") || question.count("--ubatch-size").is_some_and(|size| size > 1)
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

/// A model that drafts by itself is built on the last stage alone, where its class takes it for the last of its own stages and waits for the
/// tensors of those before.
pub(super) fn without_stages(question: &Question, draft: &ModelCaches) -> Result<(), ServeError> {
    const STAGES: &str = "--pipeline-parallel-size";
    let Some(config) = speculative::config(question)?.filter(|_| question.engine.version >= READ) else {
        return Ok(());
    };
    let by_itself = speculation::is_by_a_model(question)? && !learned(&config, draft);
    match by_itself && question.count(STAGES).unwrap_or(1) > 1 {
        true => Err(question
            .refused("assert intermediate_tensors is not None", [Remedy::Remove(SPECULATIVE), Remedy::Remove(STAGES)])),
        false => Ok(()),
    }
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
