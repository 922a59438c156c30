//! What the bookkeeping asks the tensors to do.

use super::{BlockId, SlotId};

/// One change of pool contents, to be executed in the order given and before the next kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolOp {
    /// Copies a whole block (copy-on-write).
    CopyBlock {
        /// Which paged pool.
        paged: usize,
        /// The source.
        from: BlockId,
        /// The target.
        to: BlockId,
    },
    /// Copies one entry (a token, in pools of stride 1) of every member, for candidates accepted out of order.
    CopyEntry {
        /// Which paged pool.
        paged: usize,
        /// The source: block and entry in it.
        from: (BlockId, u32),
        /// The target: block and entry in it.
        to: (BlockId, u32),
    },
    /// Zeroes a slot in every pool of the slot domain.
    ZeroSlot(SlotId),
    /// Copies a slot in every pool of the slot domain.
    CopySlot {
        /// The source.
        from: SlotId,
        /// The target.
        to: SlotId,
    },
    /// Stores what a slot holds as a checkpoint that is no slot, in the plan's format for checkpoints.
    StoreCheckpoint {
        /// The slot.
        from: SlotId,
        /// The unit of the pools of checkpoints.
        to: SlotId,
    },
    /// Copies a checkpoint that is no slot into a slot.
    LoadCheckpoint {
        /// The unit of the pools of checkpoints.
        from: SlotId,
        /// The slot.
        to: SlotId,
    },
    /// Copies a block to the host memory of cached prefixes.
    BlockToHost {
        /// Which paged pool.
        paged: usize,
        /// The block.
        from: BlockId,
        /// The unit of the pool's host memory.
        to: u32,
    },
    /// Copies a block back from there.
    BlockFromHost {
        /// Which paged pool.
        paged: usize,
        /// The unit of the pool's host memory.
        from: u32,
        /// The block.
        to: BlockId,
    },
    /// Copies a checkpoint, in its own format, to the host memory of cached prefixes.
    CheckpointToHost {
        /// The checkpoint.
        from: SlotId,
        /// The unit of the host memory.
        to: u32,
    },
    /// Copies a checkpoint from there into a live slot.
    CheckpointFromHost {
        /// The unit of the host memory.
        from: u32,
        /// The slot.
        to: SlotId,
    },
    /// Moves a live slot on to the last candidate of an accepted path: by copying the state that the step left after
    /// that candidate, or by replaying the inputs that it left along the path.
    CommitStates {
        /// Row of the speculative batch.
        row: u32,
        /// The accepted candidates in order, counted from 0; at least one.
        path: Vec<u32>,
        /// The target.
        to: SlotId,
    },
}

impl PoolOp {
    /// Whether cached prefixes rely on it, so that it must be made whatever becomes of the operation that queued it.
    #[cfg(feature = "device")]
    pub(crate) const fn is_for_prefixes(&self) -> bool {
        matches!(self, Self::BlockToHost { .. } | Self::BlockFromHost { .. } | Self::CheckpointToHost { .. })
    }
}
