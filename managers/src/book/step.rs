//! What kernels need to know of one step.

use std::collections::HashSet;

use super::layout::{Layout, PagedSpec};
use crate::book::error::{BookError, Result};

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
    /// `[total_tokens]` row that each token follows, -1 for the first of its sequence, where candidates form trees; empty
    /// where each token follows the one before it. Whoever makes a tree says so here ([`StepMetadata::branch`]).
    pub parents: Vec<i32>,
    /// One per paged pool, in the plan's order.
    pub pools: Vec<PoolStep>,
}

/// One paged pool's part of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolStep {
    /// The pool's id in the plan.
    pub id: String,
    /// `[batch, max_blocks]` block of each logical block; -1 where there is none or a window has released it. A
    /// sequence's part is its [`row`](PoolStep::row).
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

    /// Makes the tokens of a sequence a tree: each stands behind the one that it follows, by its place in the sequence's
    /// step, whose first token stands where it stood.
    /// Places that are not before the token leave it behind the one before it.
    pub fn branch(&mut self, sequence: usize, parents: &[u32]) {
        let Some(&[first, end]) = self.cu_seqlens.get(sequence..sequence + 2) else { return };
        if self.parents.is_empty() {
            self.parents = (0..self.total_tokens() as i32).map(|row| row - 1).collect();
            for &first in &self.cu_seqlens {
                self.parents.get_mut(first as usize).into_iter().for_each(|parent| *parent = -1);
            }
        }
        for (row, &parent) in (first + 1..end).zip(parents) {
            let parent = (first + parent).min(row - 1);
            self.parents[row as usize] = parent as i32;
            self.positions[row as usize] = self.positions[parent as usize] + 1;
        }
    }

    /// Appends padding sequences of `tokens` tokens each until there are `batch`: they write nothing and read nothing.
    pub fn pad_to(&mut self, batch: usize, tokens: usize) {
        while self.batch() < batch {
            let end = self.total_tokens() + tokens;
            self.positions.resize(end, 0);
            if !self.parents.is_empty() {
                self.parents.resize(end, -1);
            }
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

    /// Checks that the step is one of these pools: that its lists have the lengths that they should, that what it writes
    /// and sees exists, and that nothing is written twice.
    ///
    /// Kernels check what they are told. This is for who tells them once, and runs them for many steps.
    ///
    /// # Errors
    /// [`BookError::BadStep`].
    pub fn check(&self, layout: &Layout) -> Result<()> {
        self.held_to(&layout.paged, layout.slots.total())
    }

    fn held_to(&self, paged: &[PagedSpec], slots: u64) -> Result<()> {
        let (batch, tokens) = (self.batch(), self.total_tokens());
        let lengths = [
            ("cu_seqlens", self.cu_seqlens.len(), batch + 1),
            ("slots", self.slots.len(), batch),
            ("draft_rows", self.draft_rows.len(), batch),
            ("pools", self.pools.len(), paged.len()),
            ("parents", self.parents.len(), if self.parents.is_empty() { 0 } else { tokens }),
        ];
        for (name, found, expected) in lengths {
            ensure(found == expected, || format!("{name} has {found} entries, expected {expected}"))?;
        }
        let ends = self.cu_seqlens.first() == Some(&0) && self.cu_seqlens.last() == Some(&(tokens as u32));
        ensure(ends && self.cu_seqlens.is_sorted(), || format!("cu_seqlens do not rise from 0 to {tokens} tokens"))?;
        distinct("slot", self.slots.iter().map(|slot| i64::from(*slot)), slots)?;
        paged.iter().zip(&self.pools).try_for_each(|(spec, pool)| pool.check(spec, self))
    }

    pub(crate) fn clear(&mut self, pools: usize) {
        self.cu_seqlens.clear();
        self.cu_seqlens.push(0);
        self.kv_lens.clear();
        self.positions.clear();
        self.slots.clear();
        self.draft_rows.clear();
        self.parents.clear();
        self.pools.resize_with(pools, PoolStep::default);
        for pool in &mut self.pools {
            pool.block_tables.clear();
            pool.slot_mapping.clear();
            pool.max_blocks = 0;
        }
    }
}

impl PoolStep {
    /// The block table of the sequence at this place in the step; empty where the step has no such sequence.
    pub fn row(&self, sequence: usize) -> &[i32] {
        self.block_tables.chunks(self.max_blocks.max(1)).nth(sequence).unwrap_or_default()
    }

    fn check(&self, spec: &PagedSpec, step: &StepMetadata) -> Result<()> {
        let (batch, tokens) = (step.batch(), step.total_tokens());
        let (tables, writes) = (self.block_tables.len(), self.slot_mapping.len());
        let fits = batch.checked_mul(self.max_blocks) == Some(tables) && writes == tokens;
        ensure(fits, || format!("{tables} blocks and {writes} places for {batch} sequences of {tokens} tokens"))?;
        let entries = u64::from(spec.blocks) * u64::from(spec.entries_per_block);
        distinct("place", self.slot_mapping.iter().copied(), entries)?;
        for (sequence, &length) in step.kv_lens.iter().enumerate().filter(|(_, length)| **length > 0) {
            let new = step.cu_seqlens[sequence + 1] - step.cu_seqlens[sequence];
            let seen = spec.first_visible_block(length.saturating_sub(new)) as usize..spec.blocks_for(length) as usize;
            let table = self.row(sequence);
            let exists = |block: &i32| u32::try_from(*block).is_ok_and(|block| block < spec.blocks);
            let all = new == 0 || table.get(seen).is_some_and(|seen| seen.iter().all(exists));
            ensure(all, || format!("sequence {sequence} sees blocks that pool `{}` does not have", spec.id))?;
        }
        Ok(())
    }
}

/// Checks that every number but -1 is below `count` and occurs once.
fn distinct(what: &str, numbers: impl Iterator<Item = i64>, count: u64) -> Result<()> {
    let mut seen = HashSet::new();
    for number in numbers.filter(|number| *number != -1) {
        let exists = u64::try_from(number).is_ok_and(|number| number < count);
        ensure(exists && seen.insert(number), || format!("{what} {number} is written twice, or not one of {count}"))?;
    }
    Ok(())
}

fn ensure(holds: bool, reason: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(BookError::BadStep(reason())) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    /// A step of one token in each sequence, in pools of these blocks a table.
    fn step(batch: usize, blocks: &[usize]) -> StepMetadata {
        let pool = |&max_blocks: &usize| PoolStep {
            id: "kv".into(),
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
            parents: Vec::new(),
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

    #[rstest]
    #[case::whole(|_: &mut StepMetadata| {}, None)]
    #[case::missing_slot(|step: &mut StepMetadata| step.slots.truncate(1), Some("slots has 1 entries, expected 2"))]
    #[case::falling(|step: &mut StepMetadata| step.cu_seqlens[1] = 9, Some("cu_seqlens do not rise from 0 to 2 tokens"))]
    #[case::slot_twice(|step: &mut StepMetadata| step.slots = vec![1, 1], Some("slot 1 is written twice, or not one of 5"))]
    #[case::slot_beyond(|step: &mut StepMetadata| step.slots = vec![1, 5], Some("slot 5 is written twice, or not one of 5"))]
    #[case::place_beyond(
        |step: &mut StepMetadata| step.pools[0].slot_mapping[0] = 28,
        Some("place 28 is written twice, or not one of 28")
    )]
    #[case::short_table(
        |step: &mut StepMetadata| step.pools[0].block_tables.truncate(3),
        Some("3 blocks and 2 places for 2 sequences of 2 tokens")
    )]
    #[case::unseen_block(|step: &mut StepMetadata| step.pools[0].block_tables[0] = -1, None)]
    #[case::no_block(
        |step: &mut StepMetadata| step.pools[0].block_tables[3] = 7,
        Some("sequence 1 sees blocks that pool `kv` does not have")
    )]
    #[case::long(
        |step: &mut StepMetadata| step.kv_lens[1] = 9,
        Some("sequence 1 sees blocks that pool `kv` does not have")
    )]
    fn a_step_is_held_to_its_pools(#[case] change: fn(&mut StepMetadata), #[case] expected: Option<&str>) {
        let spec = PagedSpec {
            id: "kv".into(),
            pool: 0,
            paged: 0,
            blocks: 7,
            reserved: 1,
            entries_per_block: 4,
            stride: 1,
            window: Some(4),
            ring: 0,
            block_bytes: 1,
        };
        let mut step = StepMetadata {
            cu_seqlens: vec![0, 1, 2],
            kv_lens: vec![8, 5],
            positions: vec![7, 4],
            slots: vec![1, -1],
            draft_rows: vec![-1; 2],
            parents: Vec::new(),
            pools: vec![PoolStep {
                id: "kv".into(),
                block_tables: vec![1, 2, 3, 4],
                max_blocks: 2,
                slot_mapping: vec![11, 16],
            }],
        };
        change(&mut step);
        let found = step.held_to(&[spec], 5).err().map(|error| error.to_string());
        assert_eq!(found, expected.map(|reason| format!("the step does not fit the pools: {reason}")));
    }

    #[test]
    fn a_row_is_the_block_table_of_one_sequence() {
        let step = step(3, &[2, 0]);
        assert_eq!((step.pools[0].row(0), step.pools[0].row(2)), (&[0, 1][..], &[4, 5][..]));
        for (pool, sequence) in [(0, 3), (1, 0)] {
            assert!(step.pools[pool].row(sequence).is_empty(), "pool {pool}, sequence {sequence}");
        }
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
