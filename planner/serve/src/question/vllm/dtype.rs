//! The dtypes that the model and its caches are kept in.

use cacheplan_handlers::{DType, Kind};
use cacheplan_planner::engines::{Stored, Version, vllm};
use cacheplan_planner::error::EngineRefusal;
use cacheplan_planner::{ModelCaches, PlanError, PlanRequest};

use super::super::calibrated::{self, Reads};
use super::super::{Question, dtype_named};
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
/// `_FLOAT16_NOT_SUPPORTED_MODELS` of vllm-project/vllm@18ec662, a build of about this version.
const WITHOUT_FLOAT16: [&str; 5] = ["gemma2", "gemma3", "gemma3_text", "plamo2", "glm4"];
const REFUSES_FLOAT16: Version = Version(0, 12, 0);

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
    if let Some(dtype) = question.value("--dtype").and_then(dtype_named) {
        run_in(question, model, dtype)?;
    }
    without_convs(question, model)
}

fn run_in(question: &mut Question, model: &ModelCaches, dtype: DType) -> Result<(), ServeError> {
    let model_type = &*model.info().model_type;
    if dtype == DType::F16 && WITHOUT_FLOAT16.contains(&model_type) && question.engine.version >= REFUSES_FLOAT16 {
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
    if dtype == DType::F32
        && model.info().dtype != DType::F32
        && !question.is_stated("engine.cache_bytes")
        && !question.is_stated("memory.weights")
    {
        return Err(ServeError::weights_unknown("--dtype", Remedy::Set("--dtype", "auto".into())));
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

/// What a model's latents are kept in: vLLM refuses words that no kernel reads, and some mean another layout than is planned for them.
pub(in super::super) fn latents(question: &mut Question, request: &PlanRequest) -> Result<(), ServeError> {
    const FLAG: &str = "--kv-cache-dtype";
    other_float(question, request)?;
    let word = question.value(FLAG).unwrap_or("auto").to_owned();
    let backend = attention::named(question);
    let refusal = |refusal: EngineRefusal| match refusal {
        EngineRefusal::Kernel { said, .. } => {
            let words = ["fp8", "auto"].into_iter().filter(|other| *other != word);
            question.refused(said, words.map(|other| Remedy::Set(FLAG, other.to_owned())))
        }
        other => PlanError::from(other).into(),
    };
    let (info, caches, budget) = (request.model().info(), request.caches()?, request.budget()?);
    let of = |word, backend| question.engine.stored(info, &caches, &budget, word, backend).map_err(refusal);
    let stated = Some(&*word).filter(|word| *word != "auto");
    let stored = match of(stated, backend.as_deref())? {
        None if backend.is_some() => of(stated, None)?,
        stored => stored,
    };
    // Without latents none has such a layout.
    let is_known = stored.is_some() || !word.ends_with("_ds_mla");
    if is_known && stored == of(None, None)? {
        if let Some(name) = stored.and_then(Stored::name).filter(|name| *name != word) {
            question.notes.push(format!("its log says that it uses the {name} KV cache format"));
        }
        return Ok(());
    }
    let by = backend.map_or(String::new(), |backend| format!(" by {backend}"));
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
    let run_in = match question.value("--dtype").unwrap_or("auto") {
        "half" | "float16" => "float16",
        "bfloat16" => "bfloat16",
        "float" | "float32" => "float32",
        _ => vllm::run_in(request.model().info().dtype),
    };
    let Some(said) = vllm::other_float(question.engine.version, word, run_in) else { return Ok(()) };
    let allowed = if run_in == "float32" { "`auto`".to_owned() } else { format!("`auto` or `{run_in}`") };
    let said = format!("{said}. Please set `--kv-cache-dtype` to {allowed}.");
    Err(question.refused(said, [Remedy::Set(FLAG, "auto".into())]))
}
