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
