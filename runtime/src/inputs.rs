//! What a step tells a model: its tokens and the lists of its sequences, on the host and where they were uploaded.

use cacheplan_kernels::{Numbers, PagedBatch, Positions, Rotations, StateBatch, StepLists, Word};
use cacheplan_managers::book::StepMetadata;

/// A step as its caller describes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostStep<'a> {
    pub(crate) tokens: &'a [u32],
    /// The rows that are wanted.
    pub(crate) rows: &'a [u32],
    pub(crate) metadata: &'a StepMetadata,
}

/// The same as ops are told of it.
#[derive(Clone, Debug)]
pub(crate) struct StepInputs<'a> {
    pub(crate) metadata: &'a StepMetadata,
    pub(crate) tokens: Numbers<'a, u32>,
    pub(crate) rows: Numbers<'a, u32>,
    pub(crate) positions: Positions<'a>,
    /// The sequences that carry a state.
    pub(crate) states: StateBatch<'a>,
    /// For each paged pool the sequences that attend in it, and the slots of their tokens.
    pub(crate) pools: Vec<(PagedBatch<'a>, Numbers<'a, i64>)>,
}

impl<'a> HostStep<'a> {
    /// The inputs of a step whose lists stay on the host.
    pub(crate) fn on_host(self) -> StepInputs<'a> {
        self.inputs((&self.metadata.positions).into(), None)
    }

    /// The inputs of a step whose lists are uploaded.
    pub(crate) fn listed(self, rotations: &'a mut Rotations, lists: &mut StepLists) -> StepInputs<'a> {
        let positions = rotations.list(&self.metadata.positions, lists);
        self.inputs(positions, Some(lists))
    }

    fn inputs(self, positions: Positions<'a>, mut lists: Option<&mut StepLists>) -> StepInputs<'a> {
        fn list<'a, T: Word>(host: &'a [T], lists: &mut Option<&mut StepLists>) -> Numbers<'a, T> {
            lists.as_deref_mut().map_or(host.into(), |lists| lists.add(host))
        }
        let Self { tokens, rows, metadata } = self;
        let [tokens, rows, cu_seqlens, kv_lens] =
            [tokens, rows, &metadata.cu_seqlens, &metadata.kv_lens].map(|host| list(host, &mut lists));
        let states = StateBatch::new(cu_seqlens, list(&metadata.slots, &mut lists));
        let pools = metadata.pools.iter().map(|pool| {
            let tables = list(&pool.block_tables, &mut lists);
            let batch = PagedBatch::new(cu_seqlens, kv_lens, tables, pool.max_blocks);
            let batch = if metadata.parents.is_empty() { batch } else { batch.with_parents(&metadata.parents) };
            (batch, list(&pool.slot_mapping, &mut lists))
        });
        let pools = pools.collect();
        StepInputs { metadata, tokens, rows, positions, states, pools }
    }

    /// Whether every sequence has one token, whose row is wanted, and nothing is guessed.
    pub(crate) fn decodes(&self) -> bool {
        let Self { tokens, rows, metadata } = *self;
        let each = (0u32..).zip(rows).all(|(row, wanted)| row == *wanted) && rows.len() == tokens.len();
        each && metadata.batch() == tokens.len() && metadata.draft_rows.iter().all(|row| *row < 0)
    }
}
