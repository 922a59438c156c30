//! Contents of the pools, read out and overwritten.

use candle_core::Tensor;

use super::hybrid::{MambaHybridCacheManager, Route};
use super::interchange::MlaBlocks;
use super::kv::DenseKv;
use crate::ManagerError;
use crate::book::{BlockId, Indexing, Place, SequenceId};

impl MambaHybridCacheManager {
    /// A sequence's keys and values of one layer, as dense tensors.
    ///
    /// # Errors
    /// A stale route or handle, or a failing device.
    pub fn read_kv(&self, sequence: SequenceId, route: Route) -> Result<DenseKv, ManagerError> {
        let place = self.current(route)?;
        let Indexing::Blocks(paged) = place.indexing else {
            return Err(ManagerError::UnknownPool(place.pool.to_string()));
        };
        let tokens = self.book.resident(sequence)?.tokens;
        self.kv.read(place, self.book.block_table(sequence, paged)?, tokens)
    }

    /// A sequence's latents of an MLA layer, block by block, to be brought into another system's mode.
    ///
    /// # Errors
    /// A stale route or handle, a layer that is not MLA.
    pub fn export_mla(
        &self,
        sequence: SequenceId,
        route: Route,
        kv_lora_rank: usize,
    ) -> Result<MlaBlocks, ManagerError> {
        let (place, blocks) = self.latent_blocks(sequence, route)?;
        MlaBlocks::from_rows(&self.kv.read_latent(place, &blocks)?, kv_lora_rank)
    }

    /// Overwrites a sequence's latents of an MLA layer with as many blocks of any mode.
    ///
    /// # Errors
    /// A stale route or handle, a layer that is not MLA, blocks of another number, shape or dtype.
    pub fn import_mla(&mut self, sequence: SequenceId, route: Route, blocks: &MlaBlocks) -> Result<(), ManagerError> {
        let (place, held) = self.latent_blocks(sequence, route)?;
        self.kv.write_latent(place, &held, &blocks.to_rows()?)
    }

    fn latent_blocks(&self, sequence: SequenceId, route: Route) -> Result<(Place, Vec<BlockId>), ManagerError> {
        let place = self.current(route)?;
        let Indexing::Blocks(paged) = place.indexing else {
            return Err(ManagerError::UnknownPool(place.pool.to_string()));
        };
        Ok((place, self.book.held_blocks(sequence)?.swap_remove(paged)))
    }

    /// A sequence's state of one layer, `[d0, d1, d2]` as [`StateLayer::view`] says.
    ///
    /// # Errors
    /// A stale route or handle, or a failing device.
    pub fn read_state(&self, sequence: SequenceId, route: Route) -> Result<Tensor, ManagerError> {
        let place = self.current(route)?;
        let slot = self.book.resident(sequence)?.slot;
        self.mamba.read(place, slot.ok_or_else(|| ManagerError::UnknownPool(place.pool.to_string()))?)
    }

    /// Sets every element of every pool but the padding, to prove that a model reads the pools.
    ///
    /// # Errors
    /// A failing device.
    pub fn fill(&self, value: f64) -> Result<(), ManagerError> {
        self.pools().try_for_each(|(_, pool)| pool.fill_units(pool.reserved..pool.units() as u32, value))
    }

    /// Sets every element of free blocks and slots, to prove that nothing reads them.
    ///
    /// # Errors
    /// A failing device.
    pub fn fill_free(&self, value: f64) -> Result<(), ManagerError> {
        for paged in 0..self.kv.num_pools() {
            let free = self.book.blocks(paged)?.free_blocks();
            self.kv.pool(paged).fill_units(free.map(|block| block.0), value)?;
        }
        for pool in self.mamba.slot_pools() {
            pool.fill_units(self.book.slots().free_slots().map(|slot| slot.0), value)?;
        }
        Ok(())
    }
}
