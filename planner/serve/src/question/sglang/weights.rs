//! How weights are quantised: the method that files name beside the one that a command does, and the GPUs and dtypes that its kernels take
//! (`_verify_quantization` of `model_config.py`, and `_get_quantization_config` of `loader.py`, of 0.5.23).

use cacheplan_handlers::DType;
use serde_json::Value;

use super::super::dtype_named;
use super::super::rules::{Case, listed, lists};
use super::BRAIN_FLOAT;

pub(super) const FLAG: &str = "--quantization";

/// Methods, and the compute capability, times ten, from which on their kernels run.
const METHODS: [(&str, u32); 15] = [
    ("awq", 75),
    ("awq_marlin", 80),
    ("bitsandbytes", 70),
    ("blockwise_int8", 80),
    ("compressed-tensors", 70),
    ("fp8", 80),
    ("gptq_marlin", 80),
    ("modelopt_fp4", 80),
    ("modelopt_fp8", 89),
    ("moe_wna16", 70),
    ("mxfp4", 80),
    ("nvfp4_online", 100),
    ("w4afp8", 90),
    ("w8a8_fp8", 89),
    ("w8a8_int8", 75),
];
/// Methods of files, and those of commands that read them too.
const READ_BY: [(&str, &str); 7] = [
    ("awq", "awq_marlin marlin moe_wna16 humming"),
    ("gptq", "gptq_marlin marlin moe_wna16 humming"),
    ("fp8", "modelopt_fp4 nvfp4_online w4afp8 humming"),
    ("mxfp4", "humming"),
    ("compressed-tensors", "w8a8_int8 w8a8_fp8 auto-round-int8 humming"),
    ("bitsandbytes", ""),
    ("modelopt", "modelopt_fp8 modelopt_fp4 modelopt_mixed petit_nvfp4"),
];
/// All that it has on NVIDIA's GPUs, and on AMD's.
const KNOWN: &str = "fp8 mxfp8 minimax_m3_nvfp4 blockwise_int8 modelopt modelopt_fp8 modelopt_fp4 nvfp4_online modelopt_mixed w8a8_int8 \
    w8a8_fp8 awq awq_marlin bitsandbytes gguf gptq_marlin moe_wna16 compressed-tensors w4afp8 petit_nvfp4 quark quark_mxfp4 auto-round \
    auto-round-int8 modelslim quark_int4fp8_moe humming mxfp_w4a8 mxfp4 marlin";
const ON_AMD: &str = "awq fp8 compressed-tensors w8a8_fp8 petit_nvfp4 quark mxfp4 mxfp8 auto-round auto-round-int8 quark_int4fp8_moe \
    quark_mxfp4";
/// What reads files of any method.
const OF_ANY: &str = "quark_mxfp4 unquant";

/// What refuses the method of weights.
pub(super) fn refuses(case: &Case<'_>) -> Option<String> {
    let section = case.model.model()?.stated("quantization_config");
    let of_files = |key: &str| section.and_then(|section| section.get(key)?.as_str()).unwrap_or_default();
    let stored = of_files("quant_method").to_lowercase();
    let told = case.word(FLAG).map(str::to_lowercase).filter(|told| told != "unquant");
    let readers = READ_BY.iter().find(|(method, _)| *method == stored);
    if let (Some(told), Some((_, readers))) = (&told, readers)
        && *told != stored
        && !lists(readers, told)
        && !lists(OF_ANY, told)
    {
        return Some(format!(
            "Quantization method specified in the model config ({stored}) does not match the quantization method specified in the `quantization` argument ({told})."
        ));
    }
    let method = method(case).filter(|method| !method.is_empty())?;
    if !lists(KNOWN, &method) {
        return Some(format!("Unknown quantization method: {method}. Must be one of {}.", listed(KNOWN)));
    }
    let is_amd = case.question.is_on_amd();
    if is_amd && !lists(ON_AMD, &method) {
        return Some(format!("{method} quantization is currently not supported in ROCm."));
    }
    // Schemes of some of its formats need more than it does.
    let least = match (&*method, of_files("format")) {
        ("compressed-tensors", "pack-quantized" | "float-quantized") => 80,
        _ => METHODS.iter().find(|(known, _)| *known == method).map_or(0, |(_, least)| *least),
    };
    let found = super::capability(case.question, case.model).or(is_amd.then_some(u32::MAX))?;
    if found < least {
        return Some(format!(
            "The quantization method {method} is not supported for the current GPU. Minimum capability: {least}. Current capability: {found}."
        ));
    }
    // Its older kernels take float16 alone, and are kept to where they are named, or where others do not run.
    let is_older = stored == "awq" && (told.as_deref() == Some(&*stored) || is_amd);
    let is_brain = dtype(case, found) == DType::Bf16;
    (is_older && is_brain).then(|| {
        format!("torch.bfloat16 is not supported for quantization method {method}. Supported dtypes: [torch.float16]")
    })
}

/// The method, by its name for what the command or the files say; empty where neither does.
pub(super) fn method(case: &Case<'_>) -> Option<String> {
    let section = case.model.model()?.stated("quantization_config");
    let of_files = |key: &str| section.and_then(|section| section.get(key)?.as_str()).unwrap_or_default();
    let told = case.word(FLAG).map(str::to_lowercase).filter(|told| told != "unquant");
    Some(match (told, &*of_files("quant_method").to_lowercase(), of_files("quant_algo")) {
        (Some(told), ..) => told,
        (None, "modelopt", "FP8") => "modelopt_fp8".to_owned(),
        (None, "modelopt", "NVFP4") => "modelopt_fp4".to_owned(),
        (None, "modelopt", "MIXED_PRECISION") => "modelopt_mixed".to_owned(),
        (None, "gptq", _) if by_marlin(case, section) => "gptq_marlin".to_owned(),
        (None, "compressed_tensors", _) => "compressed-tensors".to_owned(),
        (None, "intel/auto-round", _) => "auto-round".to_owned(),
        (None, stored, _) => stored.to_owned(),
    })
}

/// Whether Marlin's kernels take files of GPTQ (`is_gptq_marlin_compatible`), which no others do on GPUs since.
fn by_marlin(case: &Case<'_>, section: Option<&Value>) -> bool {
    let of_files = |key: &str| section.and_then(|section| section.get(key));
    let bits = of_files("bits").and_then(Value::as_u64);
    let group = of_files("group_size").and_then(Value::as_i64);
    let is_even = of_files("sym").and_then(Value::as_bool).unwrap_or(true);
    bits.is_none_or(|bits| matches!(bits, 4 | 8))
        && group.is_none_or(|group| matches!(group, -1 | 32 | 64 | 128))
        && is_even
        && !case.question.is_on_amd()
        && super::capability(case.question, case.model).is_none_or(|found| found >= 80)
}

/// The dtype that the model is run in.
fn dtype(case: &Case<'_>, capability: u32) -> DType {
    let told = case.word("--dtype").map(str::to_lowercase).and_then(|word| dtype_named(&word));
    if capability < BRAIN_FLOAT { DType::F16 } else { told.unwrap_or(case.model.info().dtype) }
}
