//! What a command says of the states of a model and of windows, as SGLang reads it beside its parser.

use super::super::Question;
use crate::error::ServeError;
use crate::remedy::Remedy;

/// Reads the dtype that a variable states, which its flag stands above (`configs/mamba_utils.py` of 0.5.23), and refuses what it serves
/// nothing with.
pub(super) fn settle(question: &mut Question) -> Result<(), ServeError> {
    const VARIABLE: &str = "SGLANG_MAMBA_SSM_DTYPE";
    const NAMES: [(&str, &str); 3] = [("float32", "f32"), ("bfloat16", "bf16"), ("float16", "f16")];
    const WINDOWS: &str = "--swa-full-tokens-ratio";
    if question.flag("--mamba-ssm-dtype").is_none()
        && let Some(word) = question.env.get(VARIABLE).cloned()
    {
        match NAMES.iter().find(|(name, _)| *name == word) {
            Some((_, dtype)) => question.default_of("dtypes.ssm", format!("\"{dtype}\"")),
            None => question.notes.push(format!("{VARIABLE}: `{word}` is no dtype of states, and is passed over")),
        }
    }
    // `kv_cache_hook.py`, as 0.5.23 has it.
    match question.flag(WINDOWS).and_then(|setting| setting.value().trim().parse::<f64>().ok()) {
        Some(ratio) if !(ratio > 0.0 && ratio <= 1.0) => {
            let said = "--swa-full-tokens-ratio should be in range (0, 1.0].";
            Err(question.refused(said, [Remedy::Remove(WINDOWS)]))
        }
        _ => Ok(()),
    }
}
