//! Prefix reuse: what later sequences need not compute again.
//!
//! [`PrefixReuse`] serves an engine in four calls of its loop: [`admit`](PrefixReuse::admit),
//! [`next_tokens`](PrefixReuse::next_tokens), [`computed`](PrefixReuse::computed), [`finish`](PrefixReuse::finish).
//! Under it lies one radix [`Tree`] for keys and values, sliding windows and recurrent states.
//!
//! A node owns the span of tokens that its key names. Three components hang on it:
//! the KV blocks of the span, the window blocks of the span (absent: a *tombstone*), and at most one
//! *state checkpoint*, which belongs to the **end** of the span and to no other position: a recurrent state that has
//! absorbed `n` tokens cannot be rewound to `n - 1`.
//!
//! The tree moves no bytes. It receives ids, gives ids back through [`Released`], and says what must be copied.

mod arena;
pub(crate) mod cache;
mod check;
mod config;
mod cost;
mod edges;
mod error;
mod evict;
mod experience;
mod host;
mod insert;
mod key;
mod lock;
mod lookup;
mod metrics;
mod node;
mod provision;
mod reuse;
mod shape;
mod strategy;
mod swap;
#[cfg(test)]
mod tests;
mod tree;
mod worth;

pub use check::{Census, Violation};
pub use config::{CheckpointFormat, Eviction, TenantId, TreeConfig};
pub use cost::Cost;
pub use error::PrefixError;
pub use evict::Evicted;
pub use host::{HostBlockId, HostSlotId, HostTier, Load, Offload};
pub use insert::{Insert, Inserted, WindowSpan};
pub use key::{Key, Namespace, Token};
pub use lock::{Hold, Receipt};
pub use lookup::Match;
pub use metrics::{Metrics, Misses, Reuse};
pub use node::NodeId;
pub use reuse::{PrefixReuse, ReuseLease};
pub use strategy::{BranchRule, Checkpoint, Extend, Source, Strategy};
pub use tree::{Released, Tree, UnitCount, Usage};

pub(crate) use provision::Provision;
