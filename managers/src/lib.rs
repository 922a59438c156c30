//! The managers: the only place that allocates device memory for caches.
//!
//! Two halves: [`book`] is plain bookkeeping without candle; `device` holds the tensors.
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

pub mod book;
mod counting;
#[cfg(feature = "device")]
pub mod device;
mod error;

pub use counting::CountingAllocator;
pub use error::ManagerError;
