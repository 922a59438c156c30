//! Tensors of the pools.

mod captured;
mod checkpoints;
mod commit;
#[cfg(feature = "cuda")]
mod cuda;
mod disk;
pub(crate) mod error;
mod fault;
mod host;
mod hybrid;
mod inspect;
mod int8;
mod interchange;
mod kv;
mod mamba;
mod manager;
mod measure;
mod park;
mod peak;
mod pool;
mod prefix;
mod sequences;
mod set;
#[cfg(test)]
mod tests;

pub use captured::{CapturedState, LayerState};
pub use disk::{DiskError, FoundPrefix, PrefixFiles};
pub use hybrid::{MambaHybridCacheManager, Manager};
pub use int8::Int8Error;
pub use interchange::{MlaBlocks, MlaCache};
pub use kv::{DenseKv, KvCacheManager, KvLayer};
pub use mamba::{MambaCacheManager, ReplayLayer, StateLayer};
pub use manager::{CacheManager, Route};
pub use peak::Peak;
pub use set::{CacheSet, PoolBytes};
