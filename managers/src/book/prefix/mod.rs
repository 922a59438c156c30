//! The prefix cache: one radix tree for keys and values, sliding windows and recurrent states.
//!
//! A node owns the span of tokens that its key names. Three components hang on it:
//! the KV blocks of the span, the window blocks of the span (absent: a *tombstone*), and at most one
//! *state checkpoint*, which belongs to the **end** of the span and to no other position: a recurrent state that has
//! absorbed `n` tokens cannot be rewound to `n - 1`.
//!
//! The tree moves no bytes. It receives ids, gives ids back through [`Released`], and says what must be copied.

#[cfg(feature = "prefix-tree")]
mod align;
mod arena;
mod cache;
mod check;
#[cfg(test)]
mod check_tests;
mod config;
mod cost;
mod edges;
mod error;
mod evict;
mod experience;
mod host;
mod insert;
#[cfg(any(feature = "device", feature = "prefix-tree"))]
mod int8;
mod key;
mod lock;
mod lookup;
mod metrics;
mod node;
mod provision;
mod shape;
#[cfg(feature = "prefix-tree")]
mod snapshot;
mod strategy;
mod swap;
mod tree;
mod worth;

#[cfg(feature = "prefix-tree")]
pub use align::{BlockAligned, Interior};
pub use cache::{Final, Lease, PrefixCache, Progress};
pub use check::{Census, Violation};
pub use config::{CheckpointFormat, Eviction, LeafRule, TenantId, TreeConfig};
pub use cost::Cost;
#[cfg(feature = "prefix-tree")]
pub use cost::kv_heads_per_device;
pub use error::PrefixError;
pub use evict::Evicted;
pub use host::{HostBlockId, HostSlotId, HostTier, Load, Offload};
pub use insert::{Insert, Inserted, WindowSpan};
#[cfg(any(feature = "device", feature = "prefix-tree"))]
pub use int8::{Int8Error, Int8State, StateShape};
pub use key::{Key, Namespace, Token};
pub use lock::{Hold, Receipt};
pub use lookup::Match;
pub use metrics::{Metrics, Misses, Reuse};
pub use node::NodeId;
pub use provision::Provision;
pub use shape::Shape;
#[cfg(feature = "prefix-tree")]
pub use snapshot::{Restore, Saved, SnapshotError};
pub use strategy::{BranchRule, Checkpoint, Extend, Source, Strategy};
pub use tree::{Held, Released, Tree, Usage};
