//! Our plan beside an engine's allocation: the same resources, bytes and workload.

use serde::{Deserialize, Serialize};

use crate::budget::Memory;
use crate::engines::{EngineSpec, Version, available_bytes};
use crate::error::PlanError;
use crate::plan::Grouping;
use crate::size::{ByteSize, sequences};
use crate::solver::inputs::Inputs;
use crate::solver::make::{load, make_all};

/// The largest block that a comparison plans with; an engine's smaller one, or single cells, are taken instead.
const LARGEST_BLOCK: u64 = 16;

/// What we and one engine do with the same bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Comparison {
    /// The engine.
    pub engine: String,
    /// Its version.
    pub version: String,
    /// Bytes for the caches of either.
    pub bytes: u64,
    /// Sequences of the workload that our plan runs at once.
    pub sequences: u64,
    /// Sequences that the engine runs at once; 0 if it runs none.
    pub engine_sequences: u64,
    /// Tokens that our pages hold.
    pub tokens: Option<u64>,
    /// Tokens that the engine reports.
    pub engine_tokens: Option<u64>,
    /// Bytes of ours that hold nothing the sequences need.
    pub wasted_bytes: u64,
    /// Bytes of the engine's that hold nothing its sequences need.
    pub engine_wasted_bytes: u64,
    /// What costs the engine its bytes, in its own terms.
    pub why: Vec<String>,
    /// Beside another version of the engine: which of its rules make this one differ, oldest first, each with what it did.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<String>,
}

impl Inputs<'_> {
    /// The comparison that [`PlanRequest::compare`](crate::request::PlanRequest::compare) makes; `None` where no bytes are left.
    pub(crate) fn compare(&self, engine: EngineSpec) -> Result<Option<Comparison>, PlanError> {
        self.budget.validate().map_err(PlanError::Budget)?;
        let load = load(self.budget, self.budget.max_seq_len_for(self.model))?;
        let bytes = match self.budget.engine.cache_bytes {
            Some(bytes) => bytes.0,
            None => available_bytes(self, &load)?.ok_or_else(|| {
                let ways = "`[memory]` (--memory-bytes), a device (--device-memory), or cache bytes (--cache-bytes)";
                PlanError::Budget(format!("a comparison needs bytes: state {ways}"))
            })?,
        };
        if bytes == 0 {
            return Ok(None);
        }
        let mut budget = self.budget.clone();
        budget.engine.cache_bytes = Some(ByteSize(bytes));
        budget.grouping = Some(Grouping::ByKey);
        budget.memory = Some(Memory { bytes: Some(ByteSize(bytes)), ..Memory::default() });
        let theirs = match (Inputs { budget: &budget, ..*self }).predict_among(engine) {
            Ok(prediction) => Some(prediction),
            Err(PlanError::DoesNotFit(_)) => None,
            Err(other) => return Err(other),
        };
        let block = theirs.as_ref().and_then(|theirs| theirs.block_size).unwrap_or(1);
        budget.tokens_per_block = Some(budget.tokens_per_block.unwrap_or(LARGEST_BLOCK).min(block));
        // The bytes are those that the engine has, whatever our own step would leave of the device.
        let ours = match make_all(&Inputs { budget: &budget, device: None, ..*self }) {
            Ok(ranks) => Some(ranks.into_stage(self.stage)?),
            Err(PlanError::DoesNotFit(_)) => None,
            Err(other) => return Err(other),
        };
        // What a sequence needs is the same for both, so that the engine's waste gives ours.
        let engine_sequences = theirs.as_ref().map_or(0, |theirs| theirs.sequences);
        let engine_wasted_bytes = theirs.as_ref().map_or(bytes, |theirs| theirs.wasted_bytes);
        let sequences = ours.as_ref().map_or(0, |plan| plan.capacity.sequences);
        let needed = crate::engines::bytes_per_sequence(&Inputs { budget: &budget, ..*self }, &load, engine)?;
        let used = u64::try_from(needed * u128::from(sequences)).unwrap_or(u64::MAX);
        Ok(Some(Comparison {
            engine: engine.engine.to_string(),
            version: engine.version_name(),
            bytes,
            sequences,
            engine_sequences,
            tokens: ours.and_then(|plan| plan.capacity.tokens),
            engine_tokens: theirs.as_ref().and_then(|theirs| theirs.tokens),
            wasted_bytes: bytes.saturating_sub(used),
            engine_wasted_bytes,
            why: theirs.map_or_else(|| vec!["not one sequence fits".into()], |theirs| theirs.notes),
            changes: Vec::new(),
        }))
    }
}

/// Which of an engine's rules make `one` of its versions differ from `other`, oldest first, each with what it did; empty of two
/// engines.
pub(crate) fn rule_changes(
    one: EngineSpec,
    other: EngineSpec,
    compare: impl Fn(EngineSpec) -> Result<Comparison, PlanError>,
) -> Result<Vec<String>, PlanError> {
    let (first, last) = if one.version <= other.version { (one, other) } else { (other, one) };
    if first.engine != last.engine {
        return Ok(Vec::new());
    }
    let changes = first.engine.rules().changes;
    let mut between: Vec<Version> = changes.iter().map(|(version, _)| *version).collect();
    between.retain(|version| *version > first.version && *version < last.version);
    between.push(last.version);
    between.dedup();
    let mut before = compare(first)?;
    let mut said = Vec::new();
    for version in between {
        let after = compare(EngineSpec { version, ..first })?;
        let numbers = |row: &Comparison| (row.bytes, row.engine_sequences, row.engine_tokens);
        if numbers(&after) != numbers(&before) {
            let rules = changes.iter().filter(|(since, _)| *since == version).map(|(_, rule)| *rule);
            let rules = rules.collect::<Vec<_>>().join("; or ");
            let rules = if rules.is_empty() { "a rule that has no words here" } else { &rules };
            let held = |row: &Comparison| match row.engine_tokens {
                Some(tokens) => format!("{} of {tokens} tokens", sequences(row.engine_sequences)),
                None => sequences(row.engine_sequences),
            };
            let (name, held, now) = (&after.version, held(&before), held(&after));
            said.push(format!("since {} {name}: {rules}: {now}, before {held}", after.engine));
        }
        before = after;
    }
    Ok(said)
}
