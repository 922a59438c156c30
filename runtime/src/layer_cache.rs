//! A layer's caches, and a step's way into them.

use cacheplan_handlers::Kind;
use cacheplan_kernels::{
    KvLayerView, KvQuant, KvWrite, Numbers, PagedBatch, Positions, Rope, Run, StateBatch, StateLayerView,
};
use cacheplan_managers::book::StepMetadata;
use cacheplan_managers::device::{CacheManager, Route};
use candle_core::{DType, Tensor};

use crate::error::Result;

/// A layer's paged cache and the step's way into it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PagedCache<'a> {
    pub(crate) on: &'a Run<'a>,
    pub(crate) pool: &'a Tensor,
    pub(crate) view: KvLayerView,
    pub(crate) batch: PagedBatch<'a>,
    pub(crate) slot_mapping: Numbers<'a, i64>,
    /// How an 8-bit or 4-bit pool stores rows.
    pub(crate) quant: Option<KvQuant<'static>>,
}

/// A layer's state and the step's way into it.
#[derive(Clone, Debug)]
pub(crate) struct StateCache<'a> {
    pub(crate) pool: Tensor,
    pub(crate) view: StateLayerView,
    pub(crate) batch: StateBatch<'a>,
    /// In a step that verifies drafts by replay.
    pub(crate) inputs: Option<KeptInputs<'a>>,
}

/// The last rows of something of a layer, by position.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingCache<'a> {
    pub(crate) pool: &'a Tensor,
    pub(crate) view: StateLayerView,
}

impl RingCache<'_> {
    /// The stretches of the ring that so many rows from `first` on take: where each begins, and how many rows it has.
    fn stretches(&self, first: usize, rows: usize) -> impl Iterator<Item = (usize, usize)> {
        let ring = self.view.shape[0];
        let before_end = rows.min(ring - first % ring);
        [(first % ring, before_end), (0, rows - before_end)].into_iter().filter(|(_, rows)| *rows > 0)
    }

    fn start(&self, slot: usize, row: usize) -> usize {
        slot * self.view.slot_elems + self.view.layer_offset + row * self.view.shape[1]
    }

    /// The rows of a slot at the positions `first..first + rows`, `[rows, width]` in f32.
    pub(crate) fn read(&self, slot: usize, first: usize, rows: usize) -> candle_core::Result<Tensor> {
        let (flat, width) = (self.pool.flatten_all()?, self.view.shape[1]);
        let mut parts = vec![Tensor::zeros((0, width), DType::F32, self.pool.device())?];
        for (row, rows) in self.stretches(first, rows) {
            let part = flat.narrow(0, self.start(slot, row), rows * width)?;
            parts.push(part.reshape((rows, width))?.to_dtype(DType::F32)?);
        }
        Tensor::cat(&parts, 0)
    }

    /// Writes the last of `rows` `[rows, width]`, the first of which stands at position `first`, as many as there is room for.
    pub(crate) fn write(&self, slot: usize, first: usize, rows: &Tensor) -> candle_core::Result<()> {
        let given = rows.dim(0)?;
        let kept = given.min(self.view.shape[0]);
        let (mut at, first) = (given - kept, first + given - kept);
        let (flat, rows) = (self.pool.flatten_all()?, rows.to_dtype(self.pool.dtype())?.contiguous()?);
        for (row, count) in self.stretches(first, kept) {
            flat.slice_set(&rows.narrow(0, at, count)?.flatten_all()?, 0, self.start(slot, row))?;
            at += count;
        }
        Ok(())
    }
}

/// Where a layer keeps what its recurrence takes from the candidates of a step, for the replay of those that are accepted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeptInputs<'a> {
    pub(crate) caches: &'a CacheManager,
    pub(crate) metadata: &'a StepMetadata,
    pub(crate) layer: u32,
    /// The state itself, which has columns for candidates where it is a convolution's.
    pub(crate) own: Route,
}

impl StateCache<'_> {
    /// Keeps the inputs `[tokens, elems]` of a recurrence, by what kinds call them, `x` of `replay.x`.
    pub(crate) fn keep<const N: usize>(&self, inputs: [(&str, &Tensor); N]) -> Result<()> {
        let Some(KeptInputs { caches, metadata, layer, .. }) = self.inputs else { return Ok(()) };
        for (name, input) in inputs {
            let route = caches.route(layer, &Kind::Custom(format!("replay.{name}")))?;
            caches.stash(route, metadata, input)?;
        }
        Ok(())
    }

    /// Keeps the inputs of a convolution in its own columns for candidates.
    pub(crate) fn keep_columns(&self, input: &Tensor) -> Result<()> {
        let Some(KeptInputs { caches, metadata, own, .. }) = self.inputs else { return Ok(()) };
        Ok(caches.stash(own, metadata, input)?)
    }
}

impl PagedCache<'_> {
    /// Writes the step's keys and values `[tokens, num_kv_heads, head_dim]`; a latent cache takes no values.
    pub(crate) fn write(&self, k: &Tensor, v: Option<&Tensor>) -> Result<()> {
        let write = KvWrite { k, v, slot_mapping: self.slot_mapping, quant: self.quant };
        Ok(write.run(self.on, self.pool, &self.view)?)
    }

    /// As [`write`](Self::write), with queries and keys rotated on the way; returns the rotated queries.
    pub(crate) fn write_rotated(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        rope: &Rope,
        positions: Positions<'_>,
    ) -> Result<Tensor> {
        let write = KvWrite { k, v: Some(v), slot_mapping: self.slot_mapping, quant: self.quant };
        Ok(write.run_rotated(self.on, q, rope, positions, self.pool, &self.view)?)
    }
}
