//! The most sequences that the bytes admit, in exact integers.

use crate::plan::Cap;
use crate::solver::demand::{Demand, Load};
use crate::solver::ledger::CacheBytes;
use crate::solver::room::Room;

/// No scheduler runs more sequences at once.
pub(crate) const MAX_SEQUENCES: u64 = 1 << 20;

/// What all stages can serve.
#[derive(Clone, Debug)]
pub(crate) struct Solution {
    pub(crate) sequences: u64,
    /// Tokens that full-attention pools hold beyond those of the sequences.
    pub(crate) spare_tokens: u64,
    /// What one more sequence would break on each stage.
    pub(crate) caps: Vec<Cap>,
}

/// One pipeline stage as the search sees it.
#[derive(Clone, Copy)]
pub(crate) struct StageCost<'a> {
    pub(crate) demands: &'a [Demand],
    pub(crate) load: &'a Load,
    pub(crate) room: &'a Room<'a>,
}

/// What ends a search besides memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SearchLimits {
    /// `max_batch_size`.
    pub(crate) batch: Option<u64>,
    /// The sequences that the stated tokens of a step suffice for.
    pub(crate) step: Option<u64>,
    /// Whether what sequences leave goes to pages even where memory is not what ends them.
    pub(crate) fill: bool,
}

/// Sums of bytes, paged and not.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cost {
    paged: u128,
    other: u128,
}

impl Cost {
    /// All pools at this many sequences.
    pub(crate) fn of(demands: &[Demand], load: &Load, sequences: u64) -> Self {
        demands.iter().fold(Self::default(), |cost, demand| cost.plus(demand, demand.units(load, sequences)))
    }

    fn plus(mut self, demand: &Demand, units: u64) -> Self {
        let bytes = u128::from(demand.unit_bytes) * u128::from(units);
        if demand.is_paged() {
            self.paged += bytes;
        } else {
            self.other += bytes;
        }
        self
    }

    fn with_spare(self, demands: &[Demand], tokens: u64) -> Self {
        demands.iter().fold(self, |cost, demand| cost.plus(demand, demand.spare_units(tokens)))
    }

    /// Bytes in all.
    pub(crate) fn total(self) -> u128 {
        self.paged + self.other
    }

    /// Bytes that are missing.
    pub(crate) fn excess(self, memory: CacheBytes) -> u128 {
        let left = u128::from(memory.bytes).saturating_sub(self.other);
        // `left` is at most `memory.bytes`, so it fits.
        let share = memory.paged_share.of(left as u64);
        let missing = self.other.saturating_sub(memory.bytes.into()) + self.paged.saturating_sub(share.into());
        missing + u128::from(memory.overdrawn)
    }
}

impl StageCost<'_> {
    /// The bytes of all pools at this many sequences.
    pub(crate) fn at(&self, sequences: u64) -> Cost {
        Cost::of(self.demands, self.load, sequences)
    }

    /// The bytes for them beside a step of as many; `None` if the budget states no memory.
    pub(crate) fn memory(&self, sequences: u64) -> Option<CacheBytes> {
        self.room.at(self.load.step(sequences))
    }

    fn fits(&self, sequences: u64) -> bool {
        self.memory(sequences).is_none_or(|memory| self.at(sequences).excess(memory) == 0)
    }

    /// Tokens that full-attention pools can hold beyond those of `sequences` sequences.
    fn spare_tokens(&self, sequences: u64) -> u64 {
        let Some(memory) = self.memory(sequences) else { return 0 };
        let served = self.at(sequences);
        let units = |demand: &Demand| demand.spare_tokens(memory.bytes / demand.unit_bytes.max(1));
        let most = self.demands.iter().filter_map(units).min();
        last(most.unwrap_or(0), |tokens| served.with_spare(self.demands, tokens).excess(memory) == 0)
    }
}

impl SearchLimits {
    fn most(&self) -> u64 {
        self.batch.into_iter().chain(self.step).min().unwrap_or(MAX_SEQUENCES)
    }

    /// What ends the sequences where no stage's memory does.
    fn ends(&self, sequences: u64) -> Cap {
        match (self.batch, self.step) {
            (Some(batch), _) if sequences >= batch => Cap::MaxBatchSize,
            (_, Some(step)) if sequences >= step => Cap::MaxNumTokens,
            _ => Cap::SequenceLimit,
        }
    }
}

/// Finds the most sequences that every stage holds; where there is none, the first stage that does not hold one.
///
/// A cap is what one more sequence breaks. Where that is some stage's memory, what is too little for one more goes to the
/// full-attention pools of all stages, in such shares that all of them still run out at the same number of tokens; where
/// only a stated limit is in the way it stays unused, unless `fill` is set. So a plan's own sequences, stated as
/// `max_batch_size`, give that plan again.
pub(crate) fn solve(stages: &[StageCost<'_>], limits: &SearchLimits) -> Result<Solution, usize> {
    // Pools grow with the sequences, and what a step leaves for them falls.
    let sequences = last(limits.most(), |sequences| stages.iter().all(|stage| stage.fits(sequences)));
    if sequences == 0 {
        return Err(stages.iter().position(|stage| !stage.fits(1)).unwrap_or(0));
    }
    let full: Vec<bool> = stages.iter().map(|stage| !stage.fits(sequences + 1)).collect();
    let is_full = full.contains(&true);
    let spare_tokens = match limits.fill || is_full {
        true => stages.iter().map(|stage| stage.spare_tokens(sequences)).min().unwrap_or(0),
        false => 0,
    };
    let cap = |full: bool| match limits.ends(sequences) {
        _ if full => Cap::Memory,
        Cap::SequenceLimit if is_full && sequences < MAX_SEQUENCES => Cap::AnotherRank,
        limit => limit,
    };
    Ok(Solution { sequences, spare_tokens, caps: full.into_iter().map(cap).collect() })
}

/// The largest number up to `cap` for which `holds`, which must be monotone; 0 if it holds for none above.
pub(crate) fn last(cap: u64, holds: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (0, cap);
    while low < high {
        let middle = high - (high - low) / 2;
        if holds(middle) { low = middle } else { high = middle - 1 }
    }
    low
}
