//! What a config's quantisation section says about caches and weights.

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
#[derive(Clone, Copy, Debug)]
pub(super) struct Unknown;

/// The dtype of weight matrices: `None` where they are not quantised.
pub(super) fn weight_dtype(values: &Values<'_>) -> Result<Option<DType>, Unknown> {
    match SECTIONS.iter().find_map(|section| values.get(section)) {
        None => Ok(None),
        Some(section) if section.get("quant_method").is_some_and(|method| method == "fp8") => Ok(Some(DType::F8E4m3)),
        // Other methods quantise some layers and leave others: only the tensors' headers tell which.
        Some(_) => Err(Unknown),
    }
}
