//! Checkpoints in pools of their own, as they are or in 8 bits.

use candle_core::{DType, Device, Tensor};

use super::int8::{Int8State, StateShape};
use super::pool::PoolTensor;
use crate::ManagerError;
use crate::book::SlotId;
use crate::device::error::Result;

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
    pub(super) fn encode(&self, slot: SlotId, contents: Tensor) -> Result<Tensor> {
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
    pub(super) fn decode(&self, slot: SlotId, contents: Tensor, pool: &PoolTensor) -> Result<Tensor> {
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
