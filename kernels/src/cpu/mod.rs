//! The fast paths of the CPU. Operands are checked before they come here.

pub(crate) mod attention;
mod blocks;
mod codec;
pub(crate) mod conv1d;
mod element;
pub(crate) mod elementwise;
pub(crate) mod experts;
pub(crate) mod kv_cache;
pub(crate) mod linear;
pub(crate) mod linear_attention;
pub(crate) mod mamba1;
pub(crate) mod mamba2;
mod matmul;
pub(crate) mod mla;
pub(crate) mod norm;
mod output;
pub(crate) mod pool;
pub(crate) mod product;
pub(crate) mod rg_lru;
pub(crate) mod rope;
pub(crate) mod routing;
pub(crate) mod simd;
mod state;
mod storage;
pub(crate) mod stored;
mod tasks;
