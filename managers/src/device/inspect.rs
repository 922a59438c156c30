//! Contents of the pools, read out and overwritten.

use cacheplan_kernels::MlaCacheMode;
use candle_core::{DType, Tensor};

use super::interchange::{MlaBlocks, MlaCache, check_scale};
use super::kv::{DenseKv, KvLayer};
use super::mamba::MambaCacheManager;
use super::manager::{CacheManager, Route};
use crate::book::{BlockId, Indexing, PoolIndex, SequenceId};
use crate::device::error::Result;
use crate::{BookError, ManagerError};

impl CacheManager {
    /// A sequence's keys and values of one layer, as dense tensors.
    ///
    /// # Errors
    /// A stale route or handle, or a failing device.
    pub fn read_kv(&self, sequence: SequenceId, route: Route) -> Result<DenseKv> {
        let (place, paged) = self.paged(route)?;
        let tokens = self.book.resident(sequence)?.tokens;
        self.kv().read(place, self.book.block_table(sequence, paged)?, tokens)
    }

    /// A layer's MLA cache in the mode that its pools have: one resource is mode 0; with rope keys apart it is mode 2 where
    /// the latents are int8, mode 3 where latents are in several columns, and else mode 1.
    ///
    /// `scale` is what int8 latents are multiplied with.
    ///
    /// # Errors
    /// A stale route, resources that are no latents, rope keys alone in NZ order, or a scale that is none.
    pub fn mla_cache(&self, latent: Route, rope: Option<Route>, kv_lora_rank: usize, scale: f32) -> Result<MlaCache> {
        let layer = self.kv_layer(latent)?;
        let rope_layer = rope.map(|rope| self.kv_layer(rope)).transpose()?;
        let in_columns = |layer: &KvLayer<'_>| layer.view.num_kv_heads > 1;
        let mode = match &rope_layer {
            None => MlaCacheMode::KvCache,
            Some(_) if layer.pool.dtype() == DType::U8 => MlaCacheMode::Int8Nz,
            Some(_) if in_columns(&layer) => MlaCacheMode::Nz,
            // Narrow ones may have a single column, which is a row.
            Some(rope) if !in_columns(rope) => MlaCacheMode::KropeCtkv,
            Some(_) => return Err(ManagerError::ForeignState("latents and rope keys lie in different orders".into())),
        };
        let scale = if mode == MlaCacheMode::Int8Nz { scale } else { 1.0 };
        check_scale(scale)?;
        Ok(MlaCache { mode, latent, rope, kv_lora_rank, scale })
    }

    /// A sequence's latents and rope keys, block by block, as the cache's mode stores them.
    ///
    /// # Errors
    /// A stale route or handle, a layer that is not MLA.
    pub fn export_mla(&self, sequence: SequenceId, cache: &MlaCache) -> Result<MlaBlocks> {
        let read = |route: Route| {
            let (place, blocks) = self.latent_blocks(sequence, route)?;
            self.kv().read_latent(place, &blocks)
        };
        let in_mode = |stored: Tensor| in_order_of(cache.mode, &stored);
        let rope = cache.rope.map(read).transpose()?.map(in_mode).transpose()?;
        let &MlaCache { mode, kv_lora_rank, scale, .. } = cache;
        Ok(MlaBlocks { mode, latent: in_mode(read(cache.latent)?)?, rope, scale, kv_lora_rank })
    }

    /// Overwrites a sequence's latents and rope keys with as many blocks of any mode.
    ///
    /// # Errors
    /// A stale route or handle, a layer that is not MLA, blocks of another number, shape or dtype; nothing has changed
    /// then. [`ManagerError::ContentsLost`] if the device fails while it writes them.
    pub fn import_mla(&mut self, sequence: SequenceId, cache: &MlaCache, blocks: &MlaBlocks) -> Result<()> {
        let stored = blocks.to_mode(cache.mode, cache.scale)?;
        let in_pool = |stored: &Tensor| in_order_of(cache.mode, stored);
        let mut writes = vec![(self.latent_blocks(sequence, cache.latent)?, in_pool(&stored.latent)?)];
        if let (Some(route), Some(rope)) = (cache.rope, &stored.rope) {
            writes.push((self.latent_blocks(sequence, route)?, in_pool(rope)?));
        }
        for ((place, held), values) in &writes {
            self.kv().check_latent(*place, held, values)?;
            self.check_alone(*place, held)?;
        }
        let done = writes.iter().try_for_each(|((place, held), values)| self.kv().write_latent(*place, held, values));
        self.lose_unless(done, &[sequence])
    }

    /// Checks that nobody but the sequence that holds them reads these blocks.
    fn check_alone(&self, place: PoolIndex, held: &[BlockId]) -> Result<()> {
        let Indexing::Blocks(paged) = place.indexing else { return Ok(()) };
        let blocks = self.book.blocks(paged)?;
        match held.iter().find(|&&block| blocks.references(block) > 1) {
            Some(&block) => Err(ManagerError::BlockShared { pool: self.book.layout().paged[paged].id.clone(), block }),
            None => Ok(()),
        }
    }

    /// Where a cache of blocks lies, and in which paged pool.
    fn paged(&self, route: Route) -> Result<(PoolIndex, usize)> {
        let place = self.current(route)?;
        match place.indexing {
            Indexing::Blocks(paged) => Ok((place, paged)),
            _ => Err(BookError::UnknownPool(place.pool.to_string()).into()),
        }
    }

    fn latent_blocks(&self, sequence: SequenceId, route: Route) -> Result<(PoolIndex, Vec<BlockId>)> {
        let (place, paged) = self.paged(route)?;
        Ok((place, self.book.held_blocks(sequence)?.swap_remove(paged)))
    }

    /// A sequence's state of one layer, `[d0, d1, d2]` as [`StateLayer::view`](super::StateLayer::view) says.
    ///
    /// # Errors
    /// A stale route or handle, or a failing device.
    pub fn read_state(&self, sequence: SequenceId, route: Route) -> Result<Tensor> {
        let place = self.current(route)?;
        let slot = self.book.resident(sequence)?.slot;
        self.pools.states()?.read(place, slot.ok_or_else(|| BookError::UnknownPool(place.pool.to_string()))?)
    }

    /// Sets every element of every pool but the padding, to prove that a model reads the pools.
    ///
    /// # Errors
    /// A failing device.
    pub fn fill(&self, value: f64) -> Result<()> {
        self.pools().try_for_each(|(_, pool)| pool.fill_units(pool.reserved..pool.units() as u32, value))
    }

    /// Sets every element of free blocks and slots, to prove that nothing reads them.
    ///
    /// # Errors
    /// A failing device.
    pub fn fill_free(&self, value: f64) -> Result<()> {
        for paged in 0..self.kv().num_pools() {
            let free = self.book.blocks(paged)?.free_blocks();
            self.kv().pool(paged).fill_units(free.map(|block| block.0), value)?;
        }
        for pool in self.mamba().into_iter().flat_map(MambaCacheManager::slot_pools) {
            pool.fill_units(self.book.slots().free_slots().map(|slot| slot.0), value)?;
        }
        Ok(())
    }
}

/// Blocks of a pool as the mode has them, and back: tokens stand before the one column of a row.
fn in_order_of(mode: MlaCacheMode, blocks: &Tensor) -> Result<Tensor> {
    match mode {
        MlaCacheMode::KvCache | MlaCacheMode::KropeCtkv => Ok(blocks.transpose(1, 2)?.contiguous()?),
        MlaCacheMode::Int8Nz | MlaCacheMode::Nz => Ok(blocks.clone()),
    }
}
