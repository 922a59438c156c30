//! What a config's quantisation section says about caches and weights.

use std::path::Path;

use cacheplan_handlers::DType;
use serde_json::{Map, Value};

use super::values::Values;
use crate::frontend::FrontendError;

/// Sections that hold the scheme of a checkpoint.
const SECTIONS: [&str; 2] = ["quantization_config", "compression_config"];

/// Adds what ModelOpt's own file says to the config's section; what the config says itself stays.
pub(super) fn merge(config: &mut Map<String, Value>, calibration: Map<String, Value>) {
    let section = config.entry(SECTIONS[0]).or_insert_with(|| Value::Object(Map::new()));
    let stated = calibration.into_iter().find(|(key, _)| key == "quantization");
    if let (Value::Object(section), Some((_, Value::Object(stated)))) = (section, stated) {
        for (key, value) in stated {
            section.entry(key).or_insert(value);
        }
    }
}

/// The dtype of keys and values that the checkpoint was calibrated for.
pub(super) fn kv_dtype(values: &Values<'_>) -> Result<Option<DType>, FrontendError> {
    let plain = SECTIONS.map(|section| format!("{section}.kv_cache_quant_algo"));
    if let Some((dtype, key)) = values.dtype(&[&plain[0], &plain[1], "kv_cache_dtype"])? {
        values.note("kv dtype", &dtype, key, false);
        return Ok(Some(dtype));
    }
    for section in SECTIONS {
        let key = format!("{section}.kv_cache_scheme");
        let Some(scheme) = values.get(&key) else { continue };
        let field = |name: &str| scheme.get(name);
        let dtype = match (field("num_bits").and_then(Value::as_u64), field("type").and_then(Value::as_str)) {
            (Some(8), Some("float")) => DType::F8E4m3,
            (Some(8), Some("int")) => DType::Int8,
            (Some(4), Some("float")) => DType::Nvfp4,
            _ => return Err(values.bad(&key, scheme, "8-bit float, 8-bit int or 4-bit float was expected")),
        };
        values.note("kv dtype", &dtype, key, false);
        return Ok(Some(dtype));
    }
    Ok(None)
}

/// The config does not tell how many bytes its weights take.
#[derive(Clone, Debug)]
pub(super) struct Unknown {
    /// What is stated and does not tell.
    pub(super) why: String,
}

/// How weights are stored, where it is not in the model's dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stored {
    /// As the model's dtype says.
    Plain,
    /// All matrices in this one.
    Matrices(DType),
    /// Routed experts in this one, everything else as the model's dtype says.
    Experts(DType),
    /// Routed experts in the second, all other matrices in the first.
    Both(DType, DType),
}

/// How a checkpoint's weights are stored.
pub(super) fn weight_dtype(values: &Values<'_>) -> Result<Stored, Unknown> {
    let found = SECTIONS.iter().find_map(|section| Some((section, values.get(section)?)));
    let Some((name, section)) = found else { return Ok(Stored::Plain) };
    match section.get("quant_method").and_then(Value::as_str) {
        Some("fp8") => fp8(name, section, values),
        // The format of gpt-oss: only experts have blocks of 32 with a scale.
        Some("mxfp4") => Ok(Stored::Experts(DType::Mxfp4)),
        // Other methods quantise some layers and leave others: only the tensors' headers tell which.
        method => {
            let method = method.unwrap_or("absent");
            let why = format!("`{name}.quant_method` is {method}, of which only the tensors' headers tell the layers");
            Err(Unknown { why })
        }
    }
}

/// Blocks of fp8: all matrices of the layers, but routers, and experts where they are stated to be of fp4.
fn fp8(name: &str, section: &Value, values: &Values<'_>) -> Result<Stored, Unknown> {
    const NOT_IN_LAYERS: [&str; 8] = ["lm_head", "gate", "router", "embed", "norm", "bias", "vis", "mtp"];
    let kept = section.get("modules_to_not_convert").and_then(Value::as_array).into_iter().flatten();
    let kept = kept.filter_map(Value::as_str).find(|module| !NOT_IN_LAYERS.iter().any(|word| module.contains(word)));
    if let Some(module) = kept {
        let why = format!("`{name}.modules_to_not_convert` has {module}, whose weights only the tensors' headers tell");
        return Err(Unknown { why });
    }
    Ok(match values.get("expert_dtype").and_then(Value::as_str) {
        Some("fp4") => Stored::Both(DType::F8E4m3, DType::Mxfp4),
        _ => Stored::Matrices(DType::F8E4m3),
    })
}

/// Parts of names that say how weights are stored.
const NAMED: [&str; 11] = ["fp8", "fp4", "nvfp4", "mxfp4", "int8", "int4", "awq", "gptq", "w4a16", "w8a8", "w8a16"];

/// Says that the model's name tells of a quantisation that its config does not state.
pub(super) fn named_only(values: &Values<'_>) -> Option<String> {
    if SECTIONS.iter().any(|section| values.get(section).is_some()) {
        return None;
    }
    // The file is called after the model, or stands in a folder that is.
    let path = Path::new(values.file);
    let parts = path.components().rev().take(2).map(|part| part.as_os_str().to_string_lossy().into_owned());
    let stated = values.get("_name_or_path").and_then(Value::as_str).map(str::to_owned);
    let names: Vec<String> = parts.chain(stated).collect();
    let mut words = names.iter().flat_map(|name| name.split(|letter: char| !letter.is_ascii_alphanumeric()));
    let word = words.find(|word| NAMED.contains(&&*word.to_lowercase()))?;
    Some(format!(
        "the name says {word}, but the config states no quantization_config: its weights and caches are taken as not quantised"
    ))
}
