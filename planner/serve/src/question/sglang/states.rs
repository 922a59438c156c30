//! What a command says of the states of a model and of windows, as SGLang reads it beside its parser.

use cacheplan_planner::engines::sglang::SIZES_WINDOWS_BY_REQUESTS;

use super::super::Question;
use super::super::rules::Case;
use super::{ROLE, RUNNING};
use crate::error::ServeError;
use crate::remedy::Remedy;

/// Whether windows get what the running requests hold at worst, rather than a share (`SWARequestCapPoolConfigurator.is_applicable`, and
/// DeepSeek-V4.1's without a ratio).
pub(super) fn sizes_windows_by_requests(case: &Case<'_>) -> bool {
    let by_itself = case.model_type().starts_with("deepseek_v41") && !case.is_stated("--swa-full-tokens-ratio");
    let told = case.forgets_windows() && case.is_stated(RUNNING) && !case.question.keeps_prefixes();
    case.question.engine.version >= SIZES_WINDOWS_BY_REQUESTS && (by_itself || told)
}

/// Refuses windows of requests whose worst case hangs on what is not planned: sequences that are moved to a server that decodes, and
/// trees of drafts.
pub(super) fn look(case: &Case<'_>) -> Result<(), ServeError> {
    const DRAFTS: &str = "--speculative-algorithm";
    let by_requests = sizes_windows_by_requests(case);
    let decodes = case.word(ROLE) == Some("decode") && (by_requests || case.model_type().starts_with("deepseek_v4"));
    let overlaps = !case.is_on("--disable-overlap-schedule") && case.size("--pp-size") == 1;
    let drafts = by_requests && case.is_stated(DRAFTS) && (case.size("--speculative-eagle-topk") > 1 || !overlaps);
    const ENTRIES: &str = "--dsv4-attn-backend";
    let entries = match case.word(ENTRIES) {
        Some("trtllm") => case.model_type().starts_with("deepseek_v4"),
        Some("flashmla") => case.model_type().starts_with("deepseek_v41") && case.generation() == Some(10),
        _ => false,
    };
    let (flag, why) = match (decodes, drafts) {
        _ if entries => (ENTRIES, "how its kernels lay entries out is not planned"),
        (true, _) => (ROLE, "room in windows for sequences that are moved to it is not planned"),
        (_, true) => (DRAFTS, "room in windows for trees of drafts, and without overlapping steps, is not planned"),
        _ => return Ok(()),
    };
    Err(ServeError::unread(flag, why, [Remedy::Remove(flag)]))
}

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
