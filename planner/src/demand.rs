//! How many units of a pool a number of sequences needs.

use cacheplan_handlers::Growth;

/// What the demand of every pool depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) max_seq_len: u64,
    pub(crate) max_num_tokens: u64,
    pub(crate) draft_positions: u64,
    pub(crate) padding_slots: u64,
    pub(crate) checkpoints_per_sequence: u64,
}

/// Blocks at the front of every paged pool that pad block tables; block 0.
pub(crate) const NULL_BLOCKS: u64 = 1;

impl Load {
    /// Slots of a state pool: padding, live and checkpoints.
    pub(crate) fn slots(&self, sequences: u64) -> u64 {
        let each = self.checkpoints_per_sequence.saturating_add(1);
        self.padding_slots.saturating_add(sequences.saturating_mul(each))
    }

    /// Units of a pool of this growth for `sequences` sequences, those reserved for padding included.
    pub(crate) fn units(&self, growth: Growth, tokens_per_block: u64, sequences: u64) -> u64 {
        match growth {
            Growth::Paged { window: None, .. } => {
                NULL_BLOCKS.saturating_add(self.full_blocks(tokens_per_block, sequences))
            }
            Growth::Paged { window: Some(window), .. } => {
                NULL_BLOCKS.saturating_add(self.window_blocks(u64::from(window), tokens_per_block, sequences))
            }
            Growth::PerSequence | Growth::PerSlotToken => self.slots(sequences),
            // A checkpoint never speculates.
            Growth::PerDraftPosition => self.padding_slots.saturating_add(sequences),
            Growth::Fixed => 1,
        }
    }

    fn full_blocks(&self, tokens_per_block: u64, sequences: u64) -> u64 {
        // The last step writes its draft positions beyond the committed tokens.
        let tokens = self.max_seq_len.saturating_add(self.draft_positions - 1);
        sequences.saturating_mul(tokens.div_ceil(tokens_per_block))
    }

    /// The most blocks that windows can touch at once.
    ///
    /// During a step with `c` new tokens a sequence reads and writes `window - 1 + c` consecutive tokens, which start
    /// anywhere in a block and so touch up to `ceil((window - 2 + c) / T) + 1` blocks. All sequences together have at
    /// most `max_num_tokens` new tokens; the worst case spreads them so that most of them enter a new block.
    fn window_blocks(&self, window: u64, tokens_per_block: u64, sequences: u64) -> u64 {
        let spanned = (window - 1).div_ceil(tokens_per_block);
        let to_next_block = tokens_per_block * spanned - (window - 1) + 1;
        let step = self.max_num_tokens.max(sequences.saturating_mul(self.draft_positions));
        let spare = step - sequences.min(step);
        let first = sequences.min(spare / to_next_block);
        let further = (spare - first * to_next_block) / tokens_per_block;
        let worst = sequences.saturating_mul(spanned + 1).saturating_add(first).saturating_add(further);
        worst.min(self.full_blocks(tokens_per_block, sequences))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    /// The most blocks over every way to spread a step's tokens and every alignment, by trying them all.
    fn brute_force(window: u64, tokens_per_block: u64, sequences: u64, max_num_tokens: u64) -> u64 {
        let step = max_num_tokens.max(sequences);
        let touched = |new: u64| {
            let tokens = window - 1 + new;
            (0..tokens_per_block).map(|start| (start + tokens).div_ceil(tokens_per_block)).max().unwrap()
        };
        // Best over the first `n` sequences with `t` tokens in all, each with at least one.
        let mut best = vec![Some(0u64); 1];
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
        let load = Load {
            max_seq_len: 1_000,
            max_num_tokens,
            draft_positions: 1,
            padding_slots: 1,
            checkpoints_per_sequence: 0,
        };
        let expected = brute_force(window, tokens_per_block, sequences, max_num_tokens);
        assert_eq!(load.window_blocks(window, tokens_per_block, sequences), expected);
    }
}
