//! SGLang's own flags and defaults, as `arg_groups/memory_hook.py` of 0.5.23 has them.

use cacheplan_planner::ModelCaches;

use super::{Limits, Question};
use crate::error::ServeError;
use crate::remedy::Remedy;

pub(super) fn settle(question: &mut Question, model: &ModelCaches) -> Result<(Limits, bool), ServeError> {
    let derived = model.info().max_position_embeddings;
    let stated = question.count("--context-length");
    if let (Some(stated), Some(derived)) = (stated, derived)
        && stated > derived
        && question.env.get("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN").map(String::as_str) != Some("1")
    {
        let said = format!(
            "User-specified context_length ({stated}) is greater than the derived context_length ({derived}). To allow overriding this maximum, set the env var SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1"
        );
        return Err(question.refused(said, [Remedy::Set("--context-length", derived.to_string())]));
    }
    let missing = || {
        question.refused(
            "the model states no longest sequence; state --context-length",
            [Remedy::Set("--context-length", "4096".into())],
        )
    };
    let max_seq_len = stated.or(derived).ok_or_else(missing)?;
    let size = |name: &str| question.count(name).unwrap_or(1).max(1);
    let (tp, pp) = (size("--tp-size"), size("--pp-size"));
    let heads =
        model.model().and_then(|model| model.config.get("num_attention_heads")).and_then(serde_json::Value::as_u64);
    if let Some(heads) = heads.filter(|heads| !heads.is_multiple_of(tp)) {
        let fewer = (1..tp).rev().filter(|fewer| heads.is_multiple_of(*fewer)).take(3);
        let remedies: Vec<Remedy> = fewer.map(|fewer| Remedy::Set("--tp-size", fewer.to_string())).collect();
        return Err(question.refused(format!("{heads} attention heads are not divisible by tp_size {tp}"), remedies));
    }
    question.use_devices(tp.saturating_mul(pp))?;
    let defaults = Defaults::of(question);
    let max_num_tokens =
        question.count("--chunked-prefill-size").filter(|tokens| *tokens > 0).unwrap_or(defaults.chunk);
    question.default_of("max_seq_len", max_seq_len);
    question.default_of("max_num_tokens", max_num_tokens);
    question.default_of("engine.prefix_caching", true);
    memory(question, &defaults, max_num_tokens, tp.saturating_mul(pp))?;
    if let Some(word) = question.flag("--speculative-algorithm").map(|setting| setting.value().to_owned()) {
        let tokens = question
            .count("--speculative-num-draft-tokens")
            .or(question.count("--speculative-num-steps").map(|steps| steps + 1));
        let why = format!("how many tokens {word} drafts is not stated; state --speculative-num-draft-tokens");
        let remedies = vec![Remedy::Remove("--speculative-algorithm")];
        let tokens = tokens.ok_or(ServeError::NotHandled { flag: "--speculative-algorithm".into(), why, remedies })?;
        question.default_of("speculation.draft_tokens", tokens.max(1));
        if matches!(word.as_str(), "NEXTN" | "EAGLE" | "MTP") && question.draft.is_none() {
            question.default_of("speculation.mtp_layers", 1);
        }
    }
    Ok((Limits { max_seq_len, max_batch_size: question.count("--max-running-requests"), max_num_tokens }, false))
}

/// What depends on the GPU's memory.
struct Defaults {
    chunk: u64,
    graphs: u64,
}

impl Defaults {
    fn of(question: &Question) -> Self {
        let mib = question.device().map_or(0, |device| device.total_bytes >> 20);
        let few = question.count("--tp-size").unwrap_or(1) < 4;
        let (chunk, graphs) = match mib {
            0 => (4096, 160),
            _ if mib < 20 << 10 => (2048, 8),
            _ if mib < 35 << 10 => (4096, if few { 48 } else { 160 }),
            _ if mib < 60 << 10 => (4096, if few { 32 } else { 160 }),
            _ if mib < 160 << 10 => (8192, if few { 256 } else { 512 }),
            _ => (16_384, 512),
        };
        Self { chunk, graphs }
    }
}

/// The share of the device for weights and caches; steps and graphs are outside it.
fn memory(question: &mut Question, defaults: &Defaults, chunk: u64, ranks: u64) -> Result<(), ServeError> {
    const FLAG: &str = "--mem-fraction-static";
    let stated = question.flag(FLAG).and_then(|setting| setting.value().parse::<f64>().ok());
    if let Some(stated) = stated.filter(|stated| !(*stated > 0.0 && *stated < 1.0)) {
        let percent = (stated > 1.0 && stated < 100.0).then(|| Remedy::Set(FLAG, (stated / 100.0).to_string()));
        let said = format!("mem_fraction_static must be between 0 and 1 (it is {stated})");
        return Err(question.refused(said, percent.into_iter().chain([Remedy::Remove(FLAG)])));
    }
    if question.is_stated("engine.cache_bytes") {
        return Ok(());
    }
    let Some(mib) = question.device().map(|device| (device.total_bytes >> 20) as f64) else { return Ok(()) };
    let share = stated.unwrap_or_else(|| {
        let graphs = question
            .count("--cuda-graph-max-bs")
            .or(question.count("--cuda-graph-max-bs-decode"))
            .unwrap_or(defaults.graphs);
        let graphs = if question.flag("--disable-cuda-graph").is_some() { 0 } else { graphs };
        let mut reserved = 512.0 + chunk.max(2048) as f64 * 1.5 + ranks as f64 / 8.0 * 1024.0 + graphs as f64 * 2.0;
        if mib > 60.0 * 1024.0 {
            reserved = reserved.max(10.0 * 1024.0);
        }
        ((mib - reserved) / mib * 1000.0).round() / 1000.0
    });
    if stated.is_none() {
        question.notes.push("mem_fraction_static is the heuristic's that leaves room for graphs; sizing after graphs are captured gives more".into());
    }
    question.default_of("memory.fraction", share);
    question.default_of("memory.of", "total");
    question.default_of("memory.activations", "0B");
    question.default_of("memory.graphs", "0B");
    Ok(())
}
