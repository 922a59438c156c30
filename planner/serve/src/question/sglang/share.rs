//! The share of a device for weights and caches where nobody states it, from all that decides it: `handle_gpu_memory_settings` and what it
//! asks of `cuda_graph_hook.py`. What is in MiB there is in MiB here.

use cacheplan_handlers::Kind;
use cacheplan_planner::ModelCaches;
use cacheplan_planner::engines::Version;
use serde_json::{Map, Value};

use super::super::Question;
use super::super::rules::lists;
use super::{Defaults, READ, ROLE, capability, stated_requests};
use crate::error::ServeError;
use crate::flags::parse::Setting;

/// Read in 0.5.18, and not in 0.5.12: each phase reserves its own graphs, and a server that decodes no prompt's step.
const RESERVES_BY_PHASE: Version = Version(0, 5, 18);
const GIB: f64 = 1024.0;
const DRAFTED: &str = "--speculative-num-draft-tokens";

/// What a command runs on and in.
#[derive(Clone, Copy)]
pub(super) struct Runs {
    /// Tokens of a prompt's step on all replicas.
    pub(super) step: u64,
    /// Whether prompts are cut.
    pub(super) cuts: bool,
    pub(super) ranks: u64,
    pub(super) replicas: u64,
}

/// The share of a device of so much memory that the engine chooses.
pub(super) fn usual(
    question: &Question,
    model: &ModelCaches,
    defaults: &Defaults,
    runs: &Runs,
    mib: f64,
) -> Result<f64, ServeError> {
    let reserved = reserved(question, model, defaults, runs, mib)?;
    // Halves are rounded as Python does, by what the number is and not what it would be.
    let share = (mib - reserved) / mib;
    let share = format!("{share:.3}").parse().unwrap_or(share);
    Ok(share * beside_encoder(question, model))
}

fn reserved(
    question: &Question,
    model: &ModelCaches,
    defaults: &Defaults,
    runs: &Runs,
    mib: f64,
) -> Result<f64, ServeError> {
    let (decode, prefill) = (Phase::of(question, "decode")?, Phase::of(question, "prefill")?);
    let (decodes, prefills) = (question.value(ROLE) == Some("decode"), question.value(ROLE) == Some("prefill"));
    let by_phase = question.engine.version >= RESERVES_BY_PHASE;
    let largest = largest_batch(question, model, defaults, &decode, mib);
    let step = match by_phase && decodes {
        true => {
            let running = stated_requests(question).filter(|running| *running > 0).unwrap_or(largest).max(1);
            running.saturating_mul(question.count(DRAFTED).filter(|tokens| *tokens > 0).unwrap_or(1))
        }
        false => runs.step,
    };
    let captures = decode.backend() != Some("disabled") && !prefills;
    let mut reserved = 512.0 + step.max(2048) as f64 * 1.5 + runs.ranks as f64 / 8.0 * GIB;
    if captures {
        reserved += largest as f64 * 2.0;
    }
    // They pad what is captured, and later what is not too.
    let pads = if by_phase { !prefills } else { captures };
    if runs.replicas > 1 && pads {
        reserved += largest as f64 * runs.replicas as f64 * if largest > 300 { 4.5 } else { 3.0 };
    }
    let deep = question.value(ALL_TO_ALL) == Some("deepep");
    let backend = prefill_backend(question, model, &prefill).filter(|_| by_phase && !decodes);
    if let Some(backend) = backend {
        let deep = deep && backend == BREAKABLE;
        reserved += match keeps_latents(question, model)? {
            true => 1.5 * GIB,
            false => prefill_sizes(question, model, &prefill, runs, deep) as f64 * 8.0,
        };
        reserved += if deep { GIB } else { 0.0 };
    }
    if mib > 60.0 * GIB {
        reserved = reserved.max(10.0 * GIB);
    }
    Ok(if deep && captures && by_phase { reserved + 2.0 * GIB } else { reserved })
}

/// Graphs of one phase, as a command states them: by the object, else by flags.
struct Phase<'a> {
    question: &'a Question,
    name: &'static str,
    object: Map<String, Value>,
}

impl<'a> Phase<'a> {
    fn of(question: &'a Question, name: &'static str) -> Result<Self, ServeError> {
        let object = question.object("--cuda-graph-config")?;
        let object = object.and_then(|phases| phases.get(name)?.as_object().cloned()).unwrap_or_default();
        Ok(Self { question, name, object })
    }

    fn flag(&self, key: &str) -> Option<&'a Setting> {
        self.question.flag(&format!("--cuda-graph-{key}-{}", self.name))
    }

    /// What captures it; none where nobody says.
    fn backend(&self) -> Option<&str> {
        let stated = self.object.get("backend").and_then(Value::as_str);
        let off = [format!("--disable-{}-cuda-graph", self.name), "--disable-cuda-graph".into()];
        let off = off.iter().any(|flag| self.question.is_on(flag)).then_some("disabled");
        stated.or_else(|| self.flag("backend").map(Setting::value)).or(off)
    }

    /// The sizes that it is captured for.
    fn sizes(&self) -> Option<Vec<u64>> {
        if let Some(sizes) = self.object.get("bs").and_then(Value::as_array) {
            return Some(sizes.iter().filter_map(Value::as_u64).collect());
        }
        let older = self.question.flag("--cuda-graph-bs").filter(|_| self.name == "decode");
        let stated = self.flag("bs").or(older)?;
        Some(stated.values.iter().filter_map(|size| size.parse().ok()).collect())
    }

    /// The largest of them.
    fn largest(&self) -> Option<u64> {
        let older = self.question.count("--cuda-graph-max-bs").filter(|_| self.name == "decode");
        let stated = self.object.get("max_bs").and_then(Value::as_u64);
        let of_flag = || self.flag("max-bs").and_then(Setting::whole).and_then(|size| u64::try_from(size).ok());
        stated.or_else(of_flag).or(older)
    }
}

/// The largest batch that decoding is captured for.
fn largest_batch(question: &Question, model: &ModelCaches, defaults: &Defaults, decode: &Phase<'_>, mib: f64) -> u64 {
    /// Up to so many, all that run are captured of some models.
    const PROFILED: u64 = 512;
    if let Some(largest) = decode.sizes().and_then(|sizes| sizes.into_iter().max()).or_else(|| decode.largest()) {
        return largest;
    }
    let Some(running) = stated_requests(question).filter(|_| question.engine.version >= READ) else {
        return defaults.graphs;
    };
    match is_profiled(question, model, mib) && running <= PROFILED {
        true => running,
        false => defaults.graphs.min(running),
    }
}

const BREAKABLE: &str = "breakable";
const ALL_TO_ALL: &str = "--moe-a2a-backend";
/// Classes that are captured whole, and those with an encoder that are captured all the same.
const CAPTURED_WHOLE: &str = "InklingForConditionalGeneration InklingForConditionalGenerationMTP";
const CAPTURED: &str = "MiniMaxM3SparseForConditionalGeneration Cohere2VisionForConditionalGeneration Glm5NextForConditionalGeneration InternS2MobiusForConditionalGeneration PaddleOCRVLForConditionalGeneration Qwen3_5ForConditionalGeneration Qwen3_5MoeForConditionalGeneration Qwen4ExpForConditionalGeneration MuseGlimmerForConditionalGeneration MuseSparkForConditionalGeneration KimiK3ForConditionalGeneration KimiK25ForConditionalGeneration MiniMaxM3SparseForCausalLM";

/// What captures prompts, where something does (`apply_cuda_graph_compatibility`).
fn prefill_backend<'a>(question: &Question, model: &ModelCaches, prefill: &'a Phase<'_>) -> Option<&'a str> {
    if let Some(stated) = prefill.backend() {
        return Some(stated).filter(|backend| *backend != "disabled");
    }
    let class = class(model).unwrap_or_default();
    if lists(CAPTURED_WHOLE, class) {
        return Some("full");
    }
    let several = |flag: &str| question.count(flag).is_some_and(|size| size > 1);
    let stages = ["--pp-size", "--attn-cp-size", "--dcp-size"].into_iter().any(several);
    let delta = stated(model, "linear_attn_config").and_then(|config| config.get("kda_layers")?.as_array());
    let delta = delta.is_some_and(|layers| !layers.is_empty()) && class != "Glm5NextForConditionalGeneration";
    let sends = question.value(ALL_TO_ALL).is_none_or(|word| lists("none deepep megamoe flashinfer", word));
    let looks = is_multimodal(question, model) && !lists(CAPTURED, class);
    let compressed = model.info().model_type.starts_with("deepseek_v4");
    let overlaps = question.is_on("--enable-two-batch-overlap");
    let captures = is_nvidia(question) && sends && !(stages || delta || compressed || overlaps || looks);
    captures.then_some(BREAKABLE)
}

/// How many sizes of prompts are captured.
fn prefill_sizes(question: &Question, model: &ModelCaches, prefill: &Phase<'_>, runs: &Runs, aligned: bool) -> usize {
    /// Where the largest is not settled yet as sizes are aligned.
    const UNSETTLED: u64 = 2048;
    const OF_STAGES: u64 = 8192;
    const OF_LLAMA_2: u64 = 4096;
    const OF_GLIMMER: u64 = 512;
    let glimmer = class(model).is_some_and(|class| class.starts_with("MuseGlimmer")).then_some(OF_GLIMMER);
    let stated = prefill.largest().or(glimmer);
    if aligned {
        let sizes = prefill.sizes().unwrap_or_else(|| sizes_up_to(stated.unwrap_or(UNSETTLED)));
        let mut sizes: Vec<u64> = sizes.into_iter().map(|size| size.next_multiple_of(8)).collect();
        sizes.sort_unstable();
        sizes.dedup();
        return sizes.len();
    }
    let largest = stated.unwrap_or_else(|| {
        let chunk = if runs.cuts { runs.step } else { 0 };
        let stages = question.count("--pp-size").is_some_and(|stages| stages > 1).then_some(OF_STAGES);
        let tokens = question.count("--max-total-tokens");
        let llama = question.model.to_lowercase().contains("llama-2").then_some(OF_LLAMA_2);
        [stages, tokens, llama].into_iter().flatten().fold(chunk, u64::min)
    });
    prefill.sizes().unwrap_or_else(|| sizes_up_to(largest)).len()
}

/// `generate_prefill_cuda_graph_batch_sizes`.
fn sizes_up_to(largest: u64) -> Vec<u64> {
    const STEPS: [(u64, u64, usize); 5] =
        [(4, 32, 4), (48, 256, 16), (288, 512, 32), (576, 1024, 64), (1280, 4096, 256)];
    let fine = STEPS.into_iter().flat_map(|(first, last, step)| (first..=last).step_by(step));
    fine.chain((4608..=largest).step_by(512)).filter(|size| *size <= largest).collect()
}

fn keeps_latents(question: &Question, model: &ModelCaches) -> Result<bool, ServeError> {
    let is_latent = |kind: &Kind| matches!(kind, Kind::MlaPaged | Kind::CompressedLatent);
    Ok(question.caches(model)?.iter().any(|cache| is_latent(cache.handler.kind())))
}

/// What its encoder leaves of the share (`adjust_mem_fraction_for_vlm`).
fn beside_encoder(question: &Question, model: &ModelCaches) -> f64 {
    /// The part of any encoder, what one twice as large takes beside it, and that at least and at most.
    const REGULAR: f64 = 0.95;
    const TWICE: f64 = 0.1;
    const CHANGES: (f64, f64) = (0.8, 1.05);
    /// Layers and width of ViT-L/14, which are those of a config that says neither.
    const LAYERS: f64 = 24.0;
    const WIDTH: f64 = 1024.0;
    let decodes = question.value(ROLE) == Some("decode") && question.engine.version >= RESERVES_BY_PHASE;
    let Some(encoder) = stated(model, "vision_config") else { return 1.0 };
    if decodes || question.is_on("--language-only") || !is_multimodal(question, model) {
        return 1.0;
    }
    let said = |key: &str, usual: f64| encoder.get(key).and_then(Value::as_f64).unwrap_or(usual);
    let (layers, width) = (said("num_hidden_layers", LAYERS), said("hidden_size", WIDTH));
    let larger = layers * width * width / (LAYERS * WIDTH * WIDTH);
    REGULAR * (1.0 - TWICE * (larger - 1.0)).clamp(CHANGES.0, CHANGES.1)
}

/// MiB of the share that are kept for caches of what encoders gave, and for what they are given where that lies on the GPU
/// (`mm_runtime_reservation_gb`, and `model_overrides/qwen3_vl.py`).
pub(super) fn of_images(question: &Question, model: &ModelCaches, mib: f64) -> f64 {
    /// Read in 0.5.18, and not in 0.5.17.
    const RESERVES: Version = Version(0, 5, 18);
    const ENCODED: f64 = 100.0;
    const GIVEN: f64 = 1024.0;
    /// Where so many requests run of models that have settings of their own on Hopper.
    const MANY: (u64, f64) = (400, 3072.0);
    if question.engine.version < RESERVES || !is_multimodal(question, model) {
        return 0.0;
    }
    let variable = |name: &str| question.env.get(name).and_then(|value| value.trim().parse::<f64>().ok());
    let on_hopper = is_profiled(question, model, mib) && question.engine.version >= READ;
    let for_training = question.flag("--rl-on-policy-target").is_some();
    let encoded = variable("SGLANG_VLM_CACHE_SIZE_MB").filter(|_| !for_training);
    let encoded = encoded.unwrap_or(if on_hopper || for_training { 0.0 } else { ENCODED });
    let keeps = encoded > 0.0 || question.count("--mm-preprocess-cache-size-mb").is_some_and(|size| size > 0);
    let alone = question.count("--nnodes").is_none_or(|nodes| nodes == 1);
    let by_itself = on_hopper && alone && !keeps;
    let on_gpu = match question.value("--mm-feature-transport") {
        Some(word) => word != "cpu",
        None => by_itself || question.has_on("SGLANG_USE_CUDA_IPC_TRANSPORT"),
    };
    let many = by_itself && stated_requests(question).is_some_and(|running| running >= MANY.0);
    let given = variable("SGLANG_MM_FEATURE_CACHE_MB").unwrap_or(if many { MANY.1 } else { GIVEN });
    encoded + if on_gpu { given } else { 0.0 }
}

/// Whether it is one of the models that have settings of their own on a large Hopper GPU (`large_hopper_qwen3_vl_model_type`).
fn is_profiled(question: &Question, model: &ModelCaches, mib: f64) -> bool {
    const MEMORY: f64 = 60.0 * GIB;
    let is_listed = lists("qwen3_vl qwen3_vl_moe", &model.info().model_type) && is_multimodal(question, model);
    is_listed && capability(question, model).is_some_and(|found| found / 10 == 9) && mib >= MEMORY
}

/// Whether it takes more than text (`ModelConfig.is_multimodal`).
fn is_multimodal(question: &Question, model: &ModelCaches) -> bool {
    /// Classes that do where they are told to.
    const TOLD: &str = "Gemma3ForConditionalGeneration Llama4ForConditionalGeneration Step3VLForConditionalGeneration InklingForConditionalGeneration";
    let class = class(model).unwrap_or_default();
    let [looks, listens] = ["vision_config", "audio_config"].map(|key| stated(model, key).is_some());
    let only_text = question.is_on("--language-model-only")
        || stated(model, "language_model_only").and_then(Value::as_bool) == Some(true);
    let lacks_one = class.starts_with("MiMoV2") && !(looks && listens);
    let takes = question.is_on("--enable-multimodal") || !(lists(TOLD, class) || lacks_one);
    (looks || listens) && takes && !only_text
}

/// The first class that its config names.
pub(super) fn class(model: &ModelCaches) -> Option<&str> {
    stated(model, "architectures")?.get(0)?.as_str()
}

fn stated<'a>(model: &'a ModelCaches, key: &str) -> Option<&'a Value> {
    model.model()?.stated(key)
}

/// Whether it runs on CUDA, as on a device of which only the size is known.
fn is_nvidia(question: &Question) -> bool {
    let others = ["AMD ", "Apple ", "Intel "];
    let named = question.device().is_some_and(|device| others.iter().any(|maker| device.name.starts_with(maker)));
    !named && question.value("--device") != Some("cpu")
}
