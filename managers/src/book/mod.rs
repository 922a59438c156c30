//! Bookkeeping without tensors: blocks, slots, tables, the metadata of each step.
//!
//! [`CacheBook`] is the way in; [`crate::prefix`] shares what its sequences have in common.

mod admit;
mod advance;
mod blocks;
mod cache;
mod checkpoints;
mod commit;
#[cfg(feature = "device")]
mod device_half;
pub(crate) mod error;
mod exposition;
mod guard;
mod host;
mod ids;
mod layout;
mod ops;
mod pages;
mod park;
mod rebalance;
mod sequence;
mod slots;
mod stats;
mod step;
mod table;

pub use admit::Prefix;
pub use advance::Work;
pub use blocks::BlockAllocator;
pub use cache::{CacheBook, SlotMove};
pub use commit::Accepted;
pub use error::NoReuse;
pub use exposition::Exposition;
pub use host::SetAside;
pub use ids::{BlockId, SequenceId, SlotId, SlotRole};
pub use layout::{Indexing, Layout, PagedSpec, PlannedUnits, PoolIndex, Windows};
pub use ops::PoolOp;
pub use pages::{PassedPages, RaggedPages};
pub use sequence::Residency;
pub use slots::SlotAllocator;
pub use stats::{HostStats, PlannedStats, PoolStats, SequenceStats, Stats};
pub use step::{PoolStep, StepMetadata};

pub(crate) use checkpoints::StateAt;
pub(crate) use guard::SequenceGuard;
