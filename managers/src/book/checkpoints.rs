//! Checkpoints: states that are kept after some of a sequence's tokens, in slots or in pools of their own.

use super::cache::CacheBook;
use super::{PoolOp, SequenceId, SlotAllocator, SlotId, SlotRole};
use crate::book::error::{BookError, Result};

/// Where the state that a sequence starts from lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StateAt {
    /// In a checkpoint.
    Checkpoint(SlotId),
    /// In a unit of the host memory of cached prefixes.
    Host(u32),
}

impl CacheBook {
    /// Copies a sequence's state into a checkpoint, which the caller holds from now on.
    ///
    /// A checkpoint is a slot, or a unit of the pools that a plan has for checkpoints alone.
    ///
    /// # Errors
    /// No checkpoint is free; a plan without states.
    pub fn checkpoint(&mut self, id: SequenceId) -> Result<SlotId> {
        let from = self.state_slot(id)?;
        let to = self.take_slot(SlotRole::Checkpoint)?;
        self.ops.push(match self.checkpoint_only {
            Some(_) => PoolOp::StoreCheckpoint { from, to },
            None => PoolOp::CopySlot { from, to },
        });
        Ok(to)
    }

    /// Gives up a checkpoint.
    ///
    /// # Errors
    /// One that nobody holds.
    pub fn release_checkpoint(&mut self, checkpoint: SlotId) -> Result<()> {
        self.check_checkpoint(checkpoint)?;
        self.spoiled.retain(|spoiled| *spoiled != checkpoint);
        self.checkpoints_mut().release(checkpoint)
    }

    /// Ends a sequence and keeps its state as a checkpoint, without a copy where checkpoints are slots.
    ///
    /// # Errors
    /// No quota for a checkpoint; a plan without states.
    pub fn finish_into_checkpoint(&mut self, id: SequenceId) -> Result<SlotId> {
        if self.checkpoint_only.is_some() {
            let checkpoint = self.checkpoint(id)?;
            self.finish(id)?;
            return Ok(checkpoint);
        }
        let slot = self.state_slot(id)?;
        self.slots.convert(slot, SlotRole::Checkpoint)?;
        self.sequences.get_mut(id)?.slot = None;
        self.finish(id)?;
        Ok(slot)
    }

    /// Copies a checkpoint over a sequence's state and cuts its tables to the checkpoint's length.
    ///
    /// # Errors
    /// A slot that is no checkpoint; what [`CacheBook::truncate`] refuses.
    pub fn rewind(&mut self, id: SequenceId, checkpoint: SlotId, tokens: u32) -> Result<()> {
        let to = self.state_slot(id)?;
        self.check_checkpoint(checkpoint)?;
        self.cut(id, tokens)?;
        self.ops.push(self.load_op(StateAt::Checkpoint(checkpoint), to));
        Ok(())
    }

    /// Returns the allocator of checkpoints: the slots, or units of pools of their own.
    pub fn checkpoints(&self) -> &SlotAllocator {
        self.checkpoint_only.as_ref().unwrap_or(&self.slots)
    }

    pub(crate) fn checkpoints_mut(&mut self) -> &mut SlotAllocator {
        self.checkpoint_only.as_mut().unwrap_or(&mut self.slots)
    }

    fn check_checkpoint(&self, slot: SlotId) -> Result<()> {
        match self.checkpoints().role(slot) {
            Some(SlotRole::Checkpoint) => Ok(()),
            _ => Err(BookError::SlotNotHeld { slot }),
        }
    }

    /// What brings the state of a prefix into a slot.
    pub(super) fn load_op(&self, state: StateAt, to: SlotId) -> PoolOp {
        match state {
            StateAt::Host(from) => PoolOp::CheckpointFromHost { from, to },
            StateAt::Checkpoint(from) if self.checkpoint_only.is_some() => PoolOp::LoadCheckpoint { from, to },
            StateAt::Checkpoint(from) => PoolOp::CopySlot { from, to },
        }
    }

    /// Marks a checkpoint as one that holds no state, until it is released.
    #[cfg(feature = "device")]
    pub(crate) fn spoil(&mut self, checkpoint: SlotId) {
        self.spoiled.push(checkpoint);
    }

    /// Whether a checkpoint holds no state.
    pub(crate) fn is_spoiled(&self, checkpoint: SlotId) -> bool {
        self.spoiled.contains(&checkpoint)
    }

    /// The slot of a settled sequence.
    fn state_slot(&self, id: SequenceId) -> Result<SlotId> {
        self.settled(id)?.slot.ok_or_else(|| BookError::UnknownPool("slots".into()))
    }
}
