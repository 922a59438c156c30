//! Bookkeeping without tensors: blocks, slots, tables, the prefix tree.

mod advance;
mod blocks;
mod cache;
mod commit;
#[cfg(feature = "device")]
mod device_half;
pub mod ids;
mod layout;
mod ops;
mod pages;
mod park;
pub mod prefix;
mod rebalance;
mod reuse;
mod sequence;
pub mod simulate;
mod slots;
mod stats;
mod step;
mod table;

pub use advance::Work;
pub use blocks::BlockAllocator;
pub use cache::{CacheBook, Prefix, SlotMove};
pub use commit::Accepted;
pub use ids::{BlockId, SlotId};
pub use layout::{Indexing, Layout, PagedSpec, Place, Windows};
pub use ops::PoolOp;
pub use pages::{PassedPages, RaggedPages};
pub use park::SetAside;
pub use reuse::{NoReuse, PrefixReuse, ReuseLease};
pub use sequence::{Residency, SequenceId};
pub use slots::{SlotAllocator, SlotRole};
pub use stats::{HostStats, PoolStats, SequenceStats, Stats};
pub use step::{PoolStep, StepMetadata};
