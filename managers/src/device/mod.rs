//! Tensors of the pools.

#[cfg(feature = "cuda")]
mod cuda;
mod host;
mod hybrid;
mod interchange;
mod kv;
mod mamba;
mod peak;
mod pool;
mod set;

pub use host::HostStats;
pub use hybrid::{MambaHybridCacheManager, Replay, Route};
pub use interchange::{MlaBlocks, narrow_conv_state, widen_conv_state};
pub use kv::{DenseKv, KvCacheManager, KvLayer};
pub use mamba::{CapturedState, MambaCacheManager, StateLayer};
pub use peak::{Peak, measure_peak};
pub use set::{CacheSet, PoolBytes};
