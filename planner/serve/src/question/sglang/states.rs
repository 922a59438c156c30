//! What a command says of the states of a model and of windows, as SGLang reads it beside its parser.

use super::super::Question;
use crate::error::ServeError;
use crate::remedy::Remedy;

/// Reads the dtypes that variables state, above which a flag stands (`configs/mamba_utils.py` of 0.5.23), and refuses what it serves
/// nothing with.
pub(super) fn settle(question: &mut Question) -> Result<(), ServeError> {
    const VARIABLES: [(&str, &str, &str); 2] =
        [("SGLANG_MAMBA_SSM_DTYPE", "dtypes.ssm", "--mamba-ssm-dtype"), ("SGLANG_MAMBA_CONV_DTYPE", "dtypes.conv", "")];
    const NAMES: [(&str, &str); 3] = [("float32", "f32"), ("bfloat16", "bf16"), ("float16", "f16")];
    const WINDOWS: &str = "--swa-full-tokens-ratio";
    for (variable, key, flag) in VARIABLES {
        let Some(word) = question.env.get(variable).filter(|_| question.flag(flag).is_none()).cloned() else {
            continue;
        };
        match NAMES.iter().find(|(name, _)| *name == word) {
            Some((_, dtype)) => question.default_of(key, format!("\"{dtype}\"")),
            None => question.notes.push(format!("{variable}: `{word}` is no dtype of states, and is passed over")),
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
