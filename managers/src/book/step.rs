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
