//! Tensors of the pools.

mod hybrid;
mod kv;
mod mamba;
mod pool;
mod set;

pub use hybrid::{MambaHybridCacheManager, Route};
pub use kv::{DenseKv, KvCacheManager, KvLayer, KvScales};
pub use mamba::{CapturedState, MambaCacheManager, StateLayer};
pub use set::{CacheSet, PoolBytes};
