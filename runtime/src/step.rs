//! One step as a layer sees it: where each token stands, and where the layer's cache is.

use cacheplan_handlers::Kind;
use cacheplan_kernels::{
    KvLayerView, KvQuant, PagedBatch, Rope, StateBatch, StateLayerView, quantize_and_cache, reshape_and_cache,
    rope_and_cache,
};
use cacheplan_managers::ManagerError;
use cacheplan_managers::book::StepMetadata;
use cacheplan_managers::device::MambaHybridCacheManager;
use candle_core::Tensor;

use crate::error::RuntimeError;

/// The step's sequences, the pools they live in, and the embeddings of its tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step<'a> {
    caches: &'a MambaHybridCacheManager,
    metadata: &'a StepMetadata,
    embedded: &'a Tensor,
}

/// A layer's paged cache and the step's way into it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PagedCache<'a> {
    pub(crate) pool: &'a Tensor,
    pub(crate) view: KvLayerView,
    pub(crate) batch: PagedBatch<'a>,
    pub(crate) slot_mapping: &'a [i64],
    /// How an 8-bit or 4-bit pool stores rows.
    pub(crate) quant: Option<KvQuant<'static>>,
}

/// A layer's state and the step's way into it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StateCache<'a> {
    pub(crate) pool: &'a Tensor,
    pub(crate) view: StateLayerView,
    pub(crate) batch: StateBatch<'a>,
}

impl PagedCache<'_> {
    /// Writes the step's keys and values `[tokens, num_kv_heads, head_dim]`; a latent cache takes no values.
    pub(crate) fn write(&self, k: &Tensor, v: Option<&Tensor>) -> Result<(), RuntimeError> {
        match self.quant {
            Some(quant) => quantize_and_cache(self.pool, &self.view, k, v, self.slot_mapping, quant)?,
            None => reshape_and_cache(self.pool, &self.view, k, v, self.slot_mapping)?,
        }
        Ok(())
    }

    /// As [`write`](Self::write), with queries and keys rotated on the way; returns the rotated queries.
    pub(crate) fn write_rotated(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        rope: &Rope,
        positions: &[u32],
    ) -> Result<Tensor, RuntimeError> {
        let (pool, view, slots) = (self.pool, &self.view, self.slot_mapping);
        Ok(rope_and_cache(q, pool, view, k, Some(v), slots, rope, positions, self.quant)?)
    }
}

impl<'a> Step<'a> {
    /// The step that `metadata` describes, as the manager of its pools filled it in.
    pub(crate) fn new(caches: &'a MambaHybridCacheManager, metadata: &'a StepMetadata, embedded: &'a Tensor) -> Self {
        Self { caches, metadata, embedded }
    }

    /// The embeddings of the step's tokens, `[tokens, hidden]`, for layers that look back at them.
    pub(crate) fn embedded(&self) -> &'a Tensor {
        self.embedded
    }

    /// The position of each token in its sequence.
    pub(crate) fn positions(&self) -> &'a [u32] {
        &self.metadata.positions
    }

    /// The paged cache of `kind` in `layer`.
    pub(crate) fn paged(&self, layer: u32, kind: &Kind) -> Result<PagedCache<'a>, RuntimeError> {
        let cache = self.caches.kv_layer(self.caches.route(layer, kind)?)?;
        let foreign = || ManagerError::UnknownPool(format!("paged pool {}", cache.paged));
        let pool = self.metadata.pools.get(cache.paged).ok_or_else(foreign)?;
        let batch = PagedBatch {
            cu_seqlens: &self.metadata.cu_seqlens,
            kv_lens: &self.metadata.kv_lens,
            block_tables: &pool.block_tables,
            max_blocks: pool.max_blocks,
        };
        Ok(PagedCache {
            pool: cache.pool,
            view: cache.view,
            batch,
            slot_mapping: &pool.slot_mapping,
            quant: cache.quant,
        })
    }

    /// The state of `kind` in `layer`.
    pub(crate) fn state(&self, layer: u32, kind: &Kind) -> Result<StateCache<'a>, RuntimeError> {
        let state = self.caches.state_layer(self.caches.route(layer, kind)?)?;
        let batch = StateBatch::new(&self.metadata.cu_seqlens, &self.metadata.slots);
        Ok(StateCache { pool: state.pool, view: state.view, batch })
    }
}
