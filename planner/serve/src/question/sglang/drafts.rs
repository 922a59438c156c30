//! What drafts, and how many tokens (`arg_groups/speculative_hook.py` of 0.5.23).

use cacheplan_handlers::Kind;
use cacheplan_planner::ModelCaches;
use cacheplan_planner::engines::sglang::RUNNING_WITH_DRAFTS;

use super::super::rules::lists;
use super::super::{Question, of_config};
use super::READ;
use crate::error::ServeError;
use crate::remedy::Remedy;

const FLAG: &str = "--speculative-algorithm";
const STEPS: &str = "--speculative-num-steps";
const TOPK: &str = "--speculative-eagle-topk";
const TOKENS: &str = "--speculative-num-draft-tokens";
const MODEL: &str = "--speculative-draft-model-path";

/// Algorithms whose drafts are a chain or a tree of a drafter's steps.
const OF_STEPS: &str = "EAGLE EAGLE3 NEXTN STANDALONE";
/// Steps, branches and tokens where none of them is stated, and the types of models that have others.
const USUAL: (u64, u64, u64) = (3, 1, 4);
const OF_LLAMA: (u64, u64, u64) = (5, 4, 8);
const LIKE_LLAMA: &str = "llama grok-1";
/// Tokens of a text that are looked up where nobody says.
const LOOKED_UP: u64 = 12;

/// States what a command drafts, and gives how many requests run at once then where nobody says.
pub(super) fn settle(question: &mut Question, model: &ModelCaches, replicas: u64) -> Result<Option<u64>, ServeError> {
    let Some(word) = question.value(FLAG).map(str::to_uppercase) else { return Ok(None) };
    let is_read = question.engine.version >= READ;
    if is_read {
        look(question, model, &word)?;
    }
    let stated = question.count(TOKENS);
    // What is looked up in the text is as long as is said, whatever its steps are.
    let of_steps = question.count(STEPS).filter(|_| !is_read || word != "NGRAM").map(|steps| steps.saturating_add(1));
    // A chain of the drafter's is as long as its steps, whatever is said beside them (`_handle_eagle_family`).
    let is_chain = lists(OF_STEPS, &word) && question.count(TOPK) == Some(1);
    let tokens = match stated.filter(|_| !is_chain || of_steps.is_none()).or(of_steps) {
        None if is_read && lists(OF_STEPS, &word) => Some(usual(model, &word).2),
        None if is_read && word == "NGRAM" => Some(LOOKED_UP),
        tokens => tokens,
    };
    let why = format!("how many tokens {word} drafts is not stated; state {TOKENS}");
    let tokens = tokens.ok_or_else(|| ServeError::unread(FLAG, why, [Remedy::Remove(FLAG)]))?;
    question.default_of("speculation.draft_tokens", tokens.max(1));
    // DeepSeek-V4's own default stands above that of drafts (`apply_deepseek_v4_defaults`).
    let own = model.info().model_type.starts_with("deepseek_v4");
    let running = (!own).then(|| (RUNNING_WITH_DRAFTS / replicas).max(1));
    if let Some(running) = running {
        question.default_of("max_batch_size", running);
    }
    // Layers of the model's own that draft are paid for as its config counts them, where it does.
    let own = match is_read {
        true if lists(OF_STEPS, &word) => of_config(model, "num_nextn_predict_layers").filter(|layers| *layers > 0),
        false if matches!(word.as_str(), "NEXTN" | "EAGLE" | "MTP") => Some(1),
        _ => None,
    };
    if let Some(layers) = own.filter(|_| question.draft.is_none()) {
        question.default_of("speculation.mtp_layers", layers);
    }
    Ok(running)
}

/// What it drafts where nobody says (`_auto_choose_speculative_params`).
fn usual(model: &ModelCaches, word: &str) -> (u64, u64, u64) {
    if word != "STANDALONE" && lists(LIKE_LLAMA, &model.info().model_type) { OF_LLAMA } else { USUAL }
}

/// Refuses what the algorithm does not take.
fn look(question: &Question, model: &ModelCaches, word: &str) -> Result<(), ServeError> {
    let refuse = |said: &str, flags: &[&'static str]| {
        let stated = flags.iter().copied().filter(|flag| question.flag(flag).is_some());
        Err(question.refused(said, stated.map(Remedy::Remove)))
    };
    let size = |flag: &str| question.count(flag).unwrap_or(1);
    let replicas = question.attention_replicas() > 1;
    let prefills = question.value(super::ROLE) == Some("prefill");
    let sparse = question.caches(model)?.iter().any(|cache| *cache.handler.kind() == Kind::IndexKey);
    let settled = question.stated.iter().rev().find(|stated| stated.key == "engine.block_size");
    let pages = sparse || settled.is_some_and(|page| page.value.parse::<u64>().is_ok_and(|tokens| tokens > 1));
    let attention = question.value("--attention-backend").or(sparse.then_some("dsa"));
    if lists(OF_STEPS, word) {
        let (steps, topk) = (question.flag(STEPS), question.flag(TOPK));
        if word == "STANDALONE" && replicas {
            return refuse("Currently standalone speculative decoding does not support dp attention.", &[FLAG]);
        }
        if steps.is_none() && (topk.is_some() || question.flag(TOKENS).is_some()) {
            let said = "cfg.speculative_eagle_topk is None and cfg.speculative_num_draft_tokens is None: without speculative_num_steps neither may be stated";
            return refuse(said, &[TOPK, TOKENS]);
        }
        let topk = match topk {
            None if steps.is_some() => {
                let said = "'>' not supported between instances of 'NoneType' and 'int': beside speculative_num_steps speculative_eagle_topk must be stated";
                return Err(question.refused(said, [Remedy::Set(TOPK, "1".into()), Remedy::Remove(STEPS)]));
            }
            None => usual(model, word).1,
            Some(_) => size(TOPK),
        };
        if topk > 1 && attention == Some("trtllm_mha") {
            return refuse("trtllm_mha backend only supports topk = 1 for speculative decoding.", &[TOPK, FLAG]);
        }
        if topk > 1 && pages && attention.is_some_and(|name| !lists("flashinfer fa3 triton", name)) {
            let said =
                "speculative_eagle_topk > 1 with page_size > 1 is only supported on ('flashinfer', 'fa3', 'triton')";
            return refuse(said, &["--page-size", TOPK]);
        }
        if question.is_on("--speculative-use-rejection-sampling") {
            const SAMPLES: &str = "--speculative-use-rejection-sampling";
            if word == "STANDALONE" {
                let said = "--speculative-use-rejection-sampling is only supported for EAGLE / EAGLE3 / NEXTN";
                return refuse(said, &[SAMPLES]);
            }
            if topk != 1 {
                let said = "--speculative-use-rejection-sampling requires --speculative-eagle-topk=1.";
                return refuse(said, &[SAMPLES, TOPK]);
            }
        }
    }
    let branches = question.count("--speculative-ngram-max-bfs-breadth").unwrap_or(10);
    match word {
        // Kernels that nobody names are others than these but on older GPUs.
        "NGRAM" if branches > 1 && pages && attention != Some("flashinfer") => {
            let said = format!(
                "speculative_eagle_topk({branches}) > 1 with page_size > 1 is unstable and produces incorrect results for paged attention backends. This combination is only supported for the 'flashinfer' backend."
            );
            refuse(&said, &["--page-size", FLAG])
        }
        "NGRAM" if replicas => refuse("Currently ngram speculative decoding does not support dp attention.", &[FLAG]),
        "DFLASH" if replicas && !question.is_on("--enable-dp-lm-head") => {
            refuse("DFLASH with dp attention requires --enable-dp-lm-head.", &[FLAG])
        }
        "DFLASH" if size("--pp-size") > 1 => {
            refuse("Currently DFLASH speculative decoding only supports pp_size == 1.", &["--pp-size", FLAG])
        }
        "DFLASH" if question.draft.is_none() => {
            refuse("DFLASH speculative decoding requires setting --speculative-draft-model-path.", &[FLAG])
        }
        "DSPARK" if replicas && !question.is_on("--enable-dp-lm-head") => {
            refuse("DSpark with dp attention requires --enable-dp-lm-head.", &[FLAG])
        }
        "DSPARK" if size("--pp-size") > 1 && !prefills => {
            let said = "DSpark pipeline parallelism requires PD prefill; decode and non-disaggregated serving require pp_size == 1.";
            refuse(said, &["--pp-size", FLAG])
        }
        "DSPARK" if question.draft.is_none() && !model.info().model_type.starts_with("deepseek_v4") => {
            refuse("DSpark dense speculative decoding requires setting --speculative-draft-model-path.", &[FLAG])
        }
        "UNO" if question.draft.is_some() => {
            refuse("UNO reuses the target model and does not accept --speculative-draft-model-path.", &[MODEL])
        }
        "UNO" if question.flag("--uno-lora-path").is_none() => refuse("UNO requires --uno-lora-path.", &[FLAG]),
        _ => Ok(()),
    }
}
