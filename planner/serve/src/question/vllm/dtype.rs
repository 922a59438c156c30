//! The dtypes that the model and its caches are kept in, and whether kernels read them.

use std::ops::Range;

use cacheplan_handlers::{DType, Kind};
use cacheplan_planner::engines::{OfAttention, Stored, Version, vllm};
use cacheplan_planner::error::EngineRefusal;
use cacheplan_planner::{ModelCaches, PlanError, PlanRequest};

use super::super::calibrated::{self, Reads};
use super::super::{HEADS, Question, dtype_named, of_config};
use super::attention;
use crate::error::ServeError;
use crate::remedy::Remedy;

/// Read in 0.14.0, and not in 0.13.0: what ModelOpt calibrated is the dtype of caches. Read in 0.15.1, and not in 0.14.0: so is what
/// llm-compressor did.
/// Read in 0.15.1 to 0.21.0, and not in 0.22.0: whatever the command says.
pub(super) const READS: Reads = Reads {
    modelopt: Version(0, 14, 0),
    compressor: Version(0, 15, 0),
    overrides: Version(0, 15, 0)..Version(0, 22, 0),
};
/// `_FLOAT16_NOT_SUPPORTED_MODELS` of vllm-project/vllm@18ec662, a build of about the first version, and of 0.33.0.
const WITHOUT_FLOAT16: [(&str, Range<Version>); 5] = [
    ("gemma2", REFUSES_FLOAT16..LATER),
    ("gemma3", REFUSES_FLOAT16..LATER),
    ("gemma3_text", REFUSES_FLOAT16..LATER),
    ("glm4", REFUSES_FLOAT16..LATER),
    ("plamo2", REFUSES_FLOAT16..Version(0, 33, 0)),
];
const REFUSES_FLOAT16: Version = Version(0, 12, 0);
const LATER: Version = Version(u32::MAX, 0, 0);
/// Read in 0.33.0; before 0.12.0 nobody looked.
const FALLS_BACK: Version = REFUSES_FLOAT16;
/// The compute capability, times ten, from which on there is bfloat16.
const BRAIN_FLOAT: u32 = 80;

/// From here on the configuration looks at the names of caches' dtypes, as they are written; before the parser did.
const NAMES_ARE_CONFIGURED: Version = Version(0, 33, 0);
/// `CacheDType` of `config/cache.py` there.
const NAMES: [&str; 22] = [
    "auto",
    "float16",
    "bfloat16",
    "fp8",
    "fp8_e4m3",
    "fp8_e5m2",
    "fp8_inc",
    "fp8_ds_mla",
    "nvfp4_ds_mla",
    "turboquant_k8v4",
    "turboquant_4bit_nc",
    "turboquant_k3v4_nc",
    "turboquant_3bit_nc",
    "octave_k3v4",
    "octave_k3v3",
    "octave_k3v3_compact",
    "ultraquant_4bit",
    "int4_per_token_head",
    "int8_per_token_head",
    "fp8_per_token_head",
    "nvfp4",
    "nvfp4_4over6",
];

/// A name of caches' dtype that the configuration does not know.
pub(super) fn name(question: &Question) -> Result<(), ServeError> {
    const FLAG: &str = "--kv-cache-dtype";
    let word = question.value(FLAG).unwrap_or("auto");
    if question.engine.version < NAMES_ARE_CONFIGURED || NAMES.contains(&word) {
        return Ok(());
    }
    let said = format!("Invalid kv_cache_dtype: '{word}'. Valid values are: {}", NAMES.join(", "));
    let meant = NAMES.iter().find(|name| name.eq_ignore_ascii_case(word)).unwrap_or(&"auto");
    Err(question.refused(said, [Remedy::Set(FLAG, (*meant).to_owned())]))
}

/// The dtype that the model is run in, which caches follow where nothing else says.
pub(super) fn dtype(question: &mut Question, model: &ModelCaches) -> Result<(), ServeError> {
    if let Some(dtype) = run_as(question, model) {
        run_in(question, model, dtype)?;
    }
    without_convs(question, model)
}

/// What the command says that the model is run in, or what `auto` falls back to on a GPU without bfloat16 (`_resolve_auto_dtype`).
pub(super) fn run_as(question: &Question, model: &ModelCaches) -> Option<DType> {
    let stated = question.value("--dtype").and_then(dtype_named);
    stated.or_else(|| {
        let lacks = question.device()?.compute_capability()? < BRAIN_FLOAT && question.engine.version >= FALLS_BACK;
        let falls = lacks && model.info().dtype != DType::F16;
        falls.then(|| if takes_float16(question, model) { DType::F16 } else { DType::F32 })
    })
}

/// vLLM's name of a dtype that a model is run in.
pub(super) const fn word(dtype: DType) -> Option<&'static str> {
    match dtype {
        DType::F16 => Some("float16"),
        DType::Bf16 => Some("bfloat16"),
        DType::F32 => Some("float32"),
        _ => None,
    }
}

fn takes_float16(question: &Question, model: &ModelCaches) -> bool {
    let (model_type, version) = (&*model.info().model_type, question.engine.version);
    !WITHOUT_FLOAT16.iter().any(|(lacks, versions)| *lacks == model_type && versions.contains(&version))
}

fn run_in(question: &mut Question, model: &ModelCaches, dtype: DType) -> Result<(), ServeError> {
    let model_type = &*model.info().model_type;
    if dtype == DType::F16 && !takes_float16(question, model) {
        let said = format!(
            "The model type '{model_type}' does not support float16. Reason: Numerical instability. Please use bfloat16 or float32 instead."
        );
        return Err(question.refused(said, [Remedy::Set("--dtype", "bfloat16".into())]));
    }
    // `auto` of caches is what the checkpoint says of them first, and what it is anyway where the model has that dtype.
    let kv = Some("dtypes.kv").filter(|_| calibrated::is_taken(question, model, &READS) != Some(true));
    let kv = kv.filter(|_| dtype != model.info().dtype);
    for path in kv.into_iter().chain(["dtypes.conv"]) {
        question.default_of(path, format!("\"{dtype}\""));
    }
    let is_known = question.is_stated("engine.cache_bytes") || question.is_stated("memory.weights");
    if dtype == DType::F32 && model.info().dtype != DType::F32 && !is_known {
        let falls_back = question.value("--dtype").and_then(dtype_named).is_none();
        let weights = model.weights_cast(dtype).filter(|_| falls_back);
        // Of weights of which nothing is known there is nothing to double.
        if weights.is_none() && !(falls_back && model.info().weights.is_none()) {
            return Err(ServeError::weights_unknown("--dtype", Remedy::Set("--dtype", "auto".into())));
        }
        question.weights = weights.or(question.weights);
        question.notes.push("the GPU has no bfloat16 and the model takes no float16: it is run in float32".into());
    }
    Ok(())
}

/// States of linear attention, which have no convolution beside them: what is said of that is their own (`linear_attention_state_dtype`).
fn without_convs(question: &mut Question, model: &ModelCaches) -> Result<(), ServeError> {
    const OWN: &str = "dtypes.ssm";
    let caches = question.caches(model)?;
    let has = |kind: Kind| caches.iter().any(|cache| *cache.handler.kind() == kind);
    if !has(Kind::Ssm) || has(Kind::CausalConv) {
        return Ok(());
    }
    question.stated.retain(|stated| stated.key != OWN);
    question.stated.iter_mut().filter(|stated| stated.key == "dtypes.conv").for_each(|stated| stated.key = OWN.into());
    Ok(())
}

/// Kernels of attention: vLLM refuses what none reads, and some words mean another layout of latents than is planned for them.
pub(in super::super) fn kernels(question: &mut Question, request: &PlanRequest) -> Result<(), ServeError> {
    const FLAG: &str = "--kv-cache-dtype";
    const RANKS: &str = "--decode-context-parallel-size";
    const BLOCK: &str = "--block-size";
    other_float(question, request)?;
    let word = question.value(FLAG).unwrap_or("auto").to_owned();
    let named = attention::checked(question);
    let (info, caches, budget) = (request.model().info(), request.caches()?, request.budget()?);
    let heads = of_config(request.model(), HEADS);
    let told = OfAttention {
        word: Some(&*word).filter(|word| *word != "auto"),
        backend: named.as_deref(),
        block: question.count(BLOCK),
        run_in: run_as(question, request.model()),
        queries: heads.map(|heads| heads / question.count("--tensor-parallel-size").unwrap_or(1).max(1)),
        aiter: attention::aiter(question),
    };
    let of = |told: OfAttention<'_>| question.engine.stored(info, &caches, &budget, told);
    let refusal = |refusal: EngineRefusal| {
        let EngineRefusal::Kernel { said, .. } = refusal else { return PlanError::from(refusal).into() };
        let mut alone = budget.clone();
        alone.parallel.dcp = 1;
        let words = ["fp8", "auto"].into_iter().filter(|other| *other != word);
        let words = words.map(|word| (OfAttention { word: Some(word), ..told }, Remedy::Set(FLAG, word.into())));
        let blocks = told.block.into_iter().flat_map(|block| {
            let read = [16, 32, 64, 128].into_iter().filter_map(move |of| block.checked_next_multiple_of(of));
            read.map(|block| (OfAttention { block: Some(block), ..told }, Remedy::Set(BLOCK, block.to_string())))
        });
        let flags = [attention::NAMED_BY, attention::FLAG].into_iter().filter(|flag| question.flag(flag).is_some());
        let chosen = flags.map(|flag| (OfAttention { backend: None, ..told }, Remedy::Remove(flag)));
        let changes: Vec<_> = words.chain(blocks).chain(chosen).collect();
        // Those that do, or those that are a step to it.
        let mut remedies: Vec<Remedy> =
            changes.iter().filter(|(told, _)| of(*told).is_ok()).map(|(_, remedy)| remedy.clone()).collect();
        if budget.parallel.dcp > 1 && question.engine.stored(info, &caches, &alone, told).is_ok() {
            remedies.push(Remedy::Remove(RANKS));
        }
        if remedies.is_empty() {
            remedies = changes.into_iter().map(|(_, remedy)| remedy).collect();
        }
        question.refused(said, remedies)
    };
    let stored = match of(told).map_err(refusal)? {
        None if named.is_some() => of(OfAttention { backend: None, ..told }).map_err(refusal)?,
        stored => stored,
    };
    // Without latents none has such a layout.
    let is_known = stored.is_some() || !word.ends_with("_ds_mla");
    if is_known && of(OfAttention::default()).is_ok_and(|planned| planned == stored) {
        if let Some(name) = stored.and_then(Stored::name).filter(|name| *name != word) {
            question.notes.push(format!("its log says that it uses the {name} KV cache format"));
        }
        return Ok(());
    }
    let by = named.as_ref().map_or(String::new(), |backend| format!(" by {backend}"));
    let why = format!("caches in `{word}`{by} were not read for this model and device");
    let remedies =
        [Remedy::Set(FLAG, "auto".into()), Remedy::Set(FLAG, "fp8".into()), Remedy::Remove(attention::NAMED_BY)];
    Err(ServeError::unread(FLAG, why, remedies))
}

/// `--dtype bfloat16` on a card that has none.
pub(in super::super) fn bfloat16(question: &Question, request: &PlanRequest) -> Result<(), ServeError> {
    const FLAG: &str = "--dtype";
    let capability = request.budget()?.engine.compute_capability.filter(|capability| *capability < 80);
    let (Some(capability), Some(device)) = (capability, question.device()) else { return Ok(()) };
    if question.value(FLAG) != Some("bfloat16") {
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

/// `--kv-cache-dtype` of 16 bits beside a model in others.
fn other_float(question: &Question, request: &PlanRequest) -> Result<(), ServeError> {
    const FLAG: &str = "--kv-cache-dtype";
    let Some(word) = question.value(FLAG) else { return Ok(()) };
    let run_in = run_as(question, request.model()).and_then(self::word);
    let run_in = run_in.unwrap_or_else(|| vllm::run_in(request.model().info().dtype));
    let Some(said) = vllm::other_float(question.engine.version, word, run_in) else { return Ok(()) };
    let allowed = if run_in == "float32" { "`auto`".to_owned() } else { format!("`auto` or `{run_in}`") };
    let said = format!("{said}. Please set `--kv-cache-dtype` to {allowed}.");
    Err(question.refused(said, [Remedy::Set(FLAG, "auto".into())]))
}
