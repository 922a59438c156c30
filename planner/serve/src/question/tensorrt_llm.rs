//! TensorRT-LLM's own flags and defaults, as `commands/serve.py` has them.

use cacheplan_planner::ModelCaches;

use super::{Limits, Question};
use crate::error::ServeError;
use crate::flags::table::{Arity, Flag};
use crate::remedy::Remedy;

/// Defaults of `BuildConfig`.
const BATCH: u64 = 2048;
const STEP: u64 = 8192;

/// A key of its file of options that no flag is called as.
const FRACTION: &str = "kv_cache_config.free_gpu_memory_fraction";

/// The settings of a file of options as the flags that say the same.
pub(super) fn as_flags(config: &[(String, String)], known: &[&Flag]) -> Result<Vec<String>, ServeError> {
    let mut words = Vec::new();
    for (key, value) in config {
        let name = if key == FRACTION { "--free_gpu_memory_fraction".to_owned() } else { format!("--{key}") };
        let Some(flag) = known.iter().find(|flag| flag.name == name) else {
            let why = "nobody read what this key of the file of options does to caches".to_owned();
            return Err(ServeError::NotHandled { flag: key.clone(), why, remedies: Vec::new() });
        };
        match flag.values {
            Arity::Exactly(0) if value != "true" => {}
            Arity::Exactly(0) => words.push(name),
            _ => words.extend([name, value.clone()]),
        }
    }
    Ok(words)
}

pub(super) fn settle(question: &mut Question, model: &ModelCaches) -> Result<(Limits, bool), ServeError> {
    if let Some(backend) =
        question.flag("--backend").map(|setting| setting.value().to_owned()).filter(|backend| backend != "pytorch")
    {
        let why = format!("the caches of backend {backend} were not read");
        return Err(ServeError::NotHandled {
            flag: "--backend".into(),
            why,
            remedies: vec![Remedy::Remove("--backend")],
        });
    }
    let missing = || {
        question.refused(
            "the model states no longest sequence; state --max_seq_len",
            [Remedy::Set("--max_seq_len", "4096".into())],
        )
    };
    let max_seq_len = question.count("--max_seq_len").or(model.info().max_position_embeddings).ok_or_else(missing)?;
    let size = |name: &str| question.count(name).unwrap_or(1).max(1);
    let tp = size("--tensor_parallel_size");
    let ranks = tp.saturating_mul(size("--pipeline_parallel_size"));
    let heads =
        model.model().and_then(|model| model.config.get("num_attention_heads")).and_then(serde_json::Value::as_u64);
    if let Some(heads) = heads.filter(|heads| !heads.is_multiple_of(tp)) {
        let fewer = (1..tp).rev().filter(|fewer| heads.is_multiple_of(*fewer)).take(3);
        let remedies: Vec<Remedy> =
            fewer.map(|fewer| Remedy::Set("--tensor_parallel_size", fewer.to_string())).collect();
        return Err(question.refused(format!("{heads} attention heads are not divisible by tp_size {tp}"), remedies));
    }
    question.use_devices(ranks)?;
    let max_num_tokens = question.count("--max_num_tokens").unwrap_or(STEP);
    let batch = question.count("--max_batch_size").unwrap_or(BATCH);
    question.default_of("max_seq_len", max_seq_len);
    question.default_of("max_num_tokens", max_num_tokens);
    question.default_of("max_batch_size", batch.min(max_num_tokens));
    const FLAG: &str = "--free_gpu_memory_fraction";
    let share: f64 = question.flag(FLAG).map_or("0.9", |setting| setting.value()).parse().unwrap_or(0.9);
    if !(share > 0.0 && share <= 1.0) {
        let said = format!("free_gpu_memory_fraction must be greater than 0 and at most 1 (it is {share})");
        return Err(question.refused(said, [Remedy::Remove(FLAG)]));
    }
    if !question.is_stated("engine.cache_bytes") && question.device().is_some() {
        question.default_of("memory.fraction", share);
        question.default_of("memory.of", "free");
    }
    Ok((Limits { max_seq_len, max_batch_size: Some(batch), max_num_tokens }, false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::table::flags;

    #[test]
    fn a_file_of_options_says_what_flags_do_or_is_refused_by_its_key() {
        let engine: cacheplan_planner::EngineSpec = "tensorrt-llm".parse().unwrap();
        let known = flags(engine.engine, engine.version);
        let of = |key: &str, value: &str| as_flags(&[(key.to_owned(), value.to_owned())], &known);
        assert_eq!(of(FRACTION, "0.8").unwrap(), ["--free_gpu_memory_fraction", "0.8"]);
        assert_eq!(of("max_batch_size", "8").unwrap(), ["--max_batch_size", "8"]);
        assert_eq!(of("enable_chunked_prefill", "true").unwrap(), ["--enable_chunked_prefill"]);
        assert!(of("enable_chunked_prefill", "false").unwrap().is_empty());
        let error = of("kv_cache_config.max_attention_window", "[1024]").unwrap_err().to_string();
        assert!(error.contains("kv_cache_config.max_attention_window"), "{error}");
    }
}
