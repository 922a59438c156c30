//! Which worker of a fleet can go on from how many tokens of a prompt.
//!
//! An [`Index`] takes the bytes that engines publish about their caches, as the caller received them, and keeps for each worker
//! which blocks its groups of layers hold. [`Index::ask`] meets keys, windows and states as the engine's scheduler does.
//! It speaks to no network.
#![forbid(unsafe_code)]
#![deny(unnameable_types)]
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

mod book;
mod chain;
mod error;
mod events;
mod index;
mod locks;
mod msgpack;
mod multiples;
mod read;
mod run;
mod spans;
mod spread;
mod texts;
mod trtllm;
mod view;
mod write;

pub use error::Error;
pub use events::{Batch, Event, Kind, Stored};
pub use index::{Answer, Bounds, Index, Prompt, WorkerRank};
pub use read::MAX_BATCH_BYTES;
pub use view::{Reuse, Trust};
