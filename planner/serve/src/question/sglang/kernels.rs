//! The kernels of attention: those that it chooses (`get_default_attn_backend` and `model_overrides/`), and which are refused
//! (`attention_hook.py` and `attention_registry.py`).

use cacheplan_handlers::{Kind, ResourceHandler};
use cacheplan_planner::ModelCaches;

use super::super::rules::{Case, lists};
use super::super::{Question, of_config};
use super::share::class;
use super::{READ, SLOTS_WITH_RADIX, capability};
use crate::error::ServeError;

pub(super) const ALL: &str = "--attention-backend";
pub(super) const DECODE: &str = "--decode-attention-backend";
pub(super) const PREFILL: &str = "--prefill-attention-backend";
const DRAFTS: &str = "--speculative-algorithm";

/// Model types that have kernels of their own on data center Blackwell, which take a page of any size.
const OWN_ON_BLACKWELL: &str = "falcon_h1 lfm2 lfm2_moe lfm2_vl minicpm minicpmv minicpmo minimax_m3 minimax_m3_vl inkling_mm_model inkling_text iquest_q1 moss_vl whisper";
/// Those of AMD's GPUs that are run by others than AMD's.
const OWN_ON_AMD: &str = "gemma4 gemma4_text gemma4_unified gemma4_unified_text diffusion_gemma minimax_m3 minimax_m3_vl exaone4 exaone_moe olmo2 olmo3 inkling_mm_model inkling_text whisper";
/// Model types with states that are read as to their kernels.
const WITH_STATES: &str = "qwen3_5 qwen3_5_text qwen3_5_moe qwen3_5_moe_text qwen3_next";

/// Those that have TensorRT-LLM's kernels there whatever is kept of their states, and the first of them with drafts too, unless these are
/// said to be a tree.
const WITH_TENSORRT: &str = "nemotron_h nemotron_h_puzzle NemotronH_Nano_VL_V2 NemotronH_Nano_Omni_Reasoning_V3";
const WITH_TENSORRT_AND_DRAFTS: &str = "nemotron_h nemotron_h_puzzle";

/// Classes with latents that have TensorRT-LLM's kernels there.
const LIKE_V3: &str = "DeepseekV3ForCausalLM KimiK25ForConditionalGeneration KimiK3ForConditionalGeneration MistralLarge3ForCausalLM LongcatFlashForCausalLM";

/// The kernels that are named for all, where some are.
fn named(question: &Question) -> Option<&str> {
    let [prefill, decode] = [PREFILL, DECODE].map(|flag| question.value(flag));
    prefill.filter(|name| decode == Some(*name)).or_else(|| question.value(ALL))
}

/// The kernels that it chooses, where nobody names any and a page or the share hangs on them.
pub(super) fn usual(question: &Question, model: &ModelCaches) -> Result<Option<&'static str>, ServeError> {
    let cpu = question.value("--device") == Some("cpu") || question.is_on("--enable-deterministic-inference");
    let model_type = &*model.info().model_type;
    if named(question).is_some() || cpu || model_type.starts_with("deepseek_v4") {
        return Ok(None);
    }
    let caches = question.caches(model)?;
    let keeps = |kind: &Kind| caches.iter().any(|cache| cache.handler.kind() == kind);
    let latents = keeps(&Kind::MlaPaged) || keeps(&Kind::CompressedLatent);
    if question.device().is_some_and(|device| device.maker() == Some("AMD")) {
        let heads =
            of_config(model, "num_key_value_heads").unwrap_or(0) / question.count("--tp-size").unwrap_or(1).max(1);
        let takes =
            if latents { !keeps(&Kind::IndexKey) && matches!(heads, 16 | 128) } else { !lists(OWN_ON_AMD, model_type) };
        return Ok(takes.then_some("aiter"));
    }
    if question.engine.version < READ || capability(question, model).is_none_or(|found| found / 10 != 10) {
        return Ok(None);
    }
    if latents {
        let alone = [PREFILL, DECODE].iter().all(|flag| question.flag(flag).is_none());
        let is_v3 = class(model).is_some_and(|class| lists(LIKE_V3, class)) && !keeps(&Kind::IndexKey);
        return Ok((alone && is_v3).then_some("trtllm_mla"));
    }
    if model_type.starts_with("mimo_v2") {
        return Ok(Some("fa4"));
    }
    // A tree of drafts has others, and whether it is one is not settled where nobody says.
    let (branches, word) = (question.count("--speculative-eagle-topk"), question.value(DRAFTS).map(str::to_uppercase));
    let is = |name: &str| word.as_deref() == Some(name);
    let chain = branches == Some(1)
        || is("DFLASH")
        || branches.is_none() && !is("NGRAM") && lists(WITH_TENSORRT_AND_DRAFTS, model_type);
    let drafts = question.flag(DRAFTS).is_some();
    let pages = !caches.iter().any(|cache| ResourceHandler::is_state(&cache.handler))
        || lists(WITH_TENSORRT, model_type)
        || lists(WITH_STATES, model_type)
            && (drafts || !question.keeps_prefixes() || question.slots_per_request() > Some(SLOTS_WITH_RADIX));
    let takes = (!drafts || chain) && pages && !lists(OWN_ON_BLACKWELL, model_type);
    Ok(takes.then_some("trtllm_mha"))
}

/// Whether AMD's kernels have a part of the share for themselves.
pub(super) fn takes_of_share(question: &Question, model: &ModelCaches, longest: u64) -> Result<bool, ServeError> {
    const LONG: u64 = 8192;
    let on_amd = question.device().is_some_and(|device| device.maker() == Some("AMD"));
    let kept =
        question.flag("--mem-fraction-static").is_some() && question.has_on("SGLANG_AITER_HONOR_EXPLICIT_MEM_FRACTION");
    if longest <= LONG || !on_amd || kept {
        return Ok(false);
    }
    Ok(match named(question) {
        Some(name) => name == "aiter",
        None => usual(question, model)? == Some("aiter"),
    })
}

/// What refuses kernels that are named on the device or of the model.
pub(super) fn refuses(case: &Case<'_>) -> Option<String> {
    let question = case.question;
    let of = |flag: &str| question.value(flag).or_else(|| question.value(ALL));
    let (prefill, decode) = (of(PREFILL), of(DECODE));
    let is = |name: &str| prefill == Some(name) || decode == Some(name);
    let latents = case.keeps(&Kind::MlaPaged);
    let generation = case.generation();
    let outside = |known: &[u32]| generation.is_some_and(|found| !known.contains(&found));
    if case.model_type().starts_with("deepseek_v4") {
        return None;
    }
    let dtype = question.value("--kv-cache-dtype").unwrap_or("auto");
    if latents && case.keeps(&Kind::IndexKey) && !lists("auto bf16 bfloat16 fp8_e4m3", dtype) {
        return Some("DeepSeek DSA only supports bf16/bfloat16 or fp8_e4m3 kv_cache_dtype".into());
    }
    let by_tensorrt =
        decode == Some("trtllm_mla") || usual(question, case.model).is_ok_and(|of| of == Some("trtllm_mla"));
    if latents && by_tensorrt && !outside(&[10, 12]) && !lists("fp8_e4m3 bf16 auto", dtype) {
        return Some("TensorRT-LLM MLA backend only supports kv-cache-dtype of fp8_e4m3, bf16, or auto.".into());
    }
    if prefill == Some("trtllm_mha") && outside(&[9, 10, 12]) {
        return Some("TRTLLM MHA backend for prefill requires Hopper (SM90), Blackwell (SM100), or SM120 GPUs. Please use a different prefill backend.".into());
    }
    if decode == Some("trtllm_mha") && outside(&[9, 10, 12]) {
        return Some("TRTLLM MHA backend for decode is only supported on Hopper (SM90), Blackwell (SM100) and (SM120) GPUs. Please use a different decode backend.".into());
    }
    if let Some(name) = ["trtllm_mha", "hpc_ops"].into_iter().find(|name| latents && is(name)) {
        return Some(format!("{name} backend can only be used with non-MLA models."));
    }
    // Off Blackwell they are refused before.
    if let Some(name) = ["trtllm_mla", "cutedsl_mla"].into_iter().find(|name| !latents && is(name))
        && !outside(&[10, 12])
    {
        return Some(format!("{name} backend can only be used with MLA models."));
    }
    if is("hpc_ops") && question.flag(DRAFTS).is_some() {
        return Some("hpc_ops backend does not support speculative decoding for now.".into());
    }
    // Those take no such keys, and others are taken in their place.
    let falls_back = question.value("--kv-cache-dtype") == Some("fp8_e5m2");
    let runs: &[u32] = if latents { &[9] } else { &[8, 9] };
    (is("fa3") && !falls_back && outside(runs)).then(|| {
        "FlashAttention v3 Backend requires SM>=80 and SM<=90. Please use `--attention-backend flashinfer`.".into()
    })
}

/// Classes whose encoder runs apart (`handle_encoder_disaggregation`).
const APART: &str = "Qwen2VLForConditionalGeneration Qwen3VLForConditionalGeneration Qwen2_5_VLForConditionalGeneration Qwen3VLMoeForConditionalGeneration Qwen3_5ForConditionalGeneration Qwen3_5MoeForConditionalGeneration InternS2PreviewForConditionalGeneration Qwen3OmniMoeForConditionalGeneration Qwen2AudioForConditionalGeneration Qwen2_5OmniForConditionalGeneration Dots3NoteForCausalLM KimiVLForConditionalGeneration KimiK25ForConditionalGeneration KimiK3ForConditionalGeneration MiMoV2ForCausalLM Glm5NextForConditionalGeneration MiniMaxM3SparseForConditionalGeneration MuseSparkForConditionalGeneration";

/// What refuses a server without its encoder.
pub(super) fn refuses_apart(case: &Case<'_>) -> Option<String> {
    let class = class(case.model).filter(|class| case.is_on("--language-only") && !lists(APART, class))?;
    Some(format!(
        "Model type {class} is not supported for encoder disaggregation. Supported architectures: Qwen2VL, Qwen3VL, Qwen3.5, InternS2, Qwen2Audio, Qwen2.5Omni, Dots3-Note, Kimi, MiMoV2, GLM5Next, MiniMax-M3, MuseSpark."
    ))
}
