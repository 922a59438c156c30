//! How many units of a pool a number of sequences needs.

use cacheplan_handlers::Growth;

use crate::budget::{Fraction, Sample};
use crate::solver::step::StepSize;

/// What the demand of every pool depends on.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    pub(crate) max_seq_len: u64,
    pub(crate) max_num_tokens: u64,
    /// Candidate positions of a speculative step, the committed one included.
    pub(crate) draft_positions: u64,
    /// Ranks that share a sequence's tokens.
    pub(crate) context_ranks: u64,
    pub(crate) padding_slots: u64,
    pub(crate) checkpoints_per_sequence: u64,
    /// Whether checkpoints lie in pools of their own rather than in slots.
    pub(crate) checkpoints_apart: bool,
    pub(crate) prefix_reuse: Option<Fraction>,
    /// What sequences look like; one sample of `max_seq_len` tokens where nothing is stated.
    pub(crate) samples: Vec<Sample>,
}

/// Blocks at the front of every paged pool that pad block tables; block 0.
pub(crate) const NULL_BLOCKS: u64 = 1;

/// A pool before its size is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demand {
    pub(crate) unit_bytes: u64,
    pub(crate) need: Need,
}

/// What makes a pool grow with the sequences.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Need {
    /// Blocks of tokens.
    Blocks(Blocks),
    /// One unit per slot, checkpoints included.
    Slots,
    /// One unit per slot of a running sequence, for its speculation.
    DraftSlots,
    /// One unit per checkpoint.
    Checkpoints,
    /// One unit.
    One,
}

/// The demand of a paged pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocks {
    tokens_per_block: u64,
    /// Blocks of a sequence, as a mean over the samples: `weighted / weights`.
    weighted: u128,
    weights: u128,
    /// The same without a window.
    weighted_full: u128,
    /// Blocks of a prefix that all sequences share.
    shared: u64,
    /// Blocks of one sequence of `max_seq_len` tokens, which must always fit.
    longest: u64,
    window: Option<Window>,
}

/// What a step adds to the blocks that windows touch.
#[derive(Clone, Copy, Debug)]
struct Window {
    /// New tokens after which a sequence enters a new block, at the worst alignment.
    to_next_block: u64,
}

impl Demand {
    pub(crate) fn new(growth: Growth, unit_bytes: u64, tokens_per_block: u64, load: &Load) -> Self {
        let need = match growth {
            Growth::Paged { window, .. } => Need::Blocks(Blocks::new(window, tokens_per_block, load)),
            Growth::PerSequence | Growth::PerSlotToken => Need::Slots,
            // A checkpoint never speculates.
            Growth::PerDraftPosition => Need::DraftSlots,
            Growth::Fixed => Need::One,
        };
        Self { unit_bytes, need }
    }

    /// The demand of a pool that holds checkpoints only.
    pub(crate) const fn checkpoints(unit_bytes: u64) -> Self {
        Self { unit_bytes, need: Need::Checkpoints }
    }

    /// Whether a sequence that leaves the device takes its share along.
    pub(crate) const fn is_parked(&self) -> bool {
        matches!(self.need, Need::Blocks(_) | Need::Slots | Need::Checkpoints)
    }

    pub(crate) fn is_paged(&self) -> bool {
        matches!(self.need, Need::Blocks(_))
    }

    /// Blocks that all sequences share; none of what has no blocks.
    pub(crate) fn shared_blocks(&self) -> Option<u64> {
        if let Need::Blocks(blocks) = &self.need { Some(blocks.shared) } else { None }
    }

    /// Units for `sequences` sequences, those reserved for padding included.
    pub(crate) fn units(&self, load: &Load, sequences: u64) -> u64 {
        match &self.need {
            Need::Blocks(blocks) => NULL_BLOCKS.saturating_add(blocks.count(load, sequences)),
            Need::Slots => load.slots(sequences),
            Need::Checkpoints => sequences.saturating_mul(load.checkpoints_per_sequence),
            Need::DraftSlots => load.padding_slots.saturating_add(sequences),
            Need::One => 1,
        }
    }

    /// Further units that hold `tokens` more tokens; none where a window has stopped the growth.
    pub(crate) fn spare_units(&self, tokens: u64) -> u64 {
        match &self.need {
            Need::Blocks(Blocks { window: None, tokens_per_block, .. }) => tokens.div_ceil(*tokens_per_block),
            _ => 0,
        }
    }

    /// Tokens that `units` units hold, if holding tokens is what limits them.
    pub(crate) fn spare_tokens(&self, units: u64) -> Option<u64> {
        match &self.need {
            Need::Blocks(Blocks { window: None, tokens_per_block, .. }) => {
                Some(units.saturating_add(1).saturating_mul(*tokens_per_block))
            }
            _ => None,
        }
    }
}

impl Load {
    /// The largest step of this many sequences: as many tokens as one may have, and never less than every candidate of each,
    /// all of which are verified.
    pub(crate) fn step(&self, sequences: u64) -> StepSize {
        let candidates = sequences.saturating_mul(self.draft_positions);
        StepSize { tokens: self.max_num_tokens.max(candidates), logit_rows: candidates }
    }

    /// Slots of a state pool: padding, live, and checkpoints unless they lie apart.
    pub(crate) fn slots(&self, sequences: u64) -> u64 {
        let each = if self.checkpoints_apart { 1 } else { self.checkpoints_per_sequence.saturating_add(1) };
        self.padding_slots.saturating_add(sequences.saturating_mul(each))
    }

    /// The mean length of a sequence when it ends, rounded up.
    pub(crate) fn tokens_per_sequence(&self) -> u64 {
        let weights: u128 = self.samples.iter().map(|sample| u128::from(sample.weight)).sum();
        let tokens: u128 = self.samples.iter().map(|sample| u128::from(sample.weight) * u128::from(sample.total)).sum();
        // A mean is at most the longest, which is no more than `max_seq_len`.
        tokens.div_ceil(weights) as u64
    }

    /// Tokens of a sequence that one rank holds; the last step writes its draft positions beyond the committed tokens.
    fn held(&self, tokens: u64) -> u64 {
        tokens.saturating_add(self.draft_positions - 1).div_ceil(self.context_ranks)
    }
}

impl Blocks {
    fn new(window: Option<u32>, tokens_per_block: u64, load: &Load) -> Self {
        let full = |tokens: u64| load.held(tokens).div_ceil(tokens_per_block);
        // During a step with `c` new tokens a sequence reads and writes `window - 1 + c` consecutive tokens, which start
        // anywhere in a block and so touch up to `ceil((window - 2 + c) / T) + 1` blocks.
        let old = window.map(|window| u64::from(window) - 1);
        let at_rest = old.map_or(u64::MAX, |old| old.div_ceil(tokens_per_block) + 1);
        let (mut weighted, mut weighted_full, mut weights, mut shared) = (0, 0, 0, 0);
        for sample in &load.samples {
            let own = full(sample.total);
            // Blocks wholly inside the common prefix are stored once, but for each sequence's last, which it writes; windows
            // let go of theirs.
            let common = match load.prefix_reuse {
                Some(share) if window.is_none() => {
                    (share.of(sample.prompt / load.context_ranks) / tokens_per_block).min(own.saturating_sub(1))
                }
                _ => 0,
            };
            shared = common.max(shared);
            let weight = u128::from(sample.weight);
            weights += weight;
            weighted_full += weight * u128::from(own - common);
            weighted += weight * u128::from((own - common).min(at_rest));
        }
        let mut blocks = Self {
            tokens_per_block,
            weighted,
            weights,
            weighted_full,
            shared,
            longest: 0,
            window: old
                .map(|old| Window { to_next_block: tokens_per_block * old.div_ceil(tokens_per_block) - old + 1 }),
        };
        let longest = full(load.max_seq_len);
        blocks.longest = longest.min(at_rest.saturating_add(blocks.entered(load, 1)));
        blocks
    }

    fn count(&self, load: &Load, sequences: u64) -> u64 {
        let mean = |weighted: u128| {
            let blocks = u128::from(sequences).saturating_mul(weighted).div_ceil(self.weights);
            u64::try_from(blocks).unwrap_or(u64::MAX)
        };
        let touched = mean(self.weighted).saturating_add(self.entered(load, sequences));
        touched.min(mean(self.weighted_full)).saturating_add(self.shared).max(self.longest)
    }

    /// The most blocks that the new tokens of one step enter, beyond those that windows touch with one new token each.
    ///
    /// All sequences together have at most `max_num_tokens` new tokens; the worst case spreads them so that most of them
    /// enter a new block.
    fn entered(&self, load: &Load, sequences: u64) -> u64 {
        let Some(Window { to_next_block }) = self.window else { return 0 };
        let step = load.step(sequences).tokens;
        let spare = step - sequences.min(step);
        let first = sequences.min(spare / to_next_block);
        first + (spare - first * to_next_block) / self.tokens_per_block
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn load(samples: Vec<Sample>, max_num_tokens: u64) -> Load {
        Load {
            max_seq_len: 1_000,
            max_num_tokens,
            draft_positions: 1,
            context_ranks: 1,
            padding_slots: 1,
            checkpoints_per_sequence: 0,
            checkpoints_apart: false,
            prefix_reuse: None,
            samples,
        }
    }

    /// The most blocks over every way to spread a step's tokens and every alignment, by trying them all.
    fn brute_force(window: u64, tokens_per_block: u64, sequences: u64, max_num_tokens: u64) -> u64 {
        let step = max_num_tokens.max(sequences);
        let touched = |new: u64| {
            let tokens = window - 1 + new;
            (0..tokens_per_block).map(|start| (start + tokens).div_ceil(tokens_per_block)).max().unwrap()
        };
        // Best over the first `n` sequences with `t` tokens in all, each with at least one.
        let mut best = vec![Some(0u64)];
        best.resize(step as usize + 1, None);
        for _ in 0..sequences {
            let mut next = vec![None; step as usize + 1];
            for used in 0..=step {
                let Some(blocks) = best[used as usize] else { continue };
                for new in 1..=step - used {
                    let total = &mut next[(used + new) as usize];
                    *total = (*total).max(Some(blocks + touched(new)));
                }
            }
            best = next;
        }
        best.into_iter().flatten().max().unwrap()
    }

    #[rstest]
    fn window_blocks_are_the_worst_case(
        #[values(1, 2, 5, 8, 9)] window: u64,
        #[values(1, 4, 8)] tokens_per_block: u64,
        #[values(1, 2, 3)] sequences: u64,
        #[values(1, 3, 7, 20)] max_num_tokens: u64,
    ) {
        let load = load(vec![Sample { prompt: 0, total: 1_000, weight: 1 }], max_num_tokens);
        let growth = Growth::Paged { stride: 1, window: Some(window as u32) };
        let demand = Demand::new(growth, 1, tokens_per_block, &load);
        let expected = brute_force(window, tokens_per_block, sequences, max_num_tokens);
        assert_eq!(demand.units(&load, sequences), NULL_BLOCKS + expected);
    }

    #[test]
    fn a_mix_of_lengths_needs_the_mean_of_their_blocks_and_never_less_than_the_longest() {
        let samples = [(10, 3), (100, 1)].map(|(total, weight)| Sample { prompt: 8, total, weight });
        let load = load(samples.to_vec(), 16);
        let demand = Demand::new(Growth::Paged { stride: 1, window: None }, 1, 8, &load);
        // (3 * 2 + 13) / 4 = 4.75 blocks each.
        assert_eq!(demand.units(&load, 100), NULL_BLOCKS + 475);
        assert_eq!(demand.units(&load, 101), NULL_BLOCKS + 480);
        assert_eq!(demand.units(&load, 1), NULL_BLOCKS + 125);
    }

    #[test]
    fn a_prompt_that_is_all_common_leaves_each_sequence_its_last_block() {
        let mut load = load(vec![Sample { prompt: 96, total: 96, weight: 1 }], 16);
        load.prefix_reuse = Fraction::new(1.0);
        let demand = Demand::new(Growth::Paged { stride: 1, window: None }, 1, 8, &load);
        assert_eq!(demand.units(&load, 200), NULL_BLOCKS + 11 + 200);
    }

    #[test]
    fn a_common_prefix_is_stored_once() {
        let mut load = load(vec![Sample { prompt: 80, total: 100, weight: 1 }], 16);
        load.prefix_reuse = Fraction::new(0.5);
        let demand = Demand::new(Growth::Paged { stride: 1, window: None }, 1, 8, &load);
        // 13 blocks each, of which 40 / 8 = 5 are common.
        assert_eq!(demand.units(&load, 100), NULL_BLOCKS + 100 * 8 + 5);
    }
}
