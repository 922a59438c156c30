//! vLLM's V0 engine, before the one that is modelled: what is asked of it has no answer.

use std::ops::Range;

use cacheplan_planner::engines::Version;

use super::super::{Question, speculation};
use crate::error::ServeError;
use crate::remedy::Remedy;

/// Versions that have both and choose (`_is_v1_supported_oracle`, read in 0.8.5 and 0.11.0).
const HAS_BOTH: Range<Version> = Version(0, 8, 0)..Version(0, 11, 0);
const VARIABLE: &str = "VLLM_USE_V1";
/// Flags of V0 alone, where they say something else than their default.
const OF_V0: [&str; 9] = [
    "--num-scheduler-steps",
    "--preemption-mode",
    "--disable-async-output-proc",
    "--scheduler-delay-factor",
    "--enable-prompt-adapter",
    "--logits-processor-pattern",
    "--max-num-partial-prefills",
    "--max-long-partial-prefills",
    "--otlp-traces-endpoint",
];
const SPECULATIVE: &str = "--speculative-config";

/// Refuses what starts V0.
pub(super) fn refuse(question: &Question) -> Result<(), ServeError> {
    if !HAS_BOTH.contains(&question.engine.version) {
        return Ok(());
    }
    let chosen = question.env.get(VARIABLE).and_then(|value| value.trim().parse::<i64>().ok());
    let why = "it starts vLLM's V0 engine, whose caches were not read";
    if chosen == Some(0) {
        return Err(ServeError::unread(VARIABLE, why, []));
    }
    let stated = OF_V0.into_iter().filter_map(|flag| question.flag(flag));
    let of_flag = stated.filter(|setting| !question.states_default(setting)).map(|setting| setting.flag.name).next();
    let drafts = speculation::is_by_a_model(question)?.then_some(SPECULATIVE);
    let Some(flag) = of_flag.or(drafts) else { return Ok(()) };
    let name = if flag == SPECULATIVE { "Speculative Decoding" } else { flag };
    match chosen {
        Some(_) => Err(question.refused(format!("{VARIABLE}=1 is not supported with {name}."), [Remedy::Remove(flag)])),
        None => Err(ServeError::unread(flag, why, [Remedy::Remove(flag)])),
    }
}
