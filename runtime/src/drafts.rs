//! The states of a step that verifies drafted tokens: live ones are only read, and what takes them on to the accepted
//! candidates is kept, in the rows that the plan has for it: inputs to replay, or a state after every candidate.
//!
//! Inputs are kept as they are. For states a kernel writes the states of a tree into the pool that it reads from, and planned draft rows lie in a pool of their own.
//! So a layer gets a pool of its own for the time of its kernel: the live states of the step's sequences, and behind them
//! a row for each candidate, which are brought into the planned rows before the next layer runs.

use std::cell::RefCell;

use cacheplan_handlers::Kind;
use cacheplan_kernels::{StateBatch, StateLayerView, StateWrites};
use cacheplan_managers::device::{CacheManager, Route, StateLayer};
use candle_core::Tensor;

use crate::error::Result;
use crate::inputs::StepInputs;
use crate::layer_cache::{KeptInputs, StateCache};

/// Where the states of a verifying step are written.
#[derive(Debug)]
pub(crate) struct Drafts<'a> {
    caches: &'a CacheManager,
    inputs: &'a StepInputs<'a>,
    /// Rows of the live states; -1 for padding.
    slots: Vec<i32>,
    /// The candidate before each, -1 for the first of a sequence.
    parents: Vec<i32>,
    /// Rows of the states after each candidate.
    after: Vec<i32>,
    /// The pool of the layer that ran last, and where it is to be kept.
    pending: RefCell<Option<(Tensor, Route)>>,
}

impl<'a> Drafts<'a> {
    /// `None` in a step that does not speculate.
    pub(crate) fn of(caches: &'a CacheManager, inputs: &'a StepInputs<'a>) -> Option<Self> {
        let metadata = inputs.metadata;
        if metadata.draft_rows.iter().all(|row| *row < 0) {
            return None;
        }
        let batch = metadata.batch() as i32;
        let slots = (0..batch).zip(&metadata.slots).map(|(row, slot)| if *slot < 0 { -1 } else { row }).collect();
        let mut parents = metadata.parents.clone();
        if parents.is_empty() {
            parents = (0..metadata.total_tokens() as i32).map(|row| row - 1).collect();
            for first in &metadata.cu_seqlens {
                if let Some(parent) = parents.get_mut(*first as usize) {
                    *parent = -1;
                }
            }
        }
        let after = (0..metadata.total_tokens() as i32).map(|row| batch + row).collect();
        Some(Self { caches, inputs, slots, parents, after, pending: RefCell::new(None) })
    }

    /// The pool for the kernel of a layer whose live state is at `own`, and whose states after candidates are at `twin`, if
    /// they are kept.
    pub(crate) fn state(
        &self,
        layer: u32,
        own: Route,
        twin: Option<Route>,
        live: &StateLayer<'_>,
    ) -> Result<StateCache<'_>> {
        self.keep()?;
        let Self { caches, inputs, parents, .. } = self;
        let metadata = inputs.metadata;
        let Some(twin) = twin else {
            let writes = StateWrites::Tree { parents, slots: &[] };
            let batch = inputs.states.with_writes(writes);
            let inputs = Some(KeptInputs { caches, metadata, layer, own });
            return Ok(StateCache { pool: live.pool.clone(), view: live.view, batch, inputs });
        };
        let view = live.view;
        let rows: Vec<u32> = self.inputs.metadata.slots.iter().map(|slot| u32::try_from(*slot).unwrap_or(0)).collect();
        let device = live.pool.device();
        let own = live.pool.index_select(&Tensor::new(rows, device)?, 0)?.narrow(1, view.layer_offset, view.elems())?;
        let candidates = Tensor::zeros((self.after.len(), view.elems()), own.dtype(), device)?;
        let pool = Tensor::cat(&[&own.contiguous()?, &candidates], 0)?;
        *self.pending.borrow_mut() = Some((pool.clone(), twin));
        let writes = StateWrites::Tree { parents: &self.parents, slots: &self.after };
        let batch = StateBatch::new(inputs.states.cu_seqlens, &self.slots).with_writes(writes);
        let view = StateLayerView { slot_elems: view.elems(), layer_offset: 0, ..view };
        Ok(StateCache { pool, view, batch, inputs: None })
    }

    /// Brings what the last layer wrote into the planned rows.
    pub(crate) fn keep(&self) -> Result<()> {
        let Some((pool, twin)) = self.pending.borrow_mut().take() else { return Ok(()) };
        let planned = self.caches.state_layer(twin)?;
        let rows = planned.pool.flatten_all()?;
        for (sequence, range) in self.inputs.metadata.cu_seqlens.windows(2).enumerate() {
            let Ok(row) = usize::try_from(self.inputs.metadata.draft_rows[sequence]) else { continue };
            let (first, count) = (range[0] as usize, (range[1] - range[0]) as usize);
            let states = pool.narrow(0, self.inputs.metadata.batch() + first, count)?.flatten_all()?;
            rows.slice_set(&states, 0, row * planned.view.slot_elems + planned.view.layer_offset)?;
        }
        Ok(())
    }
}

/// The kind of the states that are kept after candidates.
pub(crate) fn twin(kind: &Kind) -> Kind {
    match kind {
        Kind::Ssm => Kind::IntermediateSsm,
        Kind::CausalConv => Kind::IntermediateCausalConv,
        _ => Kind::IntermediateState,
    }
}
