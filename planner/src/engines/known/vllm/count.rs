//! Blocks of sequences, and how many tokens and sequences all of them hold.

use cacheplan_handlers::Growth;

use super::groups::Bucket;
use super::spec::Spec;
use super::states::{cache_mode, state_blocks};
use crate::budget::MambaCacheMode;
use crate::engines::situation::Situation;
use crate::engines::version::Version;
use crate::solver::demand::Demand;
use crate::solver::solve::last;

/// The reported number of tokens changed its meaning here: 0.20.0 logged the old one, a build towards 0.20.1 and 0.20.2 the new.
pub const REPORTS_CONCURRENCY: Version = Version(0, 20, 1);
/// Read in 0.26.0, and not in 0.25.0: steps overlap, of which each may hold a whole batch of tokens.
pub(super) const OVERLAPS_STEPS: Version = Version(0, 26, 0);
/// Also with drafts that come from the text, not from a model, as 0.33.0 answers and 0.32.0 does not.
pub(super) const OVERLAPS_DRAFTS_FROM_TEXT: Version = Version(0, 33, 0);

/// Blocks that one sequence of so many tokens needs over all groups.
pub(super) fn blocks_per_request(situation: &Situation<'_>, buckets: &[Bucket], length: u64) -> u64 {
    buckets.iter().map(|bucket| bucket.groups * blocks_of_group(situation, bucket, length)).sum()
}

/// The same in one group of a bucket.
pub(super) fn blocks_of_group(situation: &Situation<'_>, bucket: &Bucket, length: u64) -> u64 {
    // Context-parallel ranks divide a sequence's tokens, so that each block counts for all of them.
    let ranks = situation.load.context_ranks;
    let in_flight = concurrent_steps(situation) * situation.load.max_num_tokens;
    let chunked = situation.model.model_type.starts_with("llama4");
    match bucket.spec {
        Spec::Full(_) => length.div_ceil(bucket.block * ranks),
        // A chunk begins with a block, so that one more than it fills is never touched.
        Spec::Window { window, .. } if chunked => (u64::from(window) + in_flight).min(length).div_ceil(bucket.block),
        Spec::Window { window, .. } => (u64::from(window) - 1 + in_flight).min(length).div_ceil(bucket.block) + 1,
        Spec::State { exported, .. } => state_blocks(situation, exported, bucket.block),
        Spec::Ring => 1,
    }
}

/// Steps under way, each of which may hold a batch of tokens: one for each stage, and one that is being prepared.
fn concurrent_steps(situation: &Situation<'_>) -> u64 {
    if situation.version < OVERLAPS_STEPS {
        return 1;
    }
    let drafted_from_text = situation.draft_tokens > 0 && !situation.caches.attention.iter().any(|cache| cache.draft);
    let overlaps = situation.version >= OVERLAPS_DRAFTS_FROM_TEXT || !drafted_from_text;
    situation.stages.len() as u64 + u64::from(overlaps && situation.options.async_scheduling.unwrap_or(true))
}

/// Tokens as this version reports them.
pub(super) fn tokens(situation: &Situation<'_>, buckets: &[Bucket], num_blocks: u64, blocks_per_request: u64) -> u128 {
    let length = situation.load.max_seq_len;
    if situation.version >= REPORTS_CONCURRENCY {
        return u128::from(num_blocks) * u128::from(length) / u128::from(blocks_per_request.max(1));
    }
    // The block of a group of states is a whole sequence where prefixes are not kept.
    let block = |bucket: &Bucket| match bucket.spec {
        Spec::State { .. } if cache_mode(situation) == MambaCacheMode::None => length,
        _ => bucket.block,
    };
    let smallest = buckets.iter().map(block).min().unwrap_or(1);
    let groups: u64 = buckets.iter().map(|bucket| bucket.groups).sum();
    u128::from(num_blocks / groups) * u128::from(smallest * situation.load.context_ranks)
}

/// Sequences of the workload that run at once.
pub(super) fn sequences(situation: &Situation<'_>, buckets: &[Bucket], num_blocks: u64) -> u64 {
    let demand = |bucket: &Bucket| {
        let window = match bucket.spec {
            Spec::Full(_) => None,
            Spec::Window { window, .. } => {
                Some(window).filter(|window| u64::from(*window) < situation.load.max_seq_len)
            }
            Spec::State { .. } | Spec::Ring => return None,
        };
        let growth = Growth::Paged { stride: 1, window };
        Some((Demand::new(growth, 1, bucket.block, &situation.load), bucket.groups))
    };
    let demands: Vec<(Demand, u64)> = buckets.iter().filter_map(demand).collect();
    let states = |bucket: &Bucket| match bucket.spec {
        Spec::State { exported, .. } => bucket.groups * state_blocks(situation, exported, bucket.block),
        Spec::Ring => bucket.groups,
        Spec::Full(_) | Spec::Window { .. } => 0,
    };
    let states: u64 = buckets.iter().map(states).sum();
    // Block 0 is the null block: counted, never used.
    let usable = num_blocks.saturating_sub(1);
    last(usable.min(1 << 20), |sequences| {
        let paged: u64 =
            demands.iter().map(|(demand, groups)| groups * (demand.units(&situation.load, sequences) - 1)).sum();
        paged + states * sequences <= usable
    })
}
