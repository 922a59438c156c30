//! What cached prefixes need of the pools: checkpoints in 8 bits, and copies to and from host memory.

use candle_core::{DType, Device, Tensor};

use super::kv::KvCacheManager;
use super::mamba::MambaCacheManager;
use super::pool::PoolTensor;
use crate::book::prefix::{HostTier, Int8State, StateShape};
use crate::book::{BlockId, Layout, SlotId};
use crate::{BookError, ManagerError};

/// Checkpoints in a pool of their own, beside the pool of slots whose states they hold.
#[derive(Debug)]
pub(crate) struct CheckpointPool {
    /// Index in the plan.
    pub(crate) index: usize,
    pub(crate) tensor: PoolTensor,
    /// The states of a slot, where they are stored in 8 bits; empty where a checkpoint is a copy of the slot.
    pub(crate) states: Vec<StoredState>,
}

/// One layer's state in a slot and in a checkpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredState {
    pub(crate) shape: StateShape,
    /// Element of the slot at which it begins.
    pub(crate) slot_offset: usize,
    /// Byte of the checkpoint at which it begins.
    pub(crate) checkpoint_offset: usize,
}

impl CheckpointPool {
    /// A slot's contents `[1, slot_elems]` as those of a checkpoint.
    fn encode(&self, slot: SlotId, contents: Tensor) -> Result<Tensor, ManagerError> {
        if self.states.is_empty() {
            return Ok(contents);
        }
        let values = contents.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
        let mut bytes = vec![0; self.tensor.unit_elems];
        for state in &self.states {
            let values = &values[state.slot_offset..][..state.shape.elements()];
            let stored = Int8State::quantise(state.shape, values)
                .map_err(|source| ManagerError::NotQuantisable { slot, source })?;
            stored.write(&mut bytes[state.checkpoint_offset..][..state.shape.int8_bytes()]);
        }
        Ok(Tensor::from_vec(bytes, (1, self.tensor.unit_elems), &Device::Cpu)?)
    }

    /// A checkpoint's contents as those of a slot of `pool`; `slot` stands for the checkpoint in errors.
    fn decode(&self, slot: SlotId, contents: Tensor, pool: &PoolTensor) -> Result<Tensor, ManagerError> {
        if self.states.is_empty() {
            return Ok(contents);
        }
        let bytes = contents.to_device(&Device::Cpu)?.flatten_all()?.to_vec1::<u8>()?;
        let mut values = vec![0.0; pool.unit_elems];
        for state in &self.states {
            let stored = Int8State::read(state.shape, &bytes[state.checkpoint_offset..][..state.shape.int8_bytes()])
                .map_err(|source| ManagerError::NotQuantisable { slot, source })?;
            values[state.slot_offset..][..state.shape.elements()].copy_from_slice(&stored.dequantise());
        }
        let values = Tensor::from_vec(values, (1, pool.unit_elems), &Device::Cpu)?;
        Ok(values.to_dtype(pool.tensor.dtype())?)
    }
}

impl MambaCacheManager {
    /// Stores what a slot holds as a checkpoint that is no slot. States in 8 bits pass through host memory.
    ///
    /// # Errors
    /// A state that no scale fits, or a failing device.
    pub(super) fn store(&self, from: SlotId, to: SlotId) -> Result<(), ManagerError> {
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
    pub(super) fn load(&self, from: SlotId, to: SlotId) -> Result<(), ManagerError> {
        for (stored, pool) in self.checkpoints.iter().zip(self.slot_pools()) {
            let contents = stored.tensor.read_units(&[from.0])?;
            pool.write_units(&[to.0], &stored.decode(from, contents, pool)?)?;
        }
        Ok(())
    }

    /// Makes a checkpoint one that holds no state, so that whoever loads it is told.
    pub(super) fn spoil(&self, checkpoint: SlotId) -> Result<(), ManagerError> {
        for stored in self.checkpoints.iter().filter(|stored| !stored.states.is_empty()) {
            // Scales of these bytes are no numbers.
            let contents =
                Tensor::from_vec(vec![u8::MAX; stored.tensor.unit_elems], (1, stored.tensor.unit_elems), &Device::Cpu)?;
            stored.tensor.write_units(&[checkpoint.0], &contents)?;
        }
        Ok(())
    }

    /// The pools in which checkpoints lie, one for each pool of slots.
    fn checkpoint_pools(&self) -> impl Iterator<Item = &PoolTensor> {
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
        mamba: &MambaCacheManager,
        layout: &Layout,
        tier: HostTier,
    ) -> Result<Self, ManagerError> {
        let blocks = layout.paged.iter().map(|spec| {
            let units = if spec.window.is_some() { tier.windows } else { tier.blocks };
            kv.pool(spec.paged).on_host(units)
        });
        let states = mamba.checkpoint_pools().map(|pool| pool.on_host(tier.slots));
        Ok(Self { blocks: blocks.collect::<Result<_, _>>()?, states: states.collect::<Result<_, _>>()? })
    }

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> u64 {
        self.blocks.iter().chain(&self.states).map(|pool| pool.planned_bytes).sum()
    }

    pub(super) fn take_block(
        &self,
        kv: &KvCacheManager,
        paged: usize,
        from: BlockId,
        to: u32,
    ) -> Result<(), ManagerError> {
        self.block_pool(paged)?.write_units(&[to], &kv.pool(paged).read_units(&[from.0])?)
    }

    pub(super) fn give_block(
        &self,
        kv: &KvCacheManager,
        paged: usize,
        from: u32,
        to: BlockId,
    ) -> Result<(), ManagerError> {
        kv.pool(paged).write_units(&[to.0], &self.block_pool(paged)?.read_units(&[from])?)
    }

    /// Takes a checkpoint in its own format.
    pub(super) fn take_checkpoint(&self, mamba: &MambaCacheManager, from: SlotId, to: u32) -> Result<(), ManagerError> {
        for (pool, host) in mamba.checkpoint_pools().zip(&self.states) {
            host.write_units(&[to], &pool.read_units(&[from.0])?)?;
        }
        Ok(())
    }

    /// Copies a checkpoint into a slot: what a request whose hit lies here starts from.
    pub(super) fn give_checkpoint(&self, mamba: &MambaCacheManager, from: u32, to: SlotId) -> Result<(), ManagerError> {
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
