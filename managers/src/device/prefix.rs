//! What a prefix cache decides, carried out on the pools: checkpoints and the copies to and from host memory.

use candle_core::{DType, Device, Tensor};

use super::hybrid::MambaHybridCacheManager;
use super::mamba::MambaCacheManager;
use super::pool::PoolTensor;
use crate::ManagerError;
use crate::book::prefix::{HostSlotId, HostTier, Int8State, Load, Offload, StateShape};
use crate::book::{SetAside, SlotId, SlotRole};

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

impl MambaHybridCacheManager {
    /// Copies the states of a slot into a checkpoint, in the plan's format for checkpoints. States in 8 bits pass
    /// through host memory.
    ///
    /// # Errors
    /// A slot that nobody holds, a checkpoint that is none, a state that no scale fits, or a failing device.
    pub fn store_checkpoint(&mut self, from: SlotId, to: SlotId) -> Result<(), ManagerError> {
        self.settle()?;
        self.book.slots().role(from).ok_or(ManagerError::SlotNotHeld { slot: from })?;
        if self.mamba.checkpoints.is_empty() {
            self.ensure_checkpoint(to)?;
            return self.mamba.copy(from, to);
        }
        for (stored, pool) in self.mamba.checkpoints.iter().zip(self.mamba.slot_pools()) {
            let contents = stored.encode(from, pool.read_units(&[from.0])?)?;
            stored.tensor.write_units(&[to.0], &contents)?;
        }
        Ok(())
    }

    /// Copies a checkpoint into a slot: what a request that hit starts from.
    ///
    /// # Errors
    /// As [`MambaHybridCacheManager::store_checkpoint`].
    pub fn load_checkpoint(&mut self, from: SlotId, to: SlotId) -> Result<(), ManagerError> {
        self.settle()?;
        self.book.slots().role(to).ok_or(ManagerError::SlotNotHeld { slot: to })?;
        if self.mamba.checkpoints.is_empty() {
            self.ensure_checkpoint(from)?;
            return self.mamba.copy(from, to);
        }
        for (stored, pool) in self.mamba.checkpoints.iter().zip(self.mamba.slot_pools()) {
            let contents = stored.tensor.read_units(&[from.0])?;
            pool.write_units(&[to.0], &stored.decode(from, contents, pool)?)?;
        }
        Ok(())
    }

    fn ensure_checkpoint(&self, slot: SlotId) -> Result<(), ManagerError> {
        match self.book.slots().role(slot) {
            Some(SlotRole::Checkpoint) => Ok(()),
            _ => Err(ManagerError::SlotNotHeld { slot }),
        }
    }
}

/// The host memory of a prefix cache, one per manager. Dropping it frees it.
#[derive(Debug)]
pub struct PrefixHost {
    /// `[host blocks, block_elems]` for each paged pool of full attention, with the pool's number.
    blocks: Vec<(usize, PoolTensor)>,
    /// The same for each paged pool with a window.
    windows: Vec<(usize, PoolTensor)>,
    /// `[host states, …]` for each pool that holds checkpoints.
    states: Vec<PoolTensor>,
    _set_aside: SetAside,
}

impl PrefixHost {
    /// Allocates a tier beside a manager's pools and sets its bytes aside in the plan's host tier.
    ///
    /// # Errors
    /// A plan whose host tier has less room, or none; a tier that is there already; no memory. Nothing is set aside
    /// then.
    pub fn allocate(manager: &mut MambaHybridCacheManager, tier: HostTier) -> Result<Self, ManagerError> {
        let paged = &manager.book.layout().paged;
        let (full, windowed): (Vec<usize>, Vec<usize>) =
            (0..paged.len()).partition(|&paged_index| paged[paged_index].window.is_none());
        let bytes_of = |pools: &[usize]| pools.iter().map(|&paged| manager.kv.pool(paged).unit_bytes()).sum::<u64>();
        let state_bytes: u64 = checkpoint_pools(&manager.mamba).map(PoolTensor::unit_bytes).sum();
        let units = [(tier.blocks, bytes_of(&full)), (tier.windows, bytes_of(&windowed)), (tier.slots, state_bytes)];
        let bytes = units.into_iter().map(|(units, bytes)| u64::from(units).saturating_mul(bytes));
        let bytes = bytes.fold(0, u64::saturating_add);
        let set_aside = manager.book.set_host_aside(bytes)?;
        let on_host = |pools: Vec<usize>, units| {
            let pools = pools.into_iter().map(|paged| Ok((paged, manager.kv.pool(paged).on_host(units)?)));
            pools.collect::<Result<Vec<_>, ManagerError>>()
        };
        Ok(Self {
            blocks: on_host(full, tier.blocks)?,
            windows: on_host(windowed, tier.windows)?,
            states: checkpoint_pools(&manager.mamba).map(|pool| pool.on_host(tier.slots)).collect::<Result<_, _>>()?,
            _set_aside: set_aside,
        })
    }

    /// Makes the copies that an eviction asks for, before any of the units that it released is used again.
    ///
    /// # Errors
    /// Units that do not exist, or a failing device.
    pub fn offload(&self, manager: &mut MambaHybridCacheManager, copies: &[Offload]) -> Result<(), ManagerError> {
        manager.settle()?;
        let [mut blocks, mut windows, mut states] = [const { (Vec::new(), Vec::new()) }; 3];
        for copy in copies {
            let (pairs, from, to) = match *copy {
                Offload::Block { from, to } => (&mut blocks, from.0, to.0),
                Offload::Window { from, to } => (&mut windows, from.0, to.0),
                Offload::State { from, to } => (&mut states, from.0, to.0),
            };
            pairs.0.push(from);
            pairs.1.push(to);
        }
        for (pools, (sources, targets)) in [(&self.blocks, &blocks), (&self.windows, &windows)] {
            for (paged, host) in pools {
                copy_units(manager.kv.pool(*paged), sources, host, targets)?;
            }
        }
        for (pool, host) in checkpoint_pools(&manager.mamba).zip(&self.states) {
            copy_units(pool, &states.0, host, &states.1)?;
        }
        Ok(())
    }

    /// Makes the copies that a load asks for.
    ///
    /// # Errors
    /// As [`PrefixHost::offload`].
    pub fn load(&self, manager: &mut MambaHybridCacheManager, copies: &[Load]) -> Result<(), ManagerError> {
        manager.settle()?;
        let [mut blocks, mut windows] = [const { (Vec::new(), Vec::new()) }; 2];
        for copy in copies {
            let (pairs, from, to) = match *copy {
                Load::Block { from, to } => (&mut blocks, from, to),
                Load::Window { from, to } => (&mut windows, from, to),
            };
            pairs.0.push(from.0);
            pairs.1.push(to.0);
        }
        for (pools, (sources, targets)) in [(&self.blocks, &blocks), (&self.windows, &windows)] {
            for (paged, host) in pools {
                copy_units(host, sources, manager.kv.pool(*paged), targets)?;
            }
        }
        Ok(())
    }

    /// Copies a state on the host into a slot: what a request whose hit lies there starts from.
    ///
    /// # Errors
    /// As [`MambaHybridCacheManager::load_checkpoint`].
    pub fn load_checkpoint(
        &self,
        manager: &mut MambaHybridCacheManager,
        from: HostSlotId,
        to: SlotId,
    ) -> Result<(), ManagerError> {
        manager.settle()?;
        manager.book.slots().role(to).ok_or(ManagerError::SlotNotHeld { slot: to })?;
        for (i, (host, pool)) in self.states.iter().zip(manager.mamba.slot_pools()).enumerate() {
            let contents = host.read_units(&[from.0])?;
            let contents = match manager.mamba.checkpoints.get(i) {
                Some(stored) => stored.decode(to, contents, pool)?,
                None => contents,
            };
            pool.write_units(&[to.0], &contents)?;
        }
        Ok(())
    }
}

/// The pools in which checkpoints lie, one for each pool of slots.
fn checkpoint_pools(mamba: &MambaCacheManager) -> impl Iterator<Item = &PoolTensor> {
    let apart = mamba.checkpoints.iter().map(|pool| &pool.tensor);
    let slots = mamba.slot_pools().filter(|_| mamba.checkpoints.is_empty());
    apart.chain(slots)
}

/// Copies units from one pool to another of the same unit, in order.
fn copy_units(from: &PoolTensor, sources: &[u32], to: &PoolTensor, targets: &[u32]) -> Result<(), ManagerError> {
    if sources.is_empty() {
        return Ok(());
    }
    to.write_units(targets, &from.read_units(sources)?)
}
