//! TensorRT-LLM's own flags and defaults, as `commands/serve.py` has them.

use std::collections::BTreeSet;

use cacheplan_handlers::{DType, Growth};
use cacheplan_planner::engines::tensorrt_llm::{knows_windows, refuses_block, refuses_device};
use cacheplan_planner::engines::{FlagMeaning, Version};
use cacheplan_planner::{ByteSize, Engine, ModelCaches, Override, PlanRequest};

use super::rules::lists;
use super::{HEADS, Limits, Question, in_bytes, of_config, overrides};
use crate::dynamo;
use crate::error::ServeError;
use crate::flags::parse::parse;
use crate::flags::table::{Arity, Flag};
use crate::launch::Launch;
use crate::program::Program;
use crate::remedy::Remedy;

/// Defaults of `BuildConfig`.
const BATCH: u64 = 2048;
const STEP: u64 = 8192;

/// The flag of its file of options. Those of others are flags in its place.
pub(super) const FILE: &str = "--config";

/// A key of its file of options that no flag is called as.
const FRACTION: &str = "kv_cache_config.free_gpu_memory_fraction";

/// Keys, or what they begin with, that no cache's size depends on: what is reused, where else blocks lie, and how a step runs.
const OF_NO_CACHE: [&str; 38] = [
    "kv_cache_config.attention_dp_events_gather_period_ms",
    "kv_cache_config.copy_on_partial_reuse",
    "kv_cache_config.enable_block_reuse",
    "kv_cache_config.enable_partial_reuse",
    "kv_cache_config.event_buffer_max_size",
    "kv_cache_config.host_cache_size",
    "kv_cache_config.onboard_blocks",
    "kv_cache_config.secondary_offload_min_priority",
    "allreduce_strategy",
    "attention_dp_config",
    "attn_backend",
    "batch_wait_max_tokens_ratio",
    "batch_wait_timeout_iters",
    "batch_wait_timeout_ms",
    "cuda_graph_config",
    "disable_overlap_scheduler",
    "enable_autotuner",
    "enable_iter_perf_stats",
    "enable_iter_req_stats",
    "enable_layerwise_nvtx_marker",
    "garbage_collection_gen0_threshold",
    "guided_decoding_backend",
    "iter_stats_max_iterations",
    "load_format",
    "moe_config",
    "nvfp4_gemm_config",
    "orchestrator_type",
    "perf_metrics_max_requests",
    "postprocess_tokenizer_dir",
    "print_iter_log",
    "request_stats_max_iterations",
    "return_perf_metrics",
    "sampler_type",
    "scheduler_config",
    "skip_tokenizer_init",
    "stream_interval",
    "tokenizer_mode",
    "torch_compile_config",
];

/// Methods of checkpoints that it reads none of (`_update_from_hf_quant_config`): those that no version which was read takes.
const UNREAD_METHODS: &str = "awq gptq bitsandbytes hqq aqlm eetq fbgemm_fp8 torchao auto-round intel/auto-round";
const BLOCK: &str = "kv_cache_config.tokens_per_block";
/// Keys that are looked at with the model.
const WINDOWS: &str = "kv_cache_config.max_attention_window";
const MEAN: &str = "kv_cache_config.avg_seq_len";
const TOKENS: &str = "kv_cache_config.max_tokens";

/// The settings of a file of options as the flags that say the same, and those that no flag says.
pub(crate) fn settings(
    config: &[(String, String)],
    engine: Engine,
    known: &[&'static Flag],
) -> Result<(Vec<String>, Vec<Override>), ServeError> {
    let mut words = Vec::new();
    let mut stated = Vec::new();
    for (key, value) in config {
        let Some(flag) = flag_of(key, known) else {
            stated.extend(of_key(key, value, engine)?);
            continue;
        };
        match flag.values {
            Arity::Exactly(0) if value != "true" => {}
            Arity::Exactly(0) => words.push(flag.name.to_owned()),
            _ => words.extend([flag.name.to_owned(), value.clone()]),
        }
    }
    Ok((words, stated))
}

/// The flag that is called as a key of the file of options.
pub(crate) fn flag_of(key: &str, known: &[&'static Flag]) -> Option<&'static Flag> {
    let name = if key == FRACTION { "--free_gpu_memory_fraction".to_owned() } else { format!("--{key}") };
    known.iter().copied().find(|flag| flag.name == name)
}

/// The first release candidate of 1.3.0 that has it: the version was 1.3.0rc18 when it was merged.
const FIRST_CANDIDATE: u32 = 18;

/// Whether what the file of options says stands above flags: to Dynamo's worker, and before flags that are stated did so
/// (NVIDIA/TensorRT-LLM#14812).
pub(crate) fn file_wins(launch: &Launch, program: &Program) -> bool {
    const FLAGS_WIN: Version = Version(1, 3, 0);
    let Program { engine, start, candidate } = *program;
    let is_candidate_before = engine.version == FLAGS_WIN && candidate.is_some_and(|number| number < FIRST_CANDIDATE);
    engine.version < FLAGS_WIN || is_candidate_before || dynamo::worker(&launch.words, start).is_some()
}

/// What the file of options says otherwise than a flag beside it.
pub(crate) fn beside(
    launch: &Launch,
    program: &Program,
    words: &[String],
    known: &[&'static Flag],
) -> Result<Vec<String>, ServeError> {
    let said = parse(program.engine, words, program.start, &launch.env)?.settings;
    let differing = launch.config.iter().filter_map(|(key, value)| {
        let setting = said.get(flag_of(key, known)?.name)?;
        let is_same = if setting.values.is_empty() { value == "true" } else { setting.value() == value };
        let words = std::iter::once(setting.flag.name).chain(setting.values.iter().map(String::as_str));
        let flag = words.collect::<Vec<_>>().join(" ");
        (!is_same).then(|| match file_wins(launch, program) {
            true => format!("{key} {value} of the file of options stands above {flag}"),
            false if program.candidate.is_some() => {
                format!("{flag} stands above {key} {value} of the file of options")
            }
            false => format!(
                "{flag} stands above {key} {value} of the file of options; release candidates before 1.3.0rc{FIRST_CANDIDATE} take the file's"
            ),
        })
    });
    Ok(differing.collect())
}

/// What a key says that no flag is called as, if anything of caches.
fn of_key(key: &str, value: &str, engine: Engine) -> Result<Option<Override>, ServeError> {
    let begins = |known: &&str| key.strip_prefix(*known).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    let is_off = key == "enable_attention_dp" && value == "false";
    if is_off || [WINDOWS, MEAN].contains(&key) || OF_NO_CACHE.iter().any(begins) {
        return Ok(None);
    }
    let of = |path: &str, value: String| Ok(Some(Override::by_argument(path, value, key)));
    match engine.meaning_of(key) {
        Some(FlagMeaning::Key(path)) => of(path, in_bytes(path, value.to_owned())),
        Some(FlagMeaning::DType { own: Some(own), .. }) if own == value => Ok(None),
        Some(FlagMeaning::DType { path, names, .. }) => {
            let dtype = names.iter().find(|(_, name, _)| *name == value).map(|(dtype, ..): &(DType, _, _)| *dtype);
            let unread = || ServeError::unread(key, format!("caches in `{value}` were not read"), []);
            let dtype = dtype.ok_or_else(unread)?;
            of(path, format!("\"{dtype}\""))
        }
        _ => Err(ServeError::unread(key, "nobody read what this key of the file of options does to caches", [])),
    }
}

/// Other programs of its command, which serve no model by themselves (`commands/serve.py`).
pub(super) fn refuse_subcommand(words: &[String], start: usize) -> Result<(), ServeError> {
    const OTHERS: [&str; 4] = ["disaggregated", "disaggregated_mpi_worker", "grpc", "mm_embedding_serve"];
    match words.get(start).filter(|word| OTHERS.contains(&&***word)) {
        Some(word) => {
            Err(ServeError::unread(word, "what this subcommand starts is not planned; ask about its workers", []))
        }
        None => Ok(()),
    }
}

pub(super) fn settle(question: &mut Question, model: &ModelCaches) -> Result<(Limits, bool), ServeError> {
    if let Some(backend) = question.value("--backend").map(str::to_owned).filter(|backend| backend != "pytorch") {
        let why = format!("the caches of backend {backend} were not read");
        return Err(ServeError::unread("--backend", why, [Remedy::Remove("--backend")]));
    }
    if let Some(said) = question.device().and_then(refuses_device) {
        return Err(question.refused(said, []));
    }
    let section = model.model().and_then(|model| model.stated("quantization_config"));
    let method = section.and_then(|section| section.get("quant_method")?.as_str()).unwrap_or_default();
    if lists(UNREAD_METHODS, &method.to_lowercase()) {
        return Err(question.refused(format!("Unsupported quantization_config: quant_method {method}."), []));
    }
    let block = option(question, BLOCK).and_then(|value| value.parse().ok());
    if let Some(said) = block.and_then(refuses_block) {
        return Err(question.refused(said, [Remedy::Remove(FILE)]));
    }
    if let Some(beams) = question.count("--max_beam_width").filter(|beams| *beams > 1) {
        let why = format!("how {beams} beams share the blocks of a sequence was not read");
        return Err(ServeError::unread("--max_beam_width", why, [Remedy::Remove("--max_beam_width")]));
    }
    look_at_graphs(question)?;
    // No flag of it states keys of the config otherwise.
    let derived = overrides::longest(question, "", model)?;
    let stated = question.count("--max_seq_len");
    let allows_long = question.env.get("TLLM_ALLOW_LONG_MAX_MODEL_LEN").is_some_and(|value| value.trim() == "1");
    // What is longer than the model can be is cut to that (`_init_max_seq_len`).
    let most = derived.filter(|_| !allows_long && overrides::is_stated(model));
    let max_seq_len =
        stated.or(derived).ok_or_else(|| question.without_length("--max_seq_len"))?.min(most.unwrap_or(u64::MAX));
    if let (Some(stated), Some(most)) = (stated, most)
        && stated > most
    {
        question.stated.retain(|said| said.key != "max_seq_len");
        question.notes.push(format!(
            "Specified max_seq_len={stated} is larger than what the model can support ({most}). Setting max_seq_len to {most}"
        ));
    }
    let keeps_all = keeps_all(question, model, max_seq_len)?;
    mean(question, model)?;
    let max_seq_len = cut_to_tokens(question, model, max_seq_len, keeps_all)?;
    let size = |name: &str| question.count(name).unwrap_or(1).max(1);
    let tp = size("--tensor_parallel_size");
    let ranks = tp.saturating_mul(size("--pipeline_parallel_size"));
    let said = |heads: u64| format!("{heads} attention heads are not divisible by tp_size {tp}");
    question.divides(of_config(model, HEADS), "--tensor_parallel_size", tp, said)?;
    question.use_devices(ranks)?;
    let max_num_tokens = question.count("--max_num_tokens").unwrap_or(STEP);
    let batch = question.count("--max_batch_size").unwrap_or(BATCH);
    question.default_of("max_seq_len", max_seq_len);
    question.default_of("max_num_tokens", max_num_tokens);
    // None in a step is said of steps.
    question.default_of("max_batch_size", batch.min(max_num_tokens.max(1)));
    const FLAG: &str = "--free_gpu_memory_fraction";
    let share = question.share(FLAG).unwrap_or(0.9);
    if !(share > 0.0 && share <= 1.0) {
        let said = format!("free_gpu_memory_fraction must be greater than 0 and at most 1 (it is {share})");
        return Err(question.refused(said, [Remedy::Remove(FLAG)]));
    }
    // The smaller of both decides.
    let most = question.device().map_or(u64::MAX, |device| (device.total_bytes as f64 * share) as u64);
    question.stated.retain(|stated| {
        stated.key != "engine.cache_bytes" || stated.value.parse::<ByteSize>().map_or(true, |bytes| bytes.0 <= most)
    });
    if !question.is_stated("engine.cache_bytes") && question.device().is_some() {
        question.share_of_device(share);
        question.default_of("memory.of", "free");
    }
    // Sequences are cut to what its blocks hold, and nothing is refused.
    Ok((Limits { max_seq_len, max_batch_size: Some(batch), max_num_tokens }, true))
}

/// Whether layers with windows keep all tokens, as all do that nobody states windows of. Those are stated layer by layer, the list anew
/// behind its end: the model's own divide its layers.
fn keeps_all(question: &mut Question, model: &ModelCaches, longest: u64) -> Result<bool, ServeError> {
    let stated = option(question, WINDOWS).filter(|value| *value != "null");
    let stated: Option<Vec<u64>> = stated.map(|value| serde_json::from_str(value).unwrap_or_default());
    // A window as long as the sequences is none, which its rules know by their length.
    let request = PlanRequest::of(model.clone()).for_engine(question.engine);
    let caches = request.changed(|budget| budget.max_seq_len = Some(longest)).caches()?;
    let own = caches.iter().filter_map(|cache| match cache.handler.growth() {
        Growth::Paged { window, .. } => Some(window.map_or(longest, u64::from).min(longest)),
        _ => None,
    });
    let own: Vec<u64> = own.collect();
    let keeps_all = match &stated {
        None => !knows_windows(&model.info().model_type),
        Some(stated) => !stated.is_empty() && stated.iter().all(|window| *window >= longest),
    };
    let same =
        |stated: &Vec<u64>| own.iter().zip(stated.iter().cycle()).all(|(own, stated)| *own == longest.min(*stated));
    if stated.is_some_and(|stated| !keeps_all && (stated.is_empty() || !same(&stated))) {
        return Err(ServeError::unread(WINDOWS, "windows other than the model's own are not planned", []));
    }
    let has_windows = own.iter().any(|window| *window < longest);
    if keeps_all && has_windows {
        question.default_of("engine.swa_full", true);
        question.notes.push(format!("layers with windows keep all tokens, as nobody states them with {WINDOWS}"));
    }
    Ok(keeps_all)
}

/// The largest batch of graphs is that of their list, where both are stated (`validate_cuda_graph_config`).
fn look_at_graphs(question: &Question) -> Result<(), ServeError> {
    let listed = option(question, "cuda_graph_config.batch_sizes");
    let listed: Vec<u64> = listed.and_then(|list| serde_json::from_str(list).ok()).unwrap_or_default();
    let stated = option(question, "cuda_graph_config.max_batch_size").and_then(|most| most.parse::<u64>().ok());
    match (listed.iter().max(), stated.filter(|stated| *stated > 0)) {
        (Some(most), Some(stated)) if *most != stated => {
            let said = format!(
                "CudaGraphConfig.max_batch_size is incompatible with CudaGraphConfig.batch_sizes: it is {stated}, and the largest of them {most}"
            );
            Err(question.refused(said, [Remedy::Remove(FILE)]))
        }
        _ => Ok(()),
    }
}

/// The mean length by which bytes are divided between states and pages.
fn mean(question: &mut Question, model: &ModelCaches) -> Result<(), ServeError> {
    let Some(value) = option(question, MEAN).filter(|value| *value != "null").map(str::to_owned) else { return Ok(()) };
    let caches = question.caches(model)?;
    if caches.iter().any(|cache| cache.handler.is_state()) {
        question.notes.push(format!(
            "{MEAN} {value} divides bytes between states and pages; counted are states for the largest batch, and pages of the rest"
        ));
    }
    Ok(())
}

/// What is longer than the one pool with so many tokens is cut to it (`_validate_and_adjust_attention_windows`).
fn cut_to_tokens(
    question: &mut Question,
    model: &ModelCaches,
    longest: u64,
    keeps_all: bool,
) -> Result<u64, ServeError> {
    let number = |key: &str| option(question, key).and_then(|value| value.parse::<u64>().ok());
    let Some(stated) = number(TOKENS) else { return Ok(longest) };
    let block = number(BLOCK).filter(|block| *block > 0).unwrap_or(32);
    let caches = question.caches(model)?;
    if caches.iter().any(|cache| cache.handler.is_state()) {
        return Err(ServeError::unread(TOKENS, "how states share bytes with so many tokens was not read", []));
    }
    let windows = caches.iter().filter_map(|cache| match cache.handler.growth() {
        Growth::Paged { window, .. } => Some(window.filter(|_| !keeps_all)),
        _ => None,
    });
    if windows.collect::<BTreeSet<_>>().len() > 1 {
        question.stated.retain(|said| said.key != "engine.max_total_tokens");
        question.notes.push(format!(
            "{TOKENS} is not None ({stated}) but we are operating on VSWA scheme. Ignoring the configuration."
        ));
        return Ok(longest);
    }
    let most = stated / block * block;
    if !(1..longest).contains(&most) {
        return Ok(longest);
    }
    question.stated.retain(|said| said.key != "max_seq_len");
    question.notes.push(format!("Adjusted max_seq_len to {most}"));
    Ok(most)
}

fn option<'a>(question: &'a Question, key: &str) -> Option<&'a str> {
    question.config.iter().rev().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::table::flags;

    #[test]
    fn a_file_of_options_says_what_flags_do_or_is_refused_by_its_key() {
        let engine: cacheplan_planner::EngineSpec = "tensorrt-llm".parse().unwrap();
        let known = flags(engine.engine, engine.version);
        let said = |key: &str, value: &str| settings(&[(key.to_owned(), value.to_owned())], engine.engine, &known);
        let of = |key: &str, value: &str| said(key, value).map(|(words, _)| words);
        let stated = |key: &str, value: &str| said(key, value).unwrap().1;
        assert_eq!(stated("kv_cache_config.tokens_per_block", "64")[0].key, "engine.block_size");
        assert_eq!(stated("kv_cache_config.dtype", "fp8")[0].value, "\"f8_e4m3\"");
        for (key, value) in [("kv_cache_config.dtype", "auto"), ("cuda_graph_config.enable_padding", "true")] {
            assert!(stated(key, value).is_empty(), "{key}");
        }
        assert_eq!(of(FRACTION, "0.8").unwrap(), ["--free_gpu_memory_fraction", "0.8"]);
        assert_eq!(of("max_batch_size", "8").unwrap(), ["--max_batch_size", "8"]);
        assert_eq!(of("enable_chunked_prefill", "true").unwrap(), ["--enable_chunked_prefill"]);
        assert!(of("enable_chunked_prefill", "false").unwrap().is_empty());
        let error = of("kv_cache_config.pool_ratio", "[1.0]").unwrap_err().to_string();
        assert!(error.contains("kv_cache_config.pool_ratio"), "{error}");
    }
}
