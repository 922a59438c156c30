//! The kernels of attention: those that it chooses (`get_default_attn_backend` and `model_overrides/`), and which are refused
//! (`attention_hook.py` and `attention_registry.py`).

use cacheplan_handlers::{Kind, ResourceHandler};
use cacheplan_planner::ModelCaches;
use cacheplan_planner::engines::Version;

use super::super::rules::{Case, lists};
use super::super::{Question, of_config};
use super::share::class;
use super::{READ, capability};
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

/// Read in 0.5.10: dense models had TensorRT-LLM's kernels there, and DeepSeek-V3 those for latents.
const CHOOSES: Version = Version(0, 5, 10);

/// Model types, and the kernels that are chosen for them where nobody names any: on Ampere and Ada, Hopper, data center Blackwell and
/// consumer Blackwell (`model_overrides/`); none where all models have the same there.
const OF_TYPES: [(&str, [&str; 4]); 8] = [
    ("gpt_oss llama4 llama4_text", ["triton", "fa3", TENSORRT, "triton"]),
    ("gemma4 gemma4_text gemma4_unified gemma4_unified_text", ["triton", "triton", TENSORRT, "triton"]),
    ("exaone4 exaone_moe olmo2", ["fa3", "fa3", TENSORRT, "fa3"]),
    ("step3p5 step3p7", ["", "fa3", "fa4", "fa4"]),
    ("inkling_mm_model inkling_text", ["triton", "fa4", "fa4", "triton"]),
    ("falcon_h1 jet_nemotron", ["", "", "triton", ""]),
    ("minimax_m3 minimax_m3_vl", ["", "fa3", "fa4", ""]),
    ("iquest_q1", ["fa3", "fa3", "fa3", "fa3"]),
];
const TENSORRT: &str = "trtllm_mha";
const TENSORRT_LATENTS: &str = "trtllm_mla";

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
    if question.is_on_amd() {
        let heads =
            of_config(model, "num_key_value_heads").unwrap_or(0) / question.count("--tp-size").unwrap_or(1).max(1);
        let takes =
            if latents { !keeps(&Kind::IndexKey) && matches!(heads, 16 | 128) } else { !lists(OWN_ON_AMD, model_type) };
        return Ok(takes.then_some("aiter"));
    }
    let version = question.engine.version;
    if version < CHOOSES || capability(question, model).is_none_or(|found| found / 10 != 10) {
        return Ok(None);
    }
    if latents {
        let alone = [PREFILL, DECODE].iter().all(|flag| question.flag(flag).is_none());
        let listed = if version < READ { "DeepseekV3ForCausalLM" } else { LIKE_V3 };
        let is_v3 = class(model).is_some_and(|class| lists(listed, class)) && !keeps(&Kind::IndexKey);
        return Ok((alone && is_v3).then_some(TENSORRT_LATENTS));
    }
    // How older versions choose for these was not read.
    if version < READ && caches.iter().any(|cache| ResourceHandler::is_state(&cache.handler)) {
        return Ok(None);
    }
    if model_type.starts_with("mimo_v2") {
        return Ok(Some("fa4"));
    }
    // A tree of drafts has others, and whether it is one is not settled where nobody says.
    let (branches, word) = (question.count("--speculative-eagle-topk"), question.value(DRAFTS).map(str::to_uppercase));
    let is = |name: &str| word.as_deref() == Some(name);
    let chain = branches == Some(1) && question.count("--page-size").is_none_or(|page| page == 1)
        || is("DFLASH")
        || branches.is_none() && !is("NGRAM") && lists(WITH_TENSORRT_AND_DRAFTS, model_type);
    let drafts = question.flag(DRAFTS).is_some();
    let pages = !caches.iter().any(|cache| ResourceHandler::is_state(&cache.handler))
        || lists(WITH_TENSORRT, model_type)
        || lists(WITH_STATES, model_type) && (drafts || !question.keeps_prefixes() || names_buffers(question));
    let takes = (!drafts || chain) && pages && !lists(OWN_ON_BLACKWELL, model_type);
    Ok(takes.then_some(TENSORRT))
}

/// The kernels that are chosen on an NVIDIA GPU of that generation for a model alone, whatever all others have.
fn of_type(question: &Question, model: &ModelCaches, generation: u32) -> Option<&'static str> {
    let place = [8, 9, 10, 12].iter().position(|known| *known == generation)?;
    let model_type = &*model.info().model_type;
    let (_, chosen) = OF_TYPES.iter().find(|(types, _)| lists(types, model_type))?;
    let exists = |name: &&str| !name.is_empty();
    // Of its windows alone.
    let is_kept = model_type == "exaone4" && !has_pattern(model);
    let in_eight_bits = chosen[place] == "fa4"
        && model_type.starts_with("minimax_m3")
        && question.value("--kv-cache-dtype") == Some("fp8_e4m3");
    if in_eight_bits { Some(TENSORRT) } else { Some(chosen[place]).filter(exists).filter(|_| !is_kept) }
}

/// Whether a file says in which layers there are windows.
pub(super) fn has_pattern(model: &ModelCaches) -> bool {
    model.model().is_some_and(|model| model.stated("sliding_window_pattern").is_some())
}

/// Whether states are said to be copied to buffers, which is settled only behind these kernels where nobody says.
fn names_buffers(question: &Question) -> bool {
    question.value("--mamba-radix-cache-strategy").is_some_and(|word| word.starts_with("extra_buffer"))
}

/// What refuses kernels that score several items at once (`handle_multi_item_scoring`).
pub(super) fn refuses_scoring(case: &Case<'_>) -> Option<String> {
    let all = case.generation().and_then(|generation| settled(case.question, case.model, generation).ok()?);
    let of = |flag: &str| case.question.value(flag).or(all);
    let others = [PREFILL, DECODE].into_iter().filter_map(of).any(|name| name != "flashinfer");
    others.then(|| "Multi-item scoring requires flashinfer attention backend for custom attention mask support. Please set --attention-backend flashinfer when using --enable-mis.".into())
}

/// What refuses kernels of linear attention on Blackwell (`handle_linear_attn_backend`).
pub(super) fn refuses_linear(case: &Case<'_>) -> Option<String> {
    let question = case.question;
    let of = |flag: &str| question.value(flag).or_else(|| question.value("--linear-attn-backend"));
    let narrow = question.value("--mamba-ssm-dtype") == Some("bfloat16");
    let takes = ["--linear-attn-decode-backend", "--linear-attn-verify-backend"];
    let flag = takes.into_iter().find(|flag| of(flag) == Some("flashinfer"))?;
    (case.generation().is_some_and(|generation| generation >= 10) && !narrow)
        .then(|| format!("{flag} flashinfer on SM100+ requires --mamba-ssm-dtype bfloat16"))
}

/// The kernels that it comes to for all phases on an NVIDIA GPU, where that is known.
fn settled<'a>(question: &'a Question, model: &ModelCaches, generation: u32) -> Result<Option<&'a str>, ServeError> {
    if let Some(name) = named(question) {
        return Ok(Some(name));
    }
    if let Some(name) = deterministic(question, model)? {
        return Ok(Some(name));
    }
    let caches = question.caches(model)?;
    let keeps = |kind: &Kind| caches.iter().any(|cache| cache.handler.kind() == kind);
    let (latents, indexed) = (keeps(&Kind::MlaPaged), keeps(&Kind::IndexKey));
    if latents && indexed || model.info().model_type.starts_with("deepseek_v4") {
        return Ok(None);
    }
    if let Some(name) = usual(question, model)?.or_else(|| of_type(question, model, generation)) {
        return Ok(Some(name));
    }
    let tree = question.count("--speculative-eagle-topk").is_some_and(|branches| branches > 1);
    Ok(match (generation, latents) {
        (9, true) => Some("fa3"),
        (9, false) if !tree => Some("fa3"),
        (10, true) => Some("flashinfer"),
        (10, false) if lists(WITH_STATES, &model.info().model_type) => Some("triton"),
        (_, true) => Some("triton"),
        (_, false) => Some("flashinfer"),
    })
}

/// Classes with latents that deterministic answers count as DeepSeek's.
const LATENTS_ALIKE: &str = "DeepseekV2ForCausalLM DeepseekV3ForCausalLM DeepseekV32ForCausalLM MistralLarge3ForCausalLM PixtralForConditionalGeneration GlmMoeDsaForCausalLM Glm4MoeLiteForCausalLM";
const ALIKE: &str = "--enable-deterministic-inference";

/// The kernels that answers are alike with in any batch, where such answers are asked of an NVIDIA GPU (`handle_deterministic_inference`).
pub(super) fn deterministic<'a>(question: &'a Question, model: &ModelCaches) -> Result<Option<&'a str>, ServeError> {
    let asked = question.is_on(ALIKE) || question.flag("--rl-on-policy-target").is_some();
    let Some(generation) = capability(question, model).map(|found| found / 10).filter(|_| asked) else {
        return Ok(None);
    };
    if question.engine.version < READ {
        return Ok(None);
    }
    if let Some(name) = question.value(ALL) {
        return Ok(Some(name));
    }
    let caches = question.caches(model)?;
    let keeps = |kind: &Kind| caches.iter().any(|cache| cache.handler.kind() == kind);
    let (model_type, class) = (&*model.info().model_type, class(model).unwrap_or_default());
    let own = match generation {
        _ if keeps(&Kind::IndexKey) && keeps(&Kind::MlaPaged) => Some("dsa"),
        10 if lists(LIKE_V3, class) => Some(TENSORRT_LATENTS),
        10 if lists(WITH_TENSORRT, model_type) => Some(TENSORRT),
        10 if lists(WITH_STATES, model_type) => {
            let drafts = question.flag(DRAFTS).is_some();
            Some(if drafts || names_buffers(question) || !question.keeps_prefixes() { TENSORRT } else { "triton" })
        }
        _ => of_type(question, model, generation),
    };
    Ok(Some(own.unwrap_or(match generation {
        10 | 12 if lists(LATENTS_ALIKE, class) => "triton",
        10 | 12 => "flashinfer",
        _ => "fa3",
    })))
}

/// What refuses kernels of answers that are alike in any batch.
pub(super) fn refuses_alike(case: &Case<'_>) -> Option<String> {
    let kernels = deterministic(case.question, case.model).ok()??;
    let class = class(case.model).unwrap_or_default();
    if !lists("ascend fa3 fa4 flashinfer intel_xpu triton", kernels) {
        return Some(format!(
            "Currently only ['ascend', 'fa3', 'fa4', 'flashinfer', 'intel_xpu', 'triton'] attention backends are supported for deterministic inference, but you explicitly specified '{kernels}'."
        ));
    }
    (lists(LATENTS_ALIKE, class) && !lists("ascend fa3 fa4 triton", kernels)).then(|| {
        format!("Currently only ['ascend', 'fa3', 'fa4', 'triton'] attention backends are supported for deterministic inference with absorbed-MLA models. But you're using {kernels}.")
    })
}

/// What refuses kernels beside caches in NVIDIA's four bits (`handle_nvfp4_prefill_kv_dequant_dtype`).
pub(super) fn refuses_four_bits(case: &Case<'_>) -> Option<String> {
    let question = case.question;
    let generation = case.generation().filter(|_| question.value("--kv-cache-dtype") == Some("nvfp4"))?;
    let told = question.value(PREFILL).or_else(|| question.value(ALL));
    let wide = question.value("--prefill-kv-cache-dequant-dtype").filter(|word| *word != "auto");
    let prefill = match (wide, told) {
        (Some("nvfp4"), _) | (None, Some(TENSORRT)) => TENSORRT,
        (Some(_), _) | (None, Some("flashinfer")) => "flashinfer",
        (None, Some(other)) => {
            return Some(format!(
                "NVFP4 prefill supports an FP8 E4M3 workspace or native NVFP4, but backend '{other}' provides neither."
            ));
        }
        (None, None) if generation == 10 => TENSORRT,
        (None, None) => "flashinfer",
    };
    if let Some(other) = question.value(DECODE).filter(|name| *name != TENSORRT) {
        return Some(format!("NVFP4 decode requires --decode-attention-backend=trtllm_mha; got '{other}'."));
    }
    if let Some(other) = question.value(PREFILL).filter(|name| *name != prefill) {
        return Some(format!(
            "--prefill-kv-cache-dequant-dtype requires prefill backend '{prefill}', but --prefill-attention-backend='{other}' was set."
        ));
    }
    case.keeps(&Kind::MlaPaged).then(|| format!("{TENSORRT} backend can only be used with non-MLA models."))
}

/// Whether AMD's kernels have a part of the share for themselves.
pub(super) fn takes_of_share(question: &Question, model: &ModelCaches, longest: u64) -> Result<bool, ServeError> {
    const LONG: u64 = 8192;
    let on_amd = question.is_on_amd();
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
    if is("cutedsl_mla") && outside(&[10]) {
        return Some(
            "CuteDSL MLA backend is only supported on Blackwell GPUs (SM100). Please use a different backend.".into(),
        );
    }
    if prefill == Some(TENSORRT) && generation == Some(12) && dtype == "fp8_e4m3" {
        return Some("TRTLLM FMHAv2 prefill on SM120 does not support fp8_e4m3 KV cache or skip-softmax.".into());
    }
    if is("hpc_ops") && question.flag(DRAFTS).is_some() {
        return Some("hpc_ops backend does not support speculative decoding for now.".into());
    }
    // Those take no such keys, and others are taken in their place.
    let falls_back = question.value("--kv-cache-dtype") == Some("fp8_e5m2");
    let runs: &[u32] = if latents { &[9] } else { &[8, 9] };
    let is_alike = deterministic(question, case.model).is_ok_and(|kernels| kernels == Some("fa3"));
    ((is("fa3") || is_alike) && !falls_back && outside(runs)).then(|| {
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
