//! Bookkeeping without tensors: blocks, slots, tables, the prefix tree.

mod advance;
mod blocks;
mod cache;
mod commit;
#[cfg(feature = "device")]
mod device_half;
pub(crate) mod error;
mod exposition;
mod host;
mod ids;
mod layout;
mod ops;
mod pages;
mod park;
#[cfg(not(feature = "prefix-tree"))]
#[allow(unreachable_pub, unused_imports, reason = "the books name a part of it")]
pub(crate) mod prefix;
#[cfg(feature = "prefix-tree")]
pub mod prefix;
mod rebalance;
mod reuse;
mod sequence;
#[cfg_attr(
    not(feature = "prefix-tree"),
    allow(unreachable_pub, unused_imports, reason = "the books name a part of it")
)]
mod simulate;
mod slots;
mod stats;
mod step;
mod table;

pub use advance::Work;
pub use cache::CacheBook;
pub use commit::Accepted;
pub use error::NoReuse;
pub use exposition::Exposition;
pub use ids::{BlockId, SequenceId, SlotId};
pub use layout::Windows;
pub use ops::PoolOp;
pub use pages::{PassedPages, RaggedPages};
pub use prefix::{Key, Metrics, Namespace, Strategy, TenantId, Token};
pub use reuse::{PrefixReuse, ReuseLease};
pub use sequence::Residency;
pub use simulate::{Policy, Report, Scenario, TraceRequest, Workload};
pub use stats::Stats;
pub use step::StepMetadata;

#[cfg(feature = "device")]
pub(crate) use cache::SlotMove;
#[cfg(feature = "device")]
pub(crate) use layout::Place;
pub(crate) use layout::{Layout, PagedSpec};
// What engines name that keep blocks and slots themselves, and otherwise only this crate.
#[cfg(feature = "prefix-tree")]
pub use {
    blocks::BlockAllocator,
    cache::Prefix,
    host::SetAside,
    ids::SlotRole,
    layout::Indexing,
    simulate::{Ceiling, Piece, SimulateError},
    slots::SlotAllocator,
};
#[cfg(not(feature = "prefix-tree"))]
#[allow(unused_imports, reason = "tensors name more of it than books")]
pub(crate) use {
    blocks::BlockAllocator, cache::Prefix, host::SetAside, ids::SlotRole, layout::Indexing, slots::SlotAllocator,
};
