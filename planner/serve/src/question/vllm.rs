//! vLLM's own flags and defaults, as `engine/arg_utils.py` and `config/` of each version that was read have them.

use std::ops::Range;

use cacheplan_handlers::{Kind, ResourceHandler};
use cacheplan_planner::engines::Version;
use cacheplan_planner::{ByteSize, ModelCaches, PlanRequest};
use serde_json::Value;

use super::calibrated::{self, Reads};
use super::{Limits, Question, connectors, overrides, quantization, speculation};
use crate::error::ServeError;
use crate::flags::parse::Setting;
use crate::flags::values::{human_int, is_auto};
use crate::remedy::Remedy;

/// The first read version that has defaults of its own for GPUs of 160 GiB.
const LARGE_DEVICES: Version = Version(0, 28, 0);
/// The first read version in which hybrids keep prefixes where nobody says.
const HYBRIDS_KEEP_PREFIXES: Version = Version(0, 28, 0);
/// Read in 0.19.0, and not in 0.20.0: events of caches turn the grouping of layers off.
const EVENTS_WITH_GROUPS: Version = Version(0, 20, 0);
/// Read in 0.10.2 to 0.12.0, and not in 0.9.1 and 0.14.0: so do chunks of local attention, unless a variable keeps it on.
const CHUNKS_WITHOUT_GROUPS: Range<Version> = Version(0, 10, 0)..Version(0, 14, 0);
/// Read in 0.14.0, and not in 0.13.0: what ModelOpt calibrated is the dtype of caches. Read in 0.15.1, and not in 0.14.0: so is what
/// llm-compressor did.
const READS: Reads = Reads { modelopt: Version(0, 14, 0), compressor: Version(0, 15, 0) };
/// `_FLOAT16_NOT_SUPPORTED_MODELS` of vllm-project/vllm@18ec662, a build of about this version.
const WITHOUT_FLOAT16: [&str; 5] = ["gemma2", "gemma3", "gemma3_text", "plamo2", "glm4"];
const REFUSES_FLOAT16: Version = Version(0, 12, 0);
/// What is taken of a device before anything is allocated, at least: 21.84 of an L4's 22.03 GiB were free, the most of public starts.
const TAKEN: u64 = (2203 - 2184) * (1 << 30) / 100;

/// Merged after 0.18.0 (vllm-project/vllm#38270): graphs of decoding are captured only where every sequence has a block for its state.
const CAPTURES_WITH_STATES: Version = Version(0, 19, 0);

/// From here on graphs are estimated and left free before caches are sized, as its own message says; before they came on top.
const COUNTS_GRAPHS: Version = Version(0, 21, 0);

pub(super) fn settle(question: &mut Question, model: &ModelCaches) -> Result<(Limits, bool), ServeError> {
    let (max_seq_len, fits_length) = length(question, model)?;
    let (has_states, has_pages) = kinds(question, model)?;
    if question.env.get("VLLM_USE_V1").is_some_and(|value| value == "0") {
        if has_states {
            let why = "the states of vLLM's first engine were not read".to_owned();
            return Err(ServeError::NotHandled { flag: "VLLM_USE_V1".into(), why, remedies: Vec::new() });
        }
        // It has one kind of block.
        question.default_of("engine.hybrid_kv_cache", false);
    }
    parallel(question, model)?;
    let batch = batch(question, max_seq_len)?;
    question.default_of("max_seq_len", max_seq_len);
    question.default_of("max_num_tokens", batch.max_num_tokens);
    question.default_of("max_batch_size", batch.max_batch_size.unwrap_or(1));
    let keeps = has_pages && (!has_states || question.engine.version >= HYBRIDS_KEEP_PREFIXES);
    question.default_of("engine.prefix_caching", keeps);
    state_blocks(question, max_seq_len)?;
    class(question)?;
    grouping(question, model);
    connectors::settle(question, model)?;
    dtype(question, model)?;
    calibrated::settle(question, model, READS);
    memory(question)?;
    speculation::settle(question)?;
    quantization::settle(question, model)?;
    if question.flag("--disable-hybrid-kv-cache-manager").is_some_and(|setting| setting.on) {
        question.default_of("engine.hybrid_kv_cache", false);
    }
    let backend = question.flag("--attention-backend").map(|setting| setting.value().to_owned());
    if let Some(backend) = backend.or_else(|| question.env.get("VLLM_ATTENTION_BACKEND").cloned()) {
        question.notes.push(format!("blocks are those of the kernels that vLLM chooses; {backend} may read others"));
    }
    Ok((Limits { max_seq_len, ..batch }, fits_length))
}

/// Blocks that there are at least where it starts: one for the state of each sequence whose decoding is captured as a whole. What drafts
/// may capture otherwise, which was not read.
pub(super) fn least_blocks(question: &Question, limits: &Limits) -> u64 {
    let captures = || {
        let Some(setting) = question.flag("--compilation-config") else { return true };
        let mode = || serde_json::from_str::<Value>(setting.value()).ok()?.get("cudagraph_mode").cloned();
        mode().is_none_or(|mode| mode.as_str().is_some_and(|mode| mode.to_uppercase().starts_with("FULL")))
    };
    let eager = question.flag("--enforce-eager").is_some_and(|setting| setting.on)
        || question.flag("--optimization-level").is_some_and(|setting| setting.value() == "0");
    let drafts = question.flag("--speculative-config").is_some();
    let asks = question.engine.version >= CAPTURES_WITH_STATES && !eager && !drafts && captures();
    limits.max_batch_size.filter(|_| asks).unwrap_or(0)
}

/// `fp8_ds_mla` is a layout of sparse latents alone, and planned where `fp8` is the same: not on Blackwell.
pub(super) fn packed(question: &Question, request: &PlanRequest) -> Result<(), ServeError> {
    const FLAG: &str = "--kv-cache-dtype";
    if question.flag(FLAG).is_none_or(|setting| setting.value() != "fp8_ds_mla") {
        return Ok(());
    }
    let is_sparse = request.caches()?.iter().any(|cache| *cache.handler.kind() == Kind::IndexKey);
    let on_blackwell = request.budget()?.engine.compute_capability.is_some_and(|it| (100..110).contains(&it));
    if is_sparse && !on_blackwell {
        return Ok(());
    }
    let why = "caches in `fp8_ds_mla` were not read for this model and device".to_owned();
    Err(ServeError::NotHandled { flag: FLAG.into(), why, remedies: vec![Remedy::Set(FLAG, "auto".into())] })
}

/// `--dtype bfloat16` on a card that has none.
pub(super) fn bfloat16(question: &Question, request: &PlanRequest) -> Result<(), ServeError> {
    const FLAG: &str = "--dtype";
    let capability = request.budget()?.engine.compute_capability.filter(|capability| *capability < 80);
    let (Some(capability), Some(device)) = (capability, question.device()) else { return Ok(()) };
    if question.flag(FLAG).is_none_or(|setting| setting.value() != "bfloat16") {
        return Ok(());
    }
    let said = format!(
        "Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your {} GPU has compute capability {}.{}. You can use float16 instead by explicitly setting the `dtype` flag in CLI, for example: --dtype=half.",
        device.name,
        capability / 10,
        capability % 10
    );
    Err(question.refused(said, [Remedy::Set(FLAG, "half".into())]))
}

/// What turned the grouping of layers off in older versions.
fn grouping(question: &mut Question, model: &ModelCaches) {
    let version = question.engine.version;
    let publishes = question.flag("--kv-events-config").is_some() && version < EVENTS_WITH_GROUPS;
    let kept = question.env.get("VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE").is_some_and(|value| value == "1");
    let chunks = model.info().model_type.starts_with("llama4") && CHUNKS_WITHOUT_GROUPS.contains(&version) && !kept;
    if publishes || chunks {
        question.default_of("engine.hybrid_kv_cache", false);
    }
}

/// `--mamba-block-size` is one for prefixes, and that of attention stands for it from then on.
fn state_blocks(question: &Question, max_seq_len: u64) -> Result<(), ServeError> {
    const FLAG: &str = "--mamba-block-size";
    let Some(block) = question.count(FLAG) else { return Ok(()) };
    let stated = |key: &str| question.stated.iter().rev().find(|stated| stated.key == key).map(|stated| &*stated.value);
    if block != max_seq_len && stated("engine.prefix_caching") != Some("true") {
        let said = "--mamba-block-size can only be set with --enable-prefix-caching";
        return Err(
            question.refused(said, [Remedy::Remove(FLAG), Remedy::Set("--enable-prefix-caching", String::new())])
        );
    }
    if question.flag("--mamba-cache-mode").is_some_and(|setting| setting.value() == "all") {
        let why = "blocks of states in mode `all` are planned for the model's own chunk alone".to_owned();
        return Err(ServeError::NotHandled { flag: FLAG.into(), why, remedies: vec![Remedy::Remove(FLAG)] });
    }
    Ok(())
}

/// What the model runs as: only one that generates, in vLLM's own class, is planned.
fn class(question: &Question) -> Result<(), ServeError> {
    for (flag, own) in [("--runner", "generate"), ("--task", "generate"), ("--model-impl", "vllm")] {
        let Some(word) = question.flag(flag).map(Setting::value) else { continue };
        if word != own && word != "auto" {
            let why = format!("what a model that runs as `{word}` keeps was not read");
            return Err(ServeError::NotHandled { flag: flag.into(), why, remedies: vec![Remedy::Remove(flag)] });
        }
    }
    Ok(())
}

/// The longest sequence, and whether vLLM is to find it.
fn length(question: &Question, model: &ModelCaches) -> Result<(u64, bool), ServeError> {
    const FLAG: &str = "--max-model-len";
    let derived = overrides::longest(question, "--hf-overrides", model)?;
    let stated = question.flag(FLAG).map(|setting| setting.value().to_owned());
    let auto = stated.as_deref().is_some_and(is_auto);
    match (stated.as_deref().filter(|_| !auto).and_then(human_int), derived) {
        (Some(0), _) => Err(question.refused("max_model_len must be at least 1", [Remedy::Remove(FLAG)])),
        (Some(stated), Some(derived)) if stated > derived && overrides::is_stated(model) && !allows_long(question) => {
            let said = format!(
                "User-specified max_model_len ({stated}) is greater than the derived max_model_len (max_position_embeddings={derived} or model_max_length=None in model's config.json). To allow overriding this maximum, set the env var VLLM_ALLOW_LONG_MAX_MODEL_LEN=1."
            );
            Err(question.refused(said, [Remedy::Set(FLAG, derived.to_string())]))
        }
        (Some(stated), _) => Ok((stated, false)),
        (None, Some(derived)) => Ok((overrides::unscaled(question, model).unwrap_or(derived), auto)),
        (None, None) => Err(question.refused(
            "the model states no longest sequence; state --max-model-len",
            [Remedy::Set(FLAG, "4096".into())],
        )),
    }
}

fn allows_long(question: &Question) -> bool {
    question
        .env
        .get("VLLM_ALLOW_LONG_MAX_MODEL_LEN")
        .is_some_and(|value| ["1", "true"].contains(&value.to_lowercase().trim()))
}

/// Whether the model keeps states, and whether it keeps pages.
fn kinds(question: &Question, model: &ModelCaches) -> Result<(bool, bool), ServeError> {
    let caches = cacheplan_planner::PlanRequest::of(model.clone()).for_engine(question.engine).caches()?;
    let has = |of: fn(&ResourceHandler) -> bool| caches.iter().any(|resource| of(&resource.handler));
    Ok((has(ResourceHandler::is_state), has(ResourceHandler::is_paged)))
}

/// Sizes that divide the model, and the devices that they take.
fn parallel(question: &mut Question, model: &ModelCaches) -> Result<(), ServeError> {
    let size = |name: &str| question.count(name).unwrap_or(1);
    let (tp, pp, dp) = (size("--tensor-parallel-size"), size("--pipeline-parallel-size"), size("--data-parallel-size"));
    let zero = [("--tensor-parallel-size", tp), ("--pipeline-parallel-size", pp), ("--data-parallel-size", dp)];
    if let Some((flag, _)) = zero.into_iter().find(|(_, size)| *size == 0) {
        let said = format!("{} must be at least 1", flag.trim_start_matches('-'));
        return Err(question.refused(said, [Remedy::Set(flag, "1".into())]));
    }
    let heads = model.model().and_then(|model| model.config.get("num_attention_heads")).and_then(Value::as_u64);
    if let Some(heads) = heads.filter(|heads| !heads.is_multiple_of(tp)) {
        let said =
            format!("Total number of attention heads ({heads}) must be divisible by tensor parallel size ({tp}).");
        let fewer = (1..tp).rev().filter(|fewer| heads.is_multiple_of(*fewer));
        let remedies: Vec<Remedy> =
            fewer.take(3).map(|fewer| Remedy::Set("--tensor-parallel-size", fewer.to_string())).collect();
        return Err(question.refused(said, remedies));
    }
    // Ranks with experts of their own hold the attention of their replica's sequences.
    if question.flag("--enable-expert-parallel").is_some_and(|setting| setting.on) && tp.saturating_mul(dp) > 1 {
        question.stated.retain(|stated| stated.key != "parallel.ep");
        question.default_of("parallel.ep", tp.saturating_mul(dp));
    } else {
        question.stated.retain(|stated| stated.key != "parallel.ep");
    }
    // Of several nodes each has as many devices, and each may run a part of the replicas.
    let local = question.count("--data-parallel-size-local").unwrap_or(dp);
    let nodes = question.count("--nnodes").unwrap_or(1).max(1);
    question.use_devices(tp.saturating_mul(pp).saturating_mul(local).div_ceil(nodes))
}

/// `max_num_seqs` and `max_num_batched_tokens`, by the GPU and for a server.
fn batch(question: &Question, max_seq_len: u64) -> Result<Limits, ServeError> {
    const GIB: u64 = 1 << 30;
    let device = question.device();
    // A device that is not named has at least the bytes that its caches are said to have.
    let bytes = device.map_or(question.cache_bytes, |device| device.total_bytes);
    let is_a100 = device.is_some_and(|device| device.name.to_lowercase().contains("a100"));
    let (mut tokens, mut sequences) = match bytes {
        _ if bytes >= 160 * GIB && question.engine.version >= LARGE_DEVICES => (16_384, 1024),
        _ if bytes >= 70 * GIB && !is_a100 => (8192, 1024),
        _ => (2048, 256),
    };
    if question.flag("--performance-mode").is_some_and(|setting| setting.value() == "throughput") {
        (tokens, sequences) = (2 * tokens, 2 * sequences);
    }
    let stated_tokens = question.count("--max-num-batched-tokens");
    let stated_sequences = question.count("--max-num-seqs");
    sequences = stated_sequences.unwrap_or(sequences);
    let chunked = question.flag("--enable-chunked-prefill").is_none_or(|setting| setting.on);
    tokens = match stated_tokens {
        Some(tokens) => tokens,
        None => {
            let tokens = if chunked { tokens } else { tokens.max(max_seq_len) };
            tokens.min(sequences.saturating_mul(max_seq_len))
        }
    };
    if stated_sequences.is_none() {
        sequences = sequences.min(tokens);
    }
    if sequences == 0 || tokens == 0 {
        let flag = if sequences == 0 { "--max-num-seqs" } else { "--max-num-batched-tokens" };
        return Err(question.refused("Input should be greater than or equal to 1", [Remedy::Remove(flag)]));
    }
    if !chunked && tokens < max_seq_len {
        let said = format!(
            "max_num_batched_tokens ({tokens}) is smaller than max_model_len ({max_seq_len}). This effectively limits the maximum sequence length to max_num_batched_tokens and makes vLLM reject longer sequences. Please increase max_num_batched_tokens or decrease max_model_len."
        );
        let remedies = [
            Remedy::Set("--max-num-batched-tokens", max_seq_len.to_string()),
            Remedy::Remove("--enable-chunked-prefill"),
        ];
        return Err(question.refused(said, remedies));
    }
    if tokens < sequences {
        let said =
            format!("max_num_batched_tokens ({tokens}) must be greater than or equal to max_num_seqs ({sequences}).");
        let remedies = [
            Remedy::Set("--max-num-seqs", tokens.to_string()),
            Remedy::Set("--max-num-batched-tokens", sequences.to_string()),
        ];
        return Err(question.refused(said, remedies));
    }
    Ok(Limits { max_seq_len, max_batch_size: Some(sequences), max_num_tokens: tokens })
}

/// The dtype that the model is run in, which caches follow where nothing else says.
fn dtype(question: &mut Question, model: &ModelCaches) -> Result<(), ServeError> {
    let Some(word) = question.flag("--dtype").map(|setting| setting.value().to_owned()) else { return Ok(()) };
    let name = match word.as_str() {
        "auto" => return Ok(()),
        "half" | "float16" => "f16",
        "bfloat16" => "bf16",
        _ => "f32",
    };
    let model_type = &*model.info().model_type;
    if name == "f16" && WITHOUT_FLOAT16.contains(&model_type) && question.engine.version >= REFUSES_FLOAT16 {
        let said = format!(
            "The model type '{model_type}' does not support float16. Reason: Numerical instability. Please use bfloat16 or float32 instead."
        );
        return Err(question.refused(said, [Remedy::Set("--dtype", "bfloat16".into())]));
    }
    // `auto` of caches is what the checkpoint says of them first.
    let kv = Some("dtypes.kv").filter(|_| calibrated::is_taken(question, model, READS) != Some(true));
    for path in kv.into_iter().chain(["dtypes.conv"]) {
        question.default_of(path, format!("\"{name}\""));
    }
    if name == "f32" && kinds(question, model)?.0 {
        question.default_of("dtypes.ssm", "\"f32\"");
    }
    if name == "f32"
        && model.info().dtype.name() != "f32"
        && !question.is_stated("engine.cache_bytes")
        && !question.is_stated("memory.weights")
    {
        let why = "it changes what weights take; state that with --weights, or the bytes of caches with --cache-bytes"
            .to_owned();
        return Err(ServeError::NotHandled {
            flag: "--dtype".into(),
            why,
            remedies: vec![Remedy::Set("--dtype", "auto".into())],
        });
    }
    Ok(())
}

/// The share of the device, or the bytes that are stated.
fn memory(question: &mut Question) -> Result<(), ServeError> {
    const FLAG: &str = "--gpu-memory-utilization";
    let share = question.flag(FLAG).map(|setting| setting.value().to_owned());
    let usual = question.default(FLAG).unwrap_or("0.9").to_owned();
    let number: f64 = share.as_deref().unwrap_or(&usual).parse().unwrap_or(0.9);
    if !(number > 0.0 && number <= 1.0) {
        let said = format!(
            "gpu_memory_utilization: Input should be greater than 0 and less than or equal to 1 (it is {number})"
        );
        let percent = (number > 1.0 && number <= 100.0).then(|| Remedy::Set(FLAG, (number / 100.0).to_string()));
        return Err(question.refused(said, percent.into_iter().chain([Remedy::Set(FLAG, usual)])));
    }
    let Some(total) = question.device().map(|device| device.total_bytes) else { return Ok(()) };
    const BYTES: &str = "--kv-cache-memory-bytes";
    if let Some(bytes) = question.count(BYTES).filter(|bytes| *bytes > total) {
        let (bytes, total) = (ByteSize(bytes), ByteSize(total));
        let said = format!("CUDA out of memory: {BYTES} states {bytes}, and GPU 0 has a total capacity of {total}");
        return Err(question.refused(said, [Remedy::Remove(BYTES)]));
    }
    if question.is_stated("engine.cache_bytes") {
        return Ok(());
    }
    if number * total as f64 > total.saturating_sub(TAKEN) as f64 {
        let said = format!(
            "Free memory on device cuda:0 on startup is less than desired GPU memory utilization ({number}, {:.2} GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.",
            number * total as f64 / f64::from(1 << 30)
        );
        return Err(question.refused(said, [Remedy::Set(FLAG, "0.95".into())]));
    }
    question.default_of("memory.fraction", (number * 1e6).round() / 1e6);
    question.default_of("memory.of", "total");
    let eager = question.flag("--enforce-eager").is_some_and(|setting| setting.on);
    let by_variable = question.env.get("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS").map(|value| value.trim() != "0");
    let counts_graphs = by_variable.unwrap_or(question.engine.version >= COUNTS_GRAPHS);
    if eager || !counts_graphs {
        question.default_of("memory.graphs", "0B");
    }
    if let Some(size) = question.flag("--kv-offloading-size").and_then(|setting| setting.value().parse::<f64>().ok()) {
        question
            .notes
            .push(format!("{size} GiB of host memory are beside these caches and hold none of the sequences that run"));
    }
    Ok(())
}
