//! The most sequences that the bytes admit, in exact integers.

use cacheplan_handlers::Growth;

use crate::budget::Fraction;
use crate::demand::Load;

/// A pool before its size is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demand {
    pub(crate) growth: Growth,
    pub(crate) unit_bytes: u64,
    /// 1 where the pool has no blocks.
    pub(crate) tokens_per_block: u64,
}

/// The bytes for all pools; paged pools may take a fraction of what the others leave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheBytes {
    pub(crate) bytes: u64,
    pub(crate) paged_share: Fraction,
}

/// No scheduler runs more sequences at once.
const MAX_SEQUENCES: u64 = 1 << 20;

/// The sizes of all pools.
#[derive(Clone, Debug)]
pub(crate) struct Solution {
    pub(crate) sequences: u64,
    /// Units of each pool, in the order of the demands.
    pub(crate) units: Vec<u64>,
    /// Whether one more sequence fails on bytes, and not on a limit.
    pub(crate) memory_bound: bool,
}

/// Sums of bytes, paged and not.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cost {
    pub(crate) paged: u128,
    pub(crate) other: u128,
}

impl Cost {
    fn add(&mut self, demand: &Demand, units: u64) {
        let bytes = u128::from(demand.unit_bytes) * u128::from(units);
        if matches!(demand.growth, Growth::Paged { .. }) { self.paged += bytes } else { self.other += bytes }
    }

    pub(crate) fn total(self) -> u128 {
        self.paged + self.other
    }

    fn fits(self, memory: CacheBytes) -> bool {
        self.excess(memory) == 0
    }

    /// Bytes that are missing.
    pub(crate) fn excess(self, memory: CacheBytes) -> u128 {
        let other_excess = self.other.saturating_sub(memory.bytes.into());
        let left = memory.bytes.saturating_sub(u64::try_from(self.other).unwrap_or(u64::MAX));
        other_excess + self.paged.saturating_sub(memory.paged_share.of(left).into())
    }
}

/// The cost of all pools at this many sequences.
pub(crate) fn cost(demands: &[Demand], load: &Load, sequences: u64) -> Cost {
    let mut cost = Cost::default();
    for demand in demands {
        cost.add(demand, load.units(demand.growth, demand.tokens_per_block, sequences));
    }
    cost
}

/// Sizes the pools for the most sequences; `None` if not even one fits.
///
/// `wanted` caps the sequences. Where the bytes do, full-attention pools share what one more sequence would need but does
/// not find, so that they still run out at the same number of tokens.
pub(crate) fn solve(
    demands: &[Demand],
    load: &Load,
    memory: Option<CacheBytes>,
    wanted: Option<u64>,
) -> Option<Solution> {
    let cap = wanted.unwrap_or(MAX_SEQUENCES);
    let Some(memory) = memory else { return Some(sized(demands, load, cap, 0, false)) };
    let sequences = last(cap, |sequences| cost(demands, load, sequences).fits(memory));
    if sequences == 0 {
        return None;
    }
    let memory_bound = sequences < cap;
    let extra_tokens = if memory_bound { spare_tokens(demands, load, memory, sequences) } else { 0 };
    Some(sized(demands, load, sequences, extra_tokens, memory_bound))
}

/// Tokens that full-attention pools can hold beyond those of `sequences` sequences.
fn spare_tokens(demands: &[Demand], load: &Load, memory: CacheBytes, sequences: u64) -> u64 {
    let served = cost(demands, load, sequences);
    let most = demands
        .iter()
        .filter(|demand| is_full_attention(demand))
        .map(|demand| (memory.bytes / demand.unit_bytes + 1).saturating_mul(demand.tokens_per_block))
        .min();
    last(most.unwrap_or(0), |tokens| {
        let mut total = served;
        for demand in demands {
            total.add(demand, extra_units(demand, tokens));
        }
        total.fits(memory)
    })
}

fn sized(demands: &[Demand], load: &Load, sequences: u64, extra_tokens: u64, memory_bound: bool) -> Solution {
    let units = demands
        .iter()
        .map(|demand| {
            let needed = load.units(demand.growth, demand.tokens_per_block, sequences);
            needed.saturating_add(extra_units(demand, extra_tokens))
        })
        .collect();
    Solution { sequences, units, memory_bound }
}

fn is_full_attention(demand: &Demand) -> bool {
    matches!(demand.growth, Growth::Paged { window: None, .. })
}

fn extra_units(demand: &Demand, tokens: u64) -> u64 {
    if is_full_attention(demand) { tokens / demand.tokens_per_block } else { 0 }
}

/// The largest number up to `cap` for which `holds`, which must be monotone; 0 if it holds for none above.
fn last(cap: u64, holds: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (0, cap);
    while low < high {
        let middle = high - (high - low) / 2;
        if holds(middle) { low = middle } else { high = middle - 1 }
    }
    low
}
