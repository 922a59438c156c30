//! TensorRT-LLM's own flags and defaults, as `commands/serve.py` has them.

use cacheplan_planner::ModelCaches;

use super::{Limits, Question};
use crate::error::ServeError;
use crate::remedy::Remedy;

/// Defaults of `BuildConfig`.
const BATCH: u64 = 2048;
const STEP: u64 = 8192;

/// Keys of its file of options, and the flags that say the same.
const KEYS: [(&str, &str); 8] = [
    ("tensor_parallel_size", "--tensor_parallel_size"),
    ("pipeline_parallel_size", "--pipeline_parallel_size"),
    ("moe_expert_parallel_size", "--moe_expert_parallel_size"),
    ("max_batch_size", "--max_batch_size"),
    ("max_num_tokens", "--max_num_tokens"),
    ("max_seq_len", "--max_seq_len"),
    ("backend", "--backend"),
    ("kv_cache_config.free_gpu_memory_fraction", "--free_gpu_memory_fraction"),
];

/// Sections and keys of that file on which no cache depends.
const NONE: [&str; 6] = [
    "print_iter_log",
    "enable_chunked_prefill",
    "disable_overlap_scheduler",
    "scheduler_config",
    "log_level",
    "postprocess",
];

/// The settings of a file of options as flags.
pub(super) fn flags(config: &[(String, String)]) -> Result<Vec<String>, ServeError> {
    let mut words = Vec::new();
    for (key, value) in config {
        if let Some((_, flag)) = KEYS.iter().find(|(of, _)| of == key) {
            words.extend([(*flag).to_owned(), value.clone()]);
        } else if !NONE.contains(&key.split('.').next().unwrap_or(key)) {
            let why = "nobody read what this key of the file of options does to caches".to_owned();
            return Err(ServeError::NotHandled { flag: key.clone(), why, remedies: Vec::new() });
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

    #[test]
    fn a_file_of_options_says_what_flags_do_or_is_refused_by_its_key() {
        let of = |key: &str, value: &str| flags(&[(key.to_owned(), value.to_owned())]);
        let fraction = of("kv_cache_config.free_gpu_memory_fraction", "0.8").unwrap();
        assert_eq!(fraction, ["--free_gpu_memory_fraction", "0.8"]);
        assert!(of("scheduler_config.capacity_scheduler_policy", "MAX").unwrap().is_empty());
        let error = of("kv_cache_config.max_attention_window", "[1024]").unwrap_err().to_string();
        assert!(error.contains("kv_cache_config.max_attention_window"), "{error}");
    }
}
