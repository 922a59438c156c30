//! What cached prefixes need of the pools: checkpoints that are no slots, and copies to and from host memory.

use candle_core::{Device, Tensor};

use super::kv::KvCacheManager;
use super::mamba::MambaCacheManager;
use super::pool::PoolTensor;
use crate::BookError;
use crate::book::{BlockId, Layout, SlotId};
use crate::device::error::Result;
use crate::prefix::HostTier;

impl MambaCacheManager {
    /// Stores what a slot holds as a checkpoint that is no slot. States in 8 bits pass through host memory.
    ///
    /// # Errors
    /// A state that no scale fits, or a failing device.
    pub(super) fn store(&self, from: SlotId, to: SlotId) -> Result<()> {
        for (stored, pool) in self.checkpoints.iter().zip(self.slot_pools()) {
            let contents = stored.encode(from, pool.read_units(&[from.0])?)?;
            stored.tensor.write_units(&[to.0], &contents)?;
        }
        Ok(())
    }

    /// Copies a checkpoint that is no slot into a slot.
    ///
    /// # Errors
    /// A checkpoint that holds no state, or a failing device.
    pub(super) fn load(&self, from: SlotId, to: SlotId) -> Result<()> {
        for (stored, pool) in self.checkpoints.iter().zip(self.slot_pools()) {
            let contents = stored.tensor.read_units(&[from.0])?;
            pool.write_units(&[to.0], &stored.decode(from, contents, pool)?)?;
        }
        Ok(())
    }

    /// Makes a checkpoint one that holds no state, so that whoever loads it is told.
    pub(super) fn spoil(&self, checkpoint: SlotId) -> Result<()> {
        for stored in self.checkpoints.iter().filter(|stored| !stored.states.is_empty()) {
            // Scales of these bytes are no numbers.
            let contents =
                Tensor::from_vec(vec![u8::MAX; stored.tensor.unit_elems], (1, stored.tensor.unit_elems), &Device::Cpu)?;
            stored.tensor.write_units(&[checkpoint.0], &contents)?;
        }
        Ok(())
    }

    /// The pools in which checkpoints lie, one for each pool of slots.
    pub(super) fn checkpoint_pools(&self) -> impl Iterator<Item = &PoolTensor> {
        let apart = self.checkpoints.iter().map(|pool| &pool.tensor);
        let slots = self.slot_pools().filter(|_| self.checkpoints.is_empty());
        apart.chain(slots)
    }
}

/// The host memory of cached prefixes. Dropping it frees it.
#[derive(Debug, Default)]
pub(super) struct PrefixHost {
    /// `[host blocks, block_elems]` for each paged pool.
    blocks: Vec<PoolTensor>,
    /// `[host states, …]` for each pool that holds checkpoints.
    states: Vec<PoolTensor>,
}

impl PrefixHost {
    pub(super) fn allocate(
        kv: &KvCacheManager,
        mamba: Option<&MambaCacheManager>,
        layout: &Layout,
        tier: HostTier,
    ) -> Result<Self> {
        let blocks = layout.paged.iter().map(|spec| {
            let units = if spec.window.is_some() { tier.windows } else { tier.blocks };
            kv.pool(spec.paged).on_host(units)
        });
        let states =
            mamba.into_iter().flat_map(MambaCacheManager::checkpoint_pools).map(|pool| pool.on_host(tier.slots));
        Ok(Self { blocks: blocks.collect::<Result<_, _>>()?, states: states.collect::<Result<_, _>>()? })
    }

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> u64 {
        self.blocks.iter().chain(&self.states).map(|pool| pool.planned_bytes).sum()
    }

    pub(super) fn take_block(&self, kv: &KvCacheManager, paged: usize, from: BlockId, to: u32) -> Result<()> {
        self.block_pool(paged)?.write_units(&[to], &kv.pool(paged).read_units(&[from.0])?)
    }

    pub(super) fn give_block(&self, kv: &KvCacheManager, paged: usize, from: u32, to: BlockId) -> Result<()> {
        kv.pool(paged).write_units(&[to.0], &self.block_pool(paged)?.read_units(&[from])?)
    }

    /// Takes a checkpoint in its own format.
    pub(super) fn take_checkpoint(&self, mamba: &MambaCacheManager, from: SlotId, to: u32) -> Result<()> {
        for (pool, host) in mamba.checkpoint_pools().zip(&self.states) {
            host.write_units(&[to], &pool.read_units(&[from.0])?)?;
        }
        Ok(())
    }

    /// Copies a checkpoint into a slot: what a request whose hit lies here starts from.
    pub(super) fn give_checkpoint(&self, mamba: &MambaCacheManager, from: u32, to: SlotId) -> Result<()> {
        for (i, (host, pool)) in self.states.iter().zip(mamba.slot_pools()).enumerate() {
            let contents = host.read_units(&[from])?;
            let contents = match mamba.checkpoints.get(i) {
                Some(stored) => stored.decode(to, contents, pool)?,
                None => contents,
            };
            pool.write_units(&[to.0], &contents)?;
        }
        Ok(())
    }

    fn block_pool(&self, paged: usize) -> Result<&PoolTensor, BookError> {
        self.blocks.get(paged).ok_or(BookError::NoHostTier)
    }
}
