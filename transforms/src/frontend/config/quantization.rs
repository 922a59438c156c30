//! What a config's quantisation section says about caches.

use std::path::Path;

use cacheplan_handlers::DType;
use serde_json::{Map, Value};

use super::values::Values;
use crate::frontend::FrontendError;

/// Sections that hold the scheme of a checkpoint.
pub(super) const SECTIONS: [&str; 2] = ["quantization_config", "compression_config"];

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
    // ModelOpt writes it as its own file has it, or without the section around.
    let plain = SECTIONS.map(|section| format!("{section}.kv_cache_quant_algo"));
    let within = format!("{}.quantization.kv_cache_quant_algo", SECTIONS[0]);
    if let Some((dtype, key)) = values.dtype(&[&plain[0], &within, &plain[1], "kv_cache_dtype"])? {
        values.note("kv dtype", &dtype, key, false);
        return Ok(Some(dtype));
    }
    for section in SECTIONS {
        let key = format!("{section}.kv_cache_scheme");
        let Some(scheme) = values.get(&key) else { continue };
        if scheme.is_string() {
            return Ok(values.dtype(&[&key])?.map(|(dtype, key)| {
                values.note("kv dtype", &dtype, key, false);
                dtype
            }));
        }
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
