//! What kernels need to know of one step.

/// The sequences of a step and where their caches lie, in the form that kernels read.
///
/// The step is ragged: all its tokens lie one after the other, sequence `i` owns
/// `cu_seqlens[i]..cu_seqlens[i + 1]`.
/// Filling one again reuses its memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepMetadata {
    /// `[batch + 1]` offsets of this step's tokens.
    pub cu_seqlens: Vec<u32>,
    /// `[batch]` length of each sequence after this step, its own tokens included; 0 marks padding.
    pub kv_lens: Vec<u32>,
    /// `[total_tokens]` position of each token in its sequence.
    pub positions: Vec<u32>,
    /// `[batch]` slot of each sequence; -1 marks padding, and sequences of a plan without states.
    pub slots: Vec<i32>,
    /// `[batch]` row of the draft pools; -1 marks padding, and steps that do not speculate.
    pub draft_rows: Vec<i32>,
    /// One per paged pool, in the plan's order.
    pub pools: Vec<PoolStep>,
}

/// One paged pool's part of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolStep {
    /// `[batch, max_blocks]` block of each logical block; -1 where there is none or a window has released it.
    pub block_tables: Vec<i32>,
    /// Row length of `block_tables`.
    pub max_blocks: usize,
    /// `[total_tokens]` where each token is written, `block * entries_per_block + entry`; -1 writes nothing.
    ///
    /// In pools of stride above 1 only the token that completes an entry, or ends the step, has one.
    pub slot_mapping: Vec<i64>,
}

impl StepMetadata {
    /// Sequences, padding included.
    pub fn batch(&self) -> usize {
        self.kv_lens.len()
    }

    /// Tokens of all sequences.
    pub fn total_tokens(&self) -> usize {
        self.positions.len()
    }

    /// Row of each sequence's last token, whose logits the next token is drawn from.
    pub fn last_rows(&self) -> impl Iterator<Item = u32> + '_ {
        self.cu_seqlens.iter().skip(1).map(|end| end.saturating_sub(1))
    }

    /// Appends padding sequences of `tokens` tokens each until there are `batch`: they write nothing and read nothing.
    pub fn pad_to(&mut self, batch: usize, tokens: usize) {
        while self.batch() < batch {
            let end = self.total_tokens() + tokens;
            self.positions.resize(end, 0);
            self.cu_seqlens.push(end as u32);
            self.kv_lens.push(0);
            self.slots.push(-1);
            self.draft_rows.push(-1);
            for pool in &mut self.pools {
                pool.block_tables.resize(pool.block_tables.len() + pool.max_blocks, -1);
                pool.slot_mapping.resize(end, -1);
            }
        }
    }

    /// Pads a step in which every sequence has one token to one of few shapes, so that steps of one shape can be recorded:
    /// to 1, 2, 4 or 8 sequences or a multiple of 8, at most `most`, and block tables to a power of two of blocks.
    pub fn pad_to_bucket(&mut self, most: usize) {
        let batch = self.batch();
        let padded = if batch <= 8 { batch.next_power_of_two() } else { batch.next_multiple_of(8) };
        self.pad_to(padded.min(most), 1);
        let batch = self.batch();
        for pool in &mut self.pools {
            let (had, blocks) = (pool.max_blocks, pool.max_blocks.next_power_of_two());
            pool.block_tables.resize(batch * blocks, -1);
            for row in (0..batch).rev() {
                pool.block_tables.copy_within(row * had..(row + 1) * had, row * blocks);
                pool.block_tables[row * blocks + had..(row + 1) * blocks].fill(-1);
            }
            pool.max_blocks = blocks;
        }
    }

    pub(crate) fn clear(&mut self, pools: usize) {
        self.cu_seqlens.clear();
        self.cu_seqlens.push(0);
        self.kv_lens.clear();
        self.positions.clear();
        self.slots.clear();
        self.draft_rows.clear();
        self.pools.resize_with(pools, PoolStep::default);
        for pool in &mut self.pools {
            pool.block_tables.clear();
            pool.slot_mapping.clear();
            pool.max_blocks = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    /// A step of one token in each sequence, in pools of these blocks a table.
    fn step(batch: usize, blocks: &[usize]) -> StepMetadata {
        let pool = |&max_blocks: &usize| PoolStep {
            block_tables: (0..(batch * max_blocks) as i32).collect(),
            max_blocks,
            slot_mapping: (0..batch as i64).map(|row| 100 + row).collect(),
        };
        StepMetadata {
            cu_seqlens: (0..=batch as u32).collect(),
            kv_lens: vec![9; batch],
            positions: vec![8; batch],
            slots: (1..=batch as i32).collect(),
            draft_rows: vec![-1; batch],
            pools: blocks.iter().map(pool).collect(),
        }
    }

    #[rstest]
    #[case(1, 256, 1)]
    #[case(2, 256, 2)]
    #[case(3, 256, 4)]
    #[case(5, 256, 8)]
    #[case(9, 256, 16)]
    #[case(17, 256, 24)]
    #[case(249, 256, 256)]
    // No more than a step may have.
    #[case(3, 3, 3)]
    #[case(10, 13, 13)]
    fn sequences_are_padded_to_few_numbers_of_them(#[case] batch: usize, #[case] most: usize, #[case] expected: usize) {
        let mut padded = step(batch, &[3]);
        padded.pad_to_bucket(most);
        assert_eq!((padded.batch(), padded.total_tokens()), (expected, expected));
        assert_eq!(padded.cu_seqlens, (0..=expected as u32).collect::<Vec<_>>());
        // Those that are not there have no context, no slot and nowhere to write.
        assert!(padded.kv_lens[batch..].iter().all(|length| *length == 0));
        assert!(padded.slots[batch..].iter().all(|slot| *slot == -1));
        assert!(padded.pools[0].slot_mapping[batch..].iter().all(|slot| *slot == -1));
        assert!(padded.pools[0].block_tables[batch * 4..].iter().all(|block| *block == -1));
    }

    #[test]
    fn tables_are_widened_and_keep_their_blocks() {
        let mut padded = step(3, &[3, 1, 4, 0]);
        padded.pad_to_bucket(8);
        let tables: Vec<_> = padded.pools.iter().map(|pool| (pool.max_blocks, pool.block_tables.clone())).collect();
        let none = -1;
        assert_eq!(
            tables,
            [
                (4, vec![0, 1, 2, none, 3, 4, 5, none, 6, 7, 8, none, none, none, none, none]),
                (1, vec![0, 1, 2, none]),
                (4, vec![0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, none, none, none, none]),
                (1, vec![none; 4]),
            ]
        );
    }

    #[test]
    fn steps_of_one_bucket_have_the_same_lengths() {
        let lengths = |batch, blocks| {
            let mut padded = step(batch, &[blocks]);
            padded.pad_to_bucket(64);
            let pool = &padded.pools[0];
            (padded.kv_lens.len(), pool.block_tables.len(), pool.slot_mapping.len())
        };
        assert_eq!(lengths(5, 5), lengths(8, 8));
        assert_ne!(lengths(5, 5), lengths(5, 9));
    }
}
