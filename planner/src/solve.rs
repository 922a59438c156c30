//! The most sequences that the bytes admit, in exact integers.

use crate::budget::Fraction;
use crate::demand::{Demand, Load};
use crate::{Agreement, Cap};

/// The bytes for all pools; paged pools may take a fraction of what the others leave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheBytes {
    pub(crate) bytes: u64,
    /// Bytes that are missing before there is any cache.
    pub(crate) overdrawn: u64,
    pub(crate) paged_share: Fraction,
}

/// No scheduler runs more sequences at once.
pub(crate) const MAX_SEQUENCES: u64 = 1 << 20;

/// The sizes of all pools.
#[derive(Clone, Debug)]
pub(crate) struct Solution {
    pub(crate) sequences: u64,
    /// Tokens that full-attention pools hold beyond those of the sequences.
    pub(crate) spare_tokens: u64,
    /// Units of each pool, in the order of the demands.
    pub(crate) units: Vec<u64>,
    /// What one more sequence would break.
    pub(crate) cap: Cap,
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
        self.other.saturating_sub(memory.bytes.into()) + self.paged.saturating_sub(share.into())
    }
}

/// Sizes the pools for the most sequences; `None` if not even one fits.
///
/// There are at most `wanted` sequences. What is too little for one more of them goes to the full-attention pools, in
/// such shares that all of them still run out at the same number of tokens; where `wanted` is reached it stays unused,
/// unless `fill` is set. `agreed` is what every rank can serve, sequences and spare tokens.
pub(crate) fn solve(
    demands: &[Demand],
    load: &Load,
    memory: Option<CacheBytes>,
    wanted: Option<u64>,
    fill: bool,
    agreed: Option<Agreement>,
) -> Option<Solution> {
    let most = wanted.unwrap_or(MAX_SEQUENCES).min(agreed.map_or(u64::MAX, |agreed| agreed.sequences));
    let fits = |sequences: u64, memory| Cost::of(demands, load, sequences).excess(memory) == 0;
    let sequences = memory.map_or(most, |memory| last(most, |sequences| fits(sequences, memory)));
    if sequences == 0 {
        return None;
    }
    let cap = match wanted {
        Some(wanted) if sequences == wanted => Cap::MaxBatchSize,
        _ if sequences == most && agreed.is_some() => Cap::AnotherRank,
        _ => Cap::Memory,
    };
    let spare_tokens = match memory {
        Some(memory) if cap != Cap::MaxBatchSize || fill => spare_tokens(demands, load, memory, sequences),
        _ => 0,
    };
    let spare_tokens = spare_tokens.min(agreed.map_or(u64::MAX, |agreed| agreed.spare_tokens));
    let units = demands
        .iter()
        .map(|demand| demand.units(load, sequences).saturating_add(demand.spare_units(spare_tokens)))
        .collect();
    Some(Solution { sequences, spare_tokens, units, cap })
}

/// Tokens that full-attention pools can hold beyond those of `sequences` sequences.
fn spare_tokens(demands: &[Demand], load: &Load, memory: CacheBytes, sequences: u64) -> u64 {
    let served = Cost::of(demands, load, sequences);
    let most = demands.iter().filter_map(|demand| demand.spare_tokens(memory.bytes / demand.unit_bytes.max(1))).min();
    last(most.unwrap_or(0), |tokens| served.with_spare(demands, tokens).excess(memory) == 0)
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
