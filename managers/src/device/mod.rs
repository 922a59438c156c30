//! Tensors of the pools.

mod checkpoints;
mod commit;
#[cfg(feature = "cuda")]
mod cuda;
pub(crate) mod error;
mod fault;
#[cfg(test)]
mod fault_tests;
mod host;
mod hybrid;
mod inspect;
mod interchange;
mod kv;
mod mamba;
mod park;
mod peak;
mod pool;
mod prefix;
mod sequences;
mod set;

pub use hybrid::{MambaHybridCacheManager, Route};
pub use interchange::{MlaBlocks, MlaCache};
pub use kv::KvLayer;
pub use mamba::{CapturedState, ReplayLayer, StateLayer};
pub use set::CacheSet;
