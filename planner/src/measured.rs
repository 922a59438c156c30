//! What an engine or a profile measured of a device's bytes: one format and its writer.
//!
//! ```toml
//! engine = "vllm"
//! version = "0.19.0"
//! log = "start.log"
//!
//! [limits]
//! tp = 1
//! max_num_tokens = 8192
//!
//! [lines]
//! weights = { bytes = 18962280612, within = 5368709 }
//! graphs = { bytes = 697932186, within = 5368709 }
//! ```
//!
//! The lines are those of the ledger, in bytes on one device, each with how far off the true number may be. What is
//! absent was not measured.

use std::fmt::Write;

use serde::Deserialize;

use crate::error::PlanError;
use crate::parallel::Parallel;
use crate::plan::{Certainty, LedgerItem};
use crate::size::{self, ByteSize};

/// Measured lines for the ledger of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredLedger {
    /// The engine that logged them; absent where this library measured them itself.
    pub engine: Option<String>,
    /// Its version, as it writes it.
    pub version: Option<String>,
    /// The name of the log that they were read from.
    pub log: Option<String>,
    /// What they were measured with.
    #[serde(default)]
    pub limits: MeasuredLimits,
    /// The lines.
    pub lines: MeasuredLines,
}

/// What lines were measured with; absent where nobody knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredLimits {
    /// Tensor-parallel ranks, over which weights are divided.
    pub tp: Option<u32>,
    /// Pipeline stages, likewise.
    pub pp: Option<u32>,
    /// The most tokens in a step, with which activations grow.
    pub max_num_tokens: Option<u64>,
    /// The most sequences in a step.
    pub max_batch_size: Option<u64>,
}

/// The lines of the ledger that can be measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredLines {
    /// Weights.
    pub weights: Option<MeasuredBytes>,
    /// The peak of one step.
    pub activations: Option<MeasuredBytes>,
    /// Captured CUDA graphs.
    pub graphs: Option<MeasuredBytes>,
    /// The CUDA context and libraries.
    pub context: Option<MeasuredBytes>,
    /// NCCL's buffers.
    pub nccl: Option<MeasuredBytes>,
}

/// Bytes on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredBytes {
    /// How many.
    #[serde(deserialize_with = "size::bytes")]
    pub bytes: u64,
    /// How far off they may be, as where a log rounds them.
    #[serde(default, deserialize_with = "size::bytes")]
    pub within: u64,
}

impl MeasuredLedger {
    /// What this library measured of one forward of so many tokens of so many sequences, on one device.
    pub fn of_forward(weights: u64, activations: u64, tokens: u64, sequences: u64) -> Self {
        let line = |bytes| Some(MeasuredBytes { bytes, within: 0 });
        Self {
            limits: MeasuredLimits {
                tp: Some(1),
                pp: Some(1),
                max_num_tokens: Some(tokens),
                max_batch_size: Some(sequences),
            },
            lines: MeasuredLines { weights: line(weights), activations: line(activations), ..MeasuredLines::default() },
            ..Self::default()
        }
    }

    /// The lines as TOML, which [`MeasuredLedger::from_toml`] reads.
    pub fn to_toml(&self) -> String {
        let mut text = format!("# Bytes on one device, {}.\n", self.origin());
        let quoted = |text: &str| toml::Value::from(text).to_string();
        let texts = [("engine", self.engine.clone()), ("version", self.version.clone()), ("log", self.log.clone())];
        for (key, value) in texts {
            if let Some(value) = value {
                let _ = writeln!(text, "{key} = {}", quoted(&value));
            }
        }
        let limits = [
            ("tp", self.limits.tp.map(u64::from)),
            ("pp", self.limits.pp.map(u64::from)),
            ("max_num_tokens", self.limits.max_num_tokens),
            ("max_batch_size", self.limits.max_batch_size),
        ];
        text.push_str("\n[limits]\n");
        for (key, value) in limits.iter().filter_map(|(key, value)| Some((key, (*value)?))) {
            let _ = writeln!(text, "{key} = {value}");
        }
        text.push_str("\n[lines]\n");
        for (name, line) in self.lines.named() {
            let MeasuredBytes { bytes, within } = line;
            // What was counted is not rounded, and yet another time it is some other bytes.
            let within = if within == 0 { String::new() } else { format!(", within = {within}") };
            let _ = writeln!(text, "{name} = {{ bytes = {bytes}{within} }}  # {}", ByteSize(bytes));
        }
        text
    }

    /// A line for the ledger of a plan for steps of `max_num_tokens`: bytes, how they are known, and where from.
    pub(crate) fn line(&self, item: &LedgerItem, max_num_tokens: u64) -> Option<(u64, Certainty, String)> {
        let (_, line) = self.lines.named().find(|(known, _)| known == item)?;
        let origin = self.origin();
        let measured_at =
            self.limits.max_num_tokens.filter(|tokens| *item == LedgerItem::Activations && *tokens != max_num_tokens);
        let Some(tokens) = measured_at.filter(|tokens| *tokens > 0) else {
            return Some((line.bytes, Certainty::Measured, origin));
        };
        // What holds one step's tokens grows with them.
        let scaled = u128::from(line.bytes) * u128::from(max_num_tokens) / u128::from(tokens);
        let note = format!("{origin}, for {tokens} tokens a step; scaled to {max_num_tokens}");
        Some((u64::try_from(scaled).unwrap_or(u64::MAX), Certainty::Assumed, note))
    }

    /// Weights that were measured on ranks of another size are not those of this plan.
    pub(crate) fn refuse_other_ranks(&self, parallel: Parallel) -> Result<(), PlanError> {
        for (key, measured, planned) in [("tp", self.limits.tp, parallel.tp), ("pp", self.limits.pp, parallel.pp)] {
            if let Some(measured) = measured.filter(|measured| *measured != planned) {
                return Err(PlanError::Budget(format!(
                    "the measured lines are those of {key} {measured}, the plan is for {key} {planned}; measure that"
                )));
            }
        }
        Ok(())
    }

    /// Where the lines come from.
    fn origin(&self) -> String {
        match (&self.engine, &self.version, &self.log) {
            (None, _, _) => "measured on the device".into(),
            (Some(engine), version, log) => {
                let version = version.as_ref().map(|version| format!(" {version}")).unwrap_or_default();
                let log = log.as_ref().map(|log| format!(", {log}")).unwrap_or_default();
                format!("logged by {engine}{version}{log}")
            }
        }
    }
}

impl MeasuredLines {
    /// The lines that there are, by the ledger's names.
    fn named(self) -> impl Iterator<Item = (LedgerItem, MeasuredBytes)> {
        let lines = [
            (LedgerItem::Weights, self.weights),
            (LedgerItem::Activations, self.activations),
            (LedgerItem::Graphs, self.graphs),
            (LedgerItem::Context, self.context),
            (LedgerItem::Nccl, self.nccl),
        ];
        lines.into_iter().filter_map(|(name, line)| Some((name, line?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured() -> MeasuredLedger {
        let bytes = |bytes| Some(MeasuredBytes { bytes, within: 5_368_709 });
        MeasuredLedger {
            engine: Some("vllm".into()),
            version: Some("0.19.0".into()),
            log: Some("start \"1\".log".into()),
            limits: MeasuredLimits { tp: Some(2), max_num_tokens: Some(8192), ..MeasuredLimits::default() },
            lines: MeasuredLines {
                weights: bytes(18_962_280_612),
                activations: bytes(1 << 30),
                ..MeasuredLines::default()
            },
        }
    }

    #[test]
    fn what_is_written_reads_back() {
        let measured = measured();
        assert_eq!(MeasuredLedger::from_toml(&measured.to_toml(), "measured.toml"), Ok(measured));
    }

    #[test]
    fn lines_of_this_library_name_no_engine() {
        let own = MeasuredLedger { engine: None, version: None, log: None, ..measured() };
        assert_eq!(MeasuredLedger::from_toml(&own.to_toml(), ""), Ok(own.clone()));
        assert_eq!(own.line(&LedgerItem::Weights, 1).unwrap().2, "measured on the device");
    }

    #[test]
    fn activations_of_other_steps_are_scaled_and_no_longer_measured() {
        let (bytes, source, note) = measured().line(&LedgerItem::Activations, 2048).unwrap();
        assert_eq!((bytes, source), (1 << 28, Certainty::Assumed));
        assert_eq!(note, "logged by vllm 0.19.0, start \"1\".log, for 8192 tokens a step; scaled to 2048");
        assert_eq!(measured().line(&LedgerItem::Activations, 8192).unwrap().1, Certainty::Measured);
        assert_eq!(measured().line(&LedgerItem::Weights, 2048).unwrap().1, Certainty::Measured);
    }

    #[test]
    fn lines_of_other_ranks_are_refused() {
        let error = measured().refuse_other_ranks(Parallel::default()).unwrap_err().to_string();
        assert!(error.contains("tp 2") && error.contains("tp 1"), "{error}");
        assert_eq!(measured().refuse_other_ranks(Parallel { tp: 2, ..Parallel::default() }), Ok(()));
    }
}
