//! A layer's caches, and a step's way into them.

use cacheplan_handlers::Kind;
use cacheplan_kernels::{
    KvLayerView, KvQuant, KvWrite, Numbers, PagedBatch, Positions, Rope, Run, StateBatch, StateLayerView,
};
use cacheplan_managers::book::StepMetadata;
use cacheplan_managers::device::CacheManager;
use candle_core::Tensor;

use crate::error::RuntimeError;

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

/// Where a layer keeps what its recurrence takes from the candidates of a step, for the replay of those that are accepted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeptInputs<'a> {
    pub(crate) caches: &'a CacheManager,
    pub(crate) metadata: &'a StepMetadata,
    pub(crate) layer: u32,
}

impl StateCache<'_> {
    /// Keeps the inputs `[tokens, elems]` of a recurrence, by what kinds call them, `x` of `replay.x`.
    pub(crate) fn keep<const N: usize>(&self, inputs: [(&str, &Tensor); N]) -> Result<(), RuntimeError> {
        for (name, input) in inputs {
            self.keep_as(&Kind::Custom(format!("replay.{name}")), input)?;
        }
        Ok(())
    }

    /// Keeps the inputs of a kind.
    pub(crate) fn keep_as(&self, kind: &Kind, input: &Tensor) -> Result<(), RuntimeError> {
        let Some(KeptInputs { caches, metadata, layer }) = self.inputs else { return Ok(()) };
        Ok(caches.stash(caches.route(layer, kind)?, metadata, input)?)
    }
}

impl PagedCache<'_> {
    /// Writes the step's keys and values `[tokens, num_kv_heads, head_dim]`; a latent cache takes no values.
    pub(crate) fn write(&self, k: &Tensor, v: Option<&Tensor>) -> Result<(), RuntimeError> {
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
    ) -> Result<Tensor, RuntimeError> {
        let write = KvWrite { k, v: Some(v), slot_mapping: self.slot_mapping, quant: self.quant };
        Ok(write.run_rotated(self.on, q, rope, positions, self.pool, &self.view)?)
    }
}
