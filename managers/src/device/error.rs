//! What the device half refuses, and why.

use cacheplan_files::Shown;
use cacheplan_handlers::Kind;
use thiserror::Error;

use super::disk::DiskError;
use super::int8::Int8Error;
use crate::book::error::BookError;
use crate::book::{BlockId, SequenceId, SlotId};

/// What functions of the managers return.
pub(crate) type Result<T, E = ManagerError> = std::result::Result<T, E>;

/// Why a manager did not do what it was asked.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ManagerError {
    /// The books refused it, and nothing has changed.
    #[error(transparent)]
    Book(#[from] BookError),
    /// A block that is to be overwritten although others read it.
    #[error("block {} of pool `{pool}` has other holders; overwrite it before it is forked or cached", block.0, pool = Shown(.pool))]
    BlockShared {
        /// The pool.
        pool: String,
        /// The block.
        block: BlockId,
    },
    /// A resource that the plan does not have.
    #[error("layer {layer} has no {kind} cache in this plan", kind = Shown(.kind))]
    UnknownLayer {
        /// The absolute layer.
        layer: u32,
        /// The kind.
        kind: Kind,
    },
    /// A resource that the plan does not have, by name.
    #[error("the plan has no resource `{shown}`", shown = Shown(.0))]
    UnknownResource(String),
    /// A route that was made before the pools were re-created.
    #[error(
        "the route was made for generation {found} of the pools, which are at generation {current}; ask for it again"
    )]
    StaleRoute {
        /// The route's generation.
        found: u32,
        /// The pools' generation.
        current: u32,
    },
    /// Use after `shutdown`.
    #[error("the caches were shut down")]
    ShutDown,
    /// A captured state that does not fit this manager's pools.
    #[error("the captured state does not fit: {shown}", shown = Shown(.0))]
    ForeignState(String),
    /// States that are to be cleared while somebody holds them.
    #[error("{slots} states are held by sequences or prefixes; finish and forget them before all are cleared")]
    StatesInUse {
        /// How many slots.
        slots: u64,
    },
    /// A state that cannot be stored in 8 bits.
    #[error("the state in slot {}: {source}", slot.0, source = Shown(.source))]
    NotQuantisable {
        /// Where it is.
        slot: SlotId,
        /// Why not.
        source: Int8Error,
    },
    /// A pool that the device cannot hold.
    #[error("pool `{pool}` needs {bytes} bytes, which the device does not have; plan with a smaller budget", pool = Shown(.pool))]
    OutOfDeviceMemory {
        /// The pool.
        pool: String,
        /// Its bytes.
        bytes: u64,
    },
    /// The device failed while it changed live contents in place.
    #[error(
        "the device failed while it changed {} in place, so they were preempted and must be computed again: {source}",
        listed(sequences), source = Shown(.source))]
    ContentsLost {
        /// The sequences whose contents are lost.
        sequences: Vec<SequenceId>,
        /// What the device said.
        source: Box<ManagerError>,
    },
    /// Use of pools that the device left behind the books.
    #[error("{ops} changes of the pools are still to be made since the device failed; the next operation tries again")]
    Unfinished {
        /// How many.
        ops: usize,
    },
    /// A commit in a plan that keeps inputs instead of states, without a way to replay them.
    #[error("the plan keeps inputs to replay, so that a commit needs the layers' recurrences; use `commit_replaying`")]
    NeedsReplay,
    /// Files of prefixes cannot be used.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// A pool operation failed.
    #[error(transparent)]
    Kernel(#[from] cacheplan_kernels::KernelError),
    /// The tensor library failed.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
}

fn listed(sequences: &[SequenceId]) -> String {
    sequences.iter().map(SequenceId::to_string).collect::<Vec<_>>().join(", ")
}
