//! `--quantization` of weights that the files have in full: what the engine makes of them as it loads them.

use cacheplan_planner::engines::Version;
use cacheplan_planner::{ByteSize, ModelCaches};
use serde_json::Value;

use super::Question;
use crate::error::ServeError;
use crate::remedy::Remedy;

const FLAG: &str = "--quantization";
const FORMAT: &str = "--load-format";
const BITSANDBYTES: &str = "bitsandbytes";

/// Bytes of a weight of its layers' products: `fp8` has a scale for each tensor, row or block of 128 by 128, `bitsandbytes` one of 32 bits for
/// 64 of 4 bits.
fn bytes_each(method: &str) -> Option<f64> {
    match method {
        "fp8" | "fp8_per_tensor" | "fp8_per_channel" => Some(1.0),
        "fp8_per_block" => Some(1.0 + 4.0 / (128.0 * 128.0)),
        BITSANDBYTES => Some(0.5 + 4.0 / 64.0),
        _ => None,
    }
}

/// vLLM has had `fp8` on a device as it is loaded since vllm#31914; 0.14.0 did not (vllm#32773).
const LOADS_QUANTISED: Version = Version(0, 15, 0);

/// Weights that the engine quantises are assumed where the method is known; another must be stated.
pub(super) fn settle(question: &mut Question, model: &ModelCaches) -> Result<(), ServeError> {
    let is_measured = question.measured.as_ref().is_some_and(|measured| measured.lines.weights.is_some());
    let is_told = question.is_stated("engine.cache_bytes") || question.is_stated("memory.weights") || is_measured;
    if is_told || question.device().is_none() {
        return Ok(());
    }
    let named = |flag: &str| question.value(flag).map(str::to_lowercase);
    let by_format = named(FORMAT).filter(|format| format == BITSANDBYTES);
    let Some(stated) = named(FLAG).or(by_format) else { return Ok(()) };
    let section = model.model().and_then(|model| model.config.get("quantization_config"));
    let method = section.and_then(|section| section.get("quant_method")).and_then(Value::as_str).unwrap_or("");
    let same = !method.is_empty() && (stated.contains(method) || method.contains(&*stated));
    // SGLang reads one method's files by the kernels of another.
    if same || (!method.is_empty() && question.engine.engine.name() == "sglang") {
        return Ok(());
    }
    let weights = bytes_each(&stated).filter(|_| method.is_empty()).and_then(|bytes| model.weights_at(bytes));
    if let Some(weights) = weights {
        question.weights = Some(weights);
        question.notes.push(format!(
            "{stated} makes {} of the weights, assumed: products of the layers are quantised, all else is as stored; --weights states it",
            ByteSize(weights.bytes)
        ));
        if stated == "fp8" && question.engine.engine.name() == "vllm" && question.engine.version < LOADS_QUANTISED {
            question.loads_in_full = true;
            question.notes.push(format!("before {LOADS_QUANTISED} it loads weights in full and quantises them then"));
        }
        return Ok(());
    }
    let stored = if method.is_empty() { "in full" } else { method };
    let why = format!("it quantises weights that the files have {stored}; state what they take with --weights");
    Err(ServeError::unread(FLAG, why, [Remedy::Remove(FLAG)]))
}
