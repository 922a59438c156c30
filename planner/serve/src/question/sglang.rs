//! SGLang's own flags and defaults, as `arg_groups/memory_hook.py` of 0.5.23 has them.

mod drafts;
mod heads;
mod kernels;
mod pages;
mod rules;
mod share;
mod states;
mod variables;
mod weights;

use cacheplan_handlers::{DType, Kind, ResourceHandler};
use cacheplan_planner::engines::sglang::SLOTS_WITH_RADIX;
use cacheplan_planner::engines::{EnginePrediction, OfAttention, Version};
use cacheplan_planner::logs::failures::{NOTHING_LEFT_OF_SHARE, TOO_LONG_A_CONTEXT};
use cacheplan_planner::plan::LedgerItem;
use cacheplan_planner::{Memory, ModelCaches, PlanError, PlanRequest};

use super::calibrated::{self, Reads};
use super::rules::Case;
use super::{Limits, Question, above, dtype_named, overrides, quantization, radix};
use crate::error::ServeError;
use crate::flags::parse::Setting;
use crate::remedy::Remedy;

/// Read in 0.5.21, and not in 0.5.18: what llm-compressor calibrated is the dtype of caches.
const READS: Reads =
    Reads { modelopt: Version(0, 0, 0), compressor: Version(0, 5, 21), overrides: Version(0, 0, 0)..Version(0, 0, 0) };

/// The version whose rules were read.
const READ: Version = Version(0, 5, 23);

/// Tokens that a prompt is cut into; 0 and less leaves it whole.
pub(super) const CHUNK: &str = "--chunked-prefill-size";

/// Refuses what flags alone say.
pub(super) fn look_at_words(question: &Question) -> Result<(), ServeError> {
    rules::look_at_words(question)
}

pub(super) fn settle(question: &mut Question, model: &ModelCaches) -> Result<(Limits, bool), ServeError> {
    forget_nothings(question);
    let derived = overrides::longest(question, "--json-model-override-args", model)?;
    let stated = question.count("--context-length");
    if let (Some(stated), Some(derived)) = (stated, derived)
        && stated > derived
        && overrides::is_stated(model)
        && !question.has_on("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN")
    {
        let said = format!(
            "User-specified context_length ({stated}) {TOO_LONG_A_CONTEXT} ({derived}). To allow overriding this maximum, set the env var SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1"
        );
        return Err(question.refused(said, [Remedy::Set("--context-length", derived.to_string())]));
    }
    let max_seq_len = stated.or(derived).ok_or_else(|| question.without_length("--context-length"))?;
    let size = |name: &str| question.count(name).unwrap_or(1).max(1);
    let (tp, pp) = (size("--tp-size"), size("--pp-size"));
    let replicas = attention_replicas(question, tp)?;
    heads::divide(question, model, tp, replicas)?;
    heads::cut(question, model, tp, replicas)?;
    // Replicas of the whole have devices of their own, and of several nodes each has as many devices.
    let size = |name: &str| question.count(name).unwrap_or(1).max(1);
    let whole = if replicas == 1 { size("--dp-size") } else { 1 };
    question.use_devices(tp.saturating_mul(pp).saturating_mul(whole).div_ceil(size("--nnodes")))?;
    last_gpu(question, [tp, pp, whole])?;
    of_replica(question, replicas)?;
    role(question, model)?;
    let defaults = Defaults::of(question);
    let max_num_tokens = chunk(question, &defaults);
    let limits = Limits { max_seq_len, max_batch_size: None, max_num_tokens };
    question.default_of("engine.prefix_caching", true);
    without_prefixes(question, model)?;
    radix::settle(question, model)?;
    let case = Case::of(question, model, limits)?;
    rules::look(&case)?;
    variables::look(&case)?;
    states::look(&case)?;
    let cuts = question.flag(CHUNK).is_none_or(|setting| setting.whole().is_some_and(|tokens| tokens > 0));
    // The share is chosen before each replica takes its part of a step, and before several items are scored whole.
    let runs = share::Runs { step: max_num_tokens, cuts, ranks: tp.saturating_mul(pp), replicas };
    let scores = question.is_on(SCORES);
    let (max_num_tokens, cuts) = if scores { (whole_prompts(question), false) } else { (max_num_tokens, cuts) };
    let max_num_tokens = (max_num_tokens / replicas).max(1);
    pages::settle(question, model, cuts.then_some(max_num_tokens))?;
    states::settle(question)?;
    question.refuse_partition("SGLANG_PP_LAYER_PARTITION", "--pp-size")?;
    question.default_of("max_seq_len", max_seq_len);
    question.default_of("max_num_tokens", max_num_tokens);
    windows(question, model);
    dtype(question, model)?;
    blackwell(question, model)?;
    sparse_kernels(question, model)?;
    calibrated::settle(question, model, &READS);
    quantization::settle(question, model)?;
    memory(question, model, &defaults, runs, max_seq_len)?;
    let drafts = drafts::settle(question, model, replicas)?;
    let max_batch_size = stated_requests(question).map(|running| (running / replicas).max(1)).or(drafts);
    let max_batch_size = max_batch_size.or(of_compressed(model).map(|running| (running / replicas).max(1)));
    Ok((Limits { max_seq_len, max_batch_size, max_num_tokens }, false))
}

/// Requests that run of a model with compressed attention where nobody says (`apply_deepseek_v4_defaults`).
fn of_compressed(model: &ModelCaches) -> Option<u64> {
    model.info().model_type.starts_with("deepseek_v4").then_some(256)
}

/// Several items are scored at once, of whole prompts (`handle_multi_item_scoring`).
const SCORES: &str = "--enable-mis";

/// States that no prefixes are kept beside flags that turn them off, and that steps do not overlap where the flag says so.
fn without_prefixes(question: &mut Question, model: &ModelCaches) -> Result<(), ServeError> {
    let by_kernels = kernels::deterministic(question, model)? == Some("flashinfer");
    if question.is_on(SCORES) || by_kernels {
        question.put("engine.prefix_caching", false);
        let whose = if by_kernels { "kernels of FlashInfer that answer alike in any batch" } else { SCORES };
        question.notes.push(format!("the radix cache is off: {whose} keep no prefixes"));
    }
    if question.is_on("--disable-overlap-schedule") {
        question.default_of("engine.async_scheduling", false);
    }
    Ok(())
}

/// Refuses ranks whose GPU is none of those that there are (`launch_tensor_parallel_group`).
fn last_gpu(question: &Question, [tp, pp, replicas]: [u64; 3]) -> Result<(), ServeError> {
    const FIRST: &str = "--base-gpu-id";
    const STEP: &str = "--gpu-id-step";
    let nodes = question.count("--nnodes").unwrap_or(1).max(1);
    let (first, step) = (question.count(FIRST).unwrap_or(0), question.count(STEP).unwrap_or(1));
    let stages = (pp / nodes).max(1);
    let ranks = (tp / (nodes / pp).max(1)).max(1);
    let of_replicas = (replicas - 1).saturating_mul(tp).saturating_mul(pp).saturating_mul(step);
    let parts = [of_replicas, (stages - 1).saturating_mul(ranks), (ranks - 1).saturating_mul(step)];
    let last = parts.into_iter().fold(first, u64::saturating_add);
    let Some(there) = question.gpus().filter(|there| last >= *there) else { return Ok(()) };
    let said = format!("CUDA error: invalid device ordinal (the last rank takes GPU {last}, and it sees {there})");
    let stated = [FIRST, STEP].into_iter().filter(|flag| question.flag(flag).is_some());
    Err(question.refused(said, stated.map(Remedy::Remove)))
}

/// The compute capability, times ten, from which on there is bfloat16.
const BRAIN_FLOAT: u32 = 80;

/// The dtype that the model is run in, which keys and values follow where nothing else says (`_get_and_verify_dtype`).
fn dtype(question: &mut Question, model: &ModelCaches) -> Result<(), ServeError> {
    const FLAG: &str = "--dtype";
    let word = question.value(FLAG).map(str::to_lowercase);
    // Without bfloat16 whatever is said (`maybe_downgrade_dtype_for_legacy_gpu`).
    let has_none = capability(question, model).is_some_and(|capability| capability < BRAIN_FLOAT);
    let stated = word.as_deref().and_then(dtype_named);
    let Some(dtype) = (if has_none { Some(DType::F16) } else { stated }) else { return Ok(()) };
    // Only the share of a device depends on what weights take.
    let known = ["engine.cache_bytes", "engine.max_total_tokens", "memory.weights"];
    if dtype == DType::F32 && model.info().dtype != DType::F32 && !known.iter().any(|key| question.is_stated(key)) {
        return Err(ServeError::weights_unknown(FLAG, Remedy::Set(FLAG, "auto".into())));
    }
    if calibrated::is_taken(question, model, &READS) != Some(true) {
        question.default_of("dtypes.kv", format!("\"{dtype}\""));
    }
    Ok(())
}

/// Kernels of sparse attention that are told may lay latents out otherwise than those that the engine chooses, which are planned.
fn sparse_kernels(question: &Question, model: &ModelCaches) -> Result<(), ServeError> {
    let told = ["--dsa-prefill-backend", "--dsa-decode-backend"].map(|name| question.flag(name));
    let Some(request) = request(question, model).filter(|_| told.iter().any(Option::is_some)) else { return Ok(()) };
    let word = question.value("--kv-cache-dtype");
    let (info, caches, budget) = (model.info(), request.caches()?, request.budget()?);
    let of = |backend| {
        let told = OfAttention { word, backend, ..OfAttention::default() };
        question.engine.stored(info, &caches, &budget, told).map_err(PlanError::from)
    };
    let chosen = of(None)?;
    for setting in told.into_iter().flatten() {
        if of(Some(setting.value()))? != chosen {
            let flag = setting.flag.name;
            let why = format!("how the kernels of `{}` lay out latents of 8 bits is not planned", setting.value());
            let remedies = [Remedy::Remove(flag), Remedy::Set("--kv-cache-dtype", "bfloat16".into())];
            return Err(ServeError::unread(flag, why, remedies));
        }
    }
    Ok(())
}

/// Tokens of a prefill's step.
fn chunk(question: &mut Question, defaults: &Defaults) -> u64 {
    match question.flag(CHUNK).and_then(Setting::whole) {
        None => defaults.chunk,
        Some(tokens) if tokens > 0 => tokens.unsigned_abs(),
        Some(_) => whole_prompts(question),
    }
}

/// Tokens of a step of prompts that are not cut.
fn whole_prompts(question: &mut Question) -> u64 {
    let usual = question.default(PREFILLS).and_then(|tokens| tokens.parse().ok()).unwrap_or(PREFILL_TOKENS);
    let note = "prompts are not cut: a step of one that is longer than --max-prefill-tokens takes more";
    question.notes.push(note.into());
    question.count(PREFILLS).unwrap_or(usual)
}

const PREFILLS: &str = "--max-prefill-tokens";
/// Its default where its parser says none.
const PREFILL_TOKENS: u64 = 16_384;

/// Dtypes of caches that only Blackwell computes with (`arg_groups/kv_cache_hook.py`).
fn blackwell(question: &Question, model: &ModelCaches) -> Result<(), ServeError> {
    const FLAG: &str = "--kv-cache-dtype";
    let said = match question.value(FLAG) {
        Some("nvfp4") => {
            "--kv-cache-dtype=nvfp4 requires Blackwell SM100 or SM120. Use --kv-cache-dtype=fp4_mx_block16 for the block-size-16 FP4 recipe."
        }
        Some("mxfp8") => {
            "--kv-cache-dtype mxfp8 requires an SM100+ (Blackwell) GPU for the block-scaled operands used by the FA4 MXFP8 attention path."
        }
        _ => return Ok(()),
    };
    match capability(question, model) {
        Some(capability) if capability < 100 => {
            Err(question.refused(said, [Remedy::Set(FLAG, "fp8_e4m3".into()), Remedy::Remove(FLAG)]))
        }
        _ => Ok(()),
    }
}

/// What keeps every token of a window (`disable_hybrid_swa_memory`).
fn windows(question: &mut Question, model: &ModelCaches) {
    /// Read in 0.5.9, and not in 0.5.10: the kernels of data center Blackwell knew no windows of gpt-oss.
    const KNOWS_WINDOWS: Version = Version(0, 5, 10);
    let stated = ["--attention-backend", "--decode-attention-backend"].iter().find_map(|flag| question.flag(flag));
    let by_trtllm = match stated {
        Some(backend) => backend.value() == "trtllm_mha",
        None => capability(question, model).is_some_and(|found| found / 10 == 10),
    };
    let unknown = model.info().model_type == "gpt_oss" && question.engine.version < KNOWS_WINDOWS && by_trtllm;
    if unknown || question.is_on("--disable-hybrid-swa-memory") {
        question.default_of("engine.hybrid_kv_cache", false);
    }
}

fn capability(question: &Question, model: &ModelCaches) -> Option<u32> {
    request(question, model)?.budget().ok()?.engine.compute_capability
}

/// The model on the command's devices, before anything else is stated.
fn request(question: &Question, model: &ModelCaches) -> Option<PlanRequest> {
    Some(PlanRequest::of(model.clone()).for_engine(question.engine).with_devices(question.device()?.clone()))
}

/// Replicas of the attention among the ranks (`handle_data_parallelism`): each serves sequences of its own, and experts are divided over
/// all ranks. `--dp-size` counts them beside the older flag.
fn attention_replicas(question: &mut Question, tp: u64) -> Result<u64, ServeError> {
    let (flag, count) = stated_attention_replicas(question);
    if count == 1 {
        return Ok(1);
    }
    let replicas = question.count("--dp-size").unwrap_or(1);
    if flag == ATTENTION && replicas > 1 && !question.is_on(OF_ATTENTION) {
        let said = format!("--dp-size {replicas} with --attn-dp-size {count}");
        return Err(question.refused(said, [Remedy::Remove("--dp-size"), Remedy::Remove(ATTENTION)]));
    }
    if !tp.is_multiple_of(count) {
        let said = "tp_size must be divisible by attn_dp_size * attn_cp_size";
        return Err(question.refused(said, [Remedy::Set(flag, tp.to_string()), Remedy::Remove(flag)]));
    }
    question.put("parallel.tp", tp / count);
    question.put("parallel.dp", count);
    question.put("parallel.ep", tp);
    Ok(count)
}

const ATTENTION: &str = "--attn-dp-size";
const OF_ATTENTION: &str = "--enable-dp-attention";

/// How many of these a command states, and by which flag.
pub(super) fn stated_attention_replicas(question: &Question) -> (&'static str, u64) {
    let count = |flag: &'static str| (flag, question.count(flag).unwrap_or(1).max(1));
    match count(ATTENTION) {
        (_, 1) if question.is_on(OF_ATTENTION) => count("--dp-size"),
        stated => stated,
    }
}

pub(super) const RUNNING: &str = "--max-running-requests";
const SLOTS: &str = "--max-mamba-cache-size";
const ROLE: &str = "--disaggregation-mode";

/// Numbers that say nothing where they are 0: rules refuse them where they would count.
fn forget_nothings(question: &mut Question) {
    const KEYS: [(&str, &str); 3] = [
        ("--dp-size", "parallel.dp"),
        (SLOTS, "engine.state_slots"),
        ("--mamba-full-memory-ratio", "engine.state_ratio"),
    ];
    for (flag, key) in KEYS {
        if question.share(flag) == Some(0.0) {
            question.stated.retain(|stated| stated.key != key);
        }
    }
}

/// Requests that are stated to run; of nothing and less one.
fn stated_requests(question: &Question) -> Option<u64> {
    let running = question.flag(RUNNING).and_then(Setting::whole)?;
    Some(u64::try_from(running).unwrap_or(0))
}

/// Each replica of the attention has its part of what is stated of all (`resolve_max_num_reqs`, `handle_max_mamba_cache`).
fn of_replica(question: &mut Question, replicas: u64) -> Result<(), ServeError> {
    let running = stated_requests(question);
    if replicas == 1 && running != Some(0) {
        return Ok(());
    }
    if let Some(running) = running {
        question.put("max_batch_size", (running / replicas).max(1));
    }
    match question.count(SLOTS).filter(|slots| *slots > 0).map(|slots| slots / replicas) {
        Some(0) => {
            let said = "Not enough GPU memory for hybrid (mamba/linear-attention) state cache. Computed max_mamba_cache_size=0";
            Err(question.refused(said, [Remedy::Remove(SLOTS)]))
        }
        Some(slots) => {
            question.put("engine.state_slots", slots);
            Ok(())
        }
        None => Ok(()),
    }
}

/// The most sequences of a stage's step.
pub(crate) const MICRO_BATCH: &str = "--pp-max-micro-batch-size";

/// The most sequences that run at once, where steps of stages have room for fewer (`get_num_allocatable_reqs`).
pub(super) fn most_running(question: &Question) -> Option<u64> {
    Some(question.count(MICRO_BATCH)?.saturating_mul(question.count("--pp-size").unwrap_or(1).max(1)))
}

/// Read in 0.5.23 alone, so that it holds from there on.
const PARTS: Version = READ;

/// Read in 0.5.14, and not in 0.5.13: what is stated is no more than every second token lets it.
const BY_TOKENS: Version = Version(0, 5, 14);

/// SGLang's `max_running_requests`: what is stated, else what its tokens give; and no more than its slots for states do.
pub(crate) fn running(question: &Question, limits: &Limits, predicted: &EnginePrediction) -> Option<u64> {
    if question.engine.engine.name() != "sglang" {
        return None;
    }
    let by_tokens = || {
        let of_length = u128::from(predicted.tokens?) * 512 / u128::from(limits.max_seq_len.max(1));
        let of_length = u64::try_from(of_length).unwrap_or(u64::MAX).clamp(2048, 4096);
        Some(of_length.min(predicted.tokens? / 2))
    };
    // Of what is stated it takes no more than every second token lets it.
    let of_tokens =
        predicted.tokens.filter(|_| question.engine.version >= BY_TOKENS).map_or(u64::MAX, |tokens| tokens / 2);
    let most = limits.max_batch_size.map(|stated| stated.min(of_tokens)).or_else(by_tokens)?;
    let Some(slots) = predicted.state_slots else { return Some(most) };
    let slots_each = question.slots_per_request()?;
    Some(most.min(slots / slots_each))
}

/// Slots for states of a server that decodes what others prefilled: of those that run and of those that are being moved to it, where
/// that is more than it divided its bytes for (`HybridMambaDecodeReqToTokenPool`).
pub(crate) fn slots_with_moved(question: &Question, limits: &Limits, running: Option<u64>, slots: u64) -> u64 {
    /// Batches up to this have so many times as many more.
    const SMALL: u64 = 32;
    const TIMES: u64 = 2;
    if question.value(ROLE) != Some("decode") || question.engine.version < PARTS {
        return slots;
    }
    let of_batch = limits.max_batch_size.filter(|batch| *batch <= SMALL).map_or(0, |batch| batch * TIMES);
    let moved = question.count("--disaggregation-decode-extra-slots").unwrap_or(of_batch);
    // One of its own, and those to which states are copied while steps overlap.
    let each = question.slots_per_request().map_or(1, |each| each.saturating_sub(SLOTS_WITH_RADIX) + 1);
    slots.max(running.unwrap_or(0).saturating_add(moved).saturating_mul(each))
}

/// A server that only decodes keeps no prefixes unless it is told to (`handle_pd_disaggregation`). One that only prefills keeps no states
/// of drafts.
fn role(question: &mut Question, model: &ModelCaches) -> Result<(), ServeError> {
    let decodes = question.value(ROLE) == Some("decode");
    let drafts = question.flag("--speculative-algorithm").is_some() && question.engine.version >= PARTS;
    let has_states = question.caches(model)?.iter().any(|cache| ResourceHandler::is_state(&cache.handler));
    if question.value(ROLE) == Some("prefill") && drafts && has_states {
        let why = "a server that prefills keeps no states of drafts, and what it has for others then is not planned";
        return Err(ServeError::unread(ROLE, why, [Remedy::Remove("--speculative-algorithm"), Remedy::Remove(ROLE)]));
    }
    let keeps = question.is_on("--disaggregation-decode-enable-radix-cache");
    if decodes {
        question.put("engine.prefix_caching", keeps);
    }
    platform(question, model)
}

/// Where it runs. A CPU has other kernels (`handle_cpu_backends` of 0.5.14 and 0.5.23) and the same pools of keys and values.
fn platform(question: &Question, model: &ModelCaches) -> Result<(), ServeError> {
    let device = question.value("--device").unwrap_or("cuda");
    let is_known = ["engine.cache_bytes", "engine.max_total_tokens"].iter().any(|key| question.is_stated(key));
    let caches = question.caches(model)?;
    let why = match device {
        "cuda" | "gpu" => return Ok(()),
        "cpu" if !is_known => {
            "what a host leaves for caches was not read; state --max-total-tokens, or --cache-bytes".into()
        }
        "cpu" if caches.iter().all(|cache| *cache.handler.kind() == Kind::KvPaged) => return Ok(()),
        _ => format!("rules of `{device}` were not read"),
    };
    Err(ServeError::unread("--device", why, [Remedy::Remove("--device")]))
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
fn memory(
    question: &mut Question,
    model: &ModelCaches,
    defaults: &Defaults,
    runs: share::Runs,
    longest: u64,
) -> Result<(), ServeError> {
    const FLAG: &str = "--mem-fraction-static";
    let stated = question.share(FLAG);
    if let Some(stated) = stated.filter(|stated| !(*stated > 0.0 && *stated < 1.0)) {
        let percent = (stated > 1.0 && stated < 100.0).then(|| Remedy::Set(FLAG, (stated / 100.0).to_string()));
        let said = format!("mem_fraction_static must be between 0 and 1 (it is {stated})");
        return Err(question.refused(said, percent.into_iter().chain([Remedy::Remove(FLAG)])));
    }
    if question.is_stated("engine.cache_bytes") {
        return Ok(());
    }
    let Some(mib) = question.device().map(|device| (device.total_bytes >> 20) as f64) else { return Ok(()) };
    let usual = share::usual(question, model, defaults, &runs, mib);
    // Also of a share that is stated, and no more than the heuristic's.
    question.leaves_room = stated.is_none_or(|stated| usual.as_ref().is_ok_and(|usual| stated <= *usual));
    let share = match stated {
        Some(stated) => stated,
        None => usual?,
    };
    let share = if kernels::takes_of_share(question, model, longest)? {
        question
            .notes
            .push("AMD's kernels of attention take 0.15 of the share, as the longest sequence is over 8192".into());
        share * 0.85
    } else {
        share
    };
    let images = share::of_images(question, model, mib);
    if images > 0.0 {
        question.notes.push(format!("{images} MiB of the share are kept for what encoders give and are given"));
    }
    let share = share - images / mib;
    if share <= 0.0 {
        let smaller = ["--chunked-prefill-size", "--cuda-graph-max-bs"].map(Remedy::Remove);
        return Err(
            question.refused(NOTHING_LEFT_OF_SHARE, smaller.into_iter().chain([Remedy::Set(FLAG, "0.8".into())]))
        );
    }
    if stated.is_none() {
        question.notes.push("mem_fraction_static is the heuristic's that leaves room for graphs; sizing after graphs are captured gives more".into());
    }
    question.share_of_device(share);
    question.default_of("memory.of", "total");
    question.default_of("memory.activations", "0B");
    question.default_of("memory.graphs", "0B");
    Ok(())
}

/// What it needs of a device outside the share for weights and caches, at least and at most, beside what that leaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outside {
    pub(crate) least: u64,
    pub(crate) most: u64,
    pub(crate) room: u64,
}

/// What is stated of steps and graphs, taken out of what stands above the command: the share does not hold them.
pub(super) fn beside_share(question: &mut Question) -> Result<Memory, ServeError> {
    above::taken(question, |key| matches!(key, "memory.activations" | "memory.graphs"))
}

/// Where the share is more than the heuristic's, whether the rest holds steps and graphs, for which that leaves room.
pub(super) fn outside(
    question: &Question,
    request: &PlanRequest,
    stated: &Memory,
) -> Result<Option<Outside>, PlanError> {
    let budget = &request.config().budget;
    let fraction = budget.memory.as_ref().and_then(|memory| memory.fraction);
    let is_tight = !question.leaves_room && budget.engine.cache_bytes.is_none();
    let (Some(fraction), Some(device), true) = (fraction, question.device(), is_tight) else { return Ok(None) };
    let captures = !question.is_on("--disable-cuda-graph");
    let whole = request.changed(|budget| {
        if let Some(memory) = &mut budget.memory {
            memory.activations = stated.activations;
            memory.graphs = stated.graphs.or(memory.graphs.filter(|_| !captures));
        }
    });
    let lines = whole.beside_caches(question.engine)?;
    let outside = lines.iter().filter(|line| matches!(line.name, LedgerItem::Activations | LedgerItem::Graphs));
    let (least, most) = outside.fold((0u64, 0u64), |(least, most), line| {
        let (few, many) =
            (line.bytes.saturating_sub(line.uncertain_bytes), line.bytes.saturating_add(line.uncertain_bytes));
        (least.saturating_add(few), most.saturating_add(many))
    });
    let total = device.total_bytes;
    Ok(Some(Outside { least, most, room: total.saturating_sub(fraction.of(total)) }))
}
