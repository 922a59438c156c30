//! Which CUDA graphs it captures: `cudagraph_mode`, however the command says it.

use serde_json::Value;

use super::super::Question;

const COMPILE: &str = "--compilation-config";

/// What `CUDAGraphMode` comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Graphs {
    None,
    /// Pieces between attention alone.
    Piecewise,
    /// Decoding as a whole, whatever besides.
    Full,
}

impl Graphs {
    /// The mode that a command states, else that of its optimization level (`OPTIMIZATION_LEVEL_00` and on); eager execution stands
    /// above both.
    pub(super) fn of(question: &Question) -> Self {
        if question.is_on("--enforce-eager") {
            return Self::None;
        }
        match stated(question, "cudagraph_mode") {
            Some(Value::String(mode)) if mode.eq_ignore_ascii_case("none") => Self::None,
            Some(Value::String(mode)) if mode.eq_ignore_ascii_case("piecewise") => Self::Piecewise,
            Some(Value::Number(mode)) if mode.as_u64() == Some(0) => Self::None,
            Some(Value::Number(mode)) if mode.as_u64() == Some(1) => Self::Piecewise,
            Some(mode) if !mode.is_null() => Self::Full,
            _ => match question.value("--optimization-level") {
                Some("0") => Self::None,
                Some("1") => Self::Piecewise,
                _ => Self::Full,
            },
        }
    }

    /// Whether none is captured, nor measured: an encoder of images has graphs of its own, which eager execution alone leaves out.
    pub(super) fn are_none(question: &Question) -> bool {
        let of_encoder = stated(question, "cudagraph_mm_encoder").is_some_and(|on| on == Value::Bool(true));
        Self::of(question) == Self::None && (question.is_on("--enforce-eager") || !of_encoder)
    }
}

/// A key of the compilation's configuration.
fn stated(question: &Question, key: &str) -> Option<Value> {
    let config: Value = serde_json::from_str(question.flag(COMPILE)?.value()).ok()?;
    config.get(key).cloned()
}
