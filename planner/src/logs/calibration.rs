//! Measured lines for the ledger, from a log or from the file that was written of one.

use thiserror::Error;

use super::EngineLog;
use super::fact::Fact;
use super::wording::Logged;
use crate::engines::{Engine, EngineSpec, Version};
use crate::measured::{MeasuredBytes, MeasuredLedger, MeasuredLimits, MeasuredLines};

/// A text that holds no measured lines.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{origin}{}: {message}", line.map(|line| format!(":{line}")).unwrap_or_default())]
pub struct MeasuredError {
    /// The file.
    pub origin: String,
    /// The line at fault.
    pub line: Option<usize>,
    /// What is wrong with it.
    pub message: String,
}

/// A log that says nothing but what its caches are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "the log of {0} says nothing of weights, activations, graphs or context, so that there is nothing to calibrate"
)]
pub struct NothingMeasured(Engine);

impl MeasuredLedger {
    /// What `log` says besides its caches; `name` is what the lines will be said to come from.
    ///
    /// # Errors
    /// A log without such a line.
    pub fn from_log(log: &EngineLog, name: &str) -> Result<Self, NothingMeasured> {
        let line = |fact: Fact| {
            let logged = log.get(fact)?;
            Some(MeasuredBytes { bytes: logged.middle(), within: (logged.high - logged.low).div_ceil(2) })
        };
        let count = |fact: Fact| log.get(fact).map(Logged::middle);
        let small = |fact: Fact| count(fact).and_then(|count| u32::try_from(count).ok());
        let weights = line(Fact::Weights);
        // Newer vLLM logs weights and context together.
        let together = line(Fact::Resident).zip(weights).map(|(resident, weights)| MeasuredBytes {
            bytes: resident.bytes.saturating_sub(weights.bytes),
            within: resident.within.saturating_add(weights.within),
        });
        let lines = MeasuredLines {
            weights,
            activations: line(Fact::Activations),
            graphs: line(Fact::Graphs),
            context: line(Fact::Context).or(together),
            nccl: line(Fact::Nccl),
        };
        if lines == MeasuredLines::default() {
            return Err(NothingMeasured(log.engine));
        }
        let limits = MeasuredLimits {
            tp: small(Fact::Tp),
            pp: small(Fact::Pp),
            // llama.cpp computes as many tokens at once as its `n_ubatch`, however many a batch has.
            max_num_tokens: count(Fact::Ubatch).or_else(|| count(Fact::MaxNumTokens)),
            max_batch_size: count(Fact::MaxBatchSize),
        };
        let version = log.version.map(|version| EngineSpec { engine: log.engine, version }.version_name());
        let name: String = name.chars().map(|char| if char.is_control() { '_' } else { char }).collect();
        Ok(Self { engine: Some(log.engine.name().into()), version, log: Some(name), limits, lines })
    }

    /// Reads the lines; `origin` names the text in errors.
    ///
    /// # Errors
    /// What is no such TOML, with a key that is not known, or without any line.
    pub fn from_toml(text: &str, origin: &str) -> Result<Self, MeasuredError> {
        let wrong = |line: Option<usize>, message: String| MeasuredError { origin: origin.into(), line, message };
        let read: Self = cacheplan_files::Source::parse_toml(text).map_err(|error| wrong(error.line, error.message))?;
        if read.engine.as_deref().is_some_and(|name| Engine::all().iter().all(|engine| engine.name() != name)) {
            return Err(wrong(None, "`engine` is none that is known, such as vllm".into()));
        }
        let name = read.log.as_deref().unwrap_or_default();
        if name.chars().any(char::is_control) {
            return Err(wrong(None, "`log` has control characters; the name of a file was expected".into()));
        }
        if read.version.as_deref().is_some_and(|version| version.parse::<Version>().is_err()) {
            return Err(wrong(None, "`version` is no version such as 0.19.0".into()));
        }
        if read.lines == MeasuredLines::default() {
            return Err(wrong(
                None,
                "`[lines]` is empty; weights, activations, graphs, context or nccl were expected".into(),
            ));
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("engine = 'vllm'\n[lines]\nweight = { bytes = 1 }\n", Some(3), "unknown field `weight`")]
    #[case("engin = 'vllm'\n[lines]\nweights = { bytes = 1 }\n", Some(1), "unknown field `engin`")]
    #[case("[lines]\nweights = { bytes = 1, width = 2 }\n", Some(2), "unknown field `width`")]
    #[case("[lines]\nweights = { bytes = -1 }\n", Some(2), "-1")]
    #[case("[lines]\nweights = 1\n", Some(2), "invalid type")]
    #[case("[lines]\n", None, "`[lines]` is empty")]
    #[case("log = \"a\\u001b[2J\"\n[lines]\nweights = { bytes = 1 }\n", None, "control characters")]
    #[case("version = 'new'\n[lines]\nweights = { bytes = 1 }\n", None, "no version")]
    #[case("engine = 'vlm'\n[lines]\nweights = { bytes = 1 }\n", None, "`engine` is none that is known")]
    fn what_is_wrong_is_named_with_its_line(#[case] text: &str, #[case] line: Option<usize>, #[case] expected: &str) {
        let error = MeasuredLedger::from_toml(text, "measured.toml").unwrap_err();
        assert_eq!(error.line, line, "{error}");
        assert!(error.to_string().starts_with("measured.toml") && error.message.contains(expected), "{error}");
    }
}
