//! Ops over planned pools.
//!
//! Every op works in place on the pools that a plan lays out, finds its data through block tables or slots, and
//! never gathers a cache. Layouts are described by [`KvLayerView`] and [`StateLayerView`]; a step's sequences by
//! [`PagedBatch`] and [`StateBatch`]. Arithmetic is in f32 whatever the pool stores.
//!
//! Each op has a fast path on the CPU and, in `portable`, one made of candle's own ops that serves every other
//! device; the device of the operands decides. `reference` holds slow f64 versions that share no code with either.
//!
//! Padding is the same everywhere: a token with slot -1 writes nothing, a sequence with slot -1 or context 0 gives
//! zeros and touches no state.
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

mod attention;
mod batch;
mod check;
mod conv1d;
mod elementwise;
mod error;
mod groups;
mod int8;
mod kv_cache;
mod linear;
mod linear_attention;
mod mamba1;
mod mamba2;
mod matmul;
mod mla;
mod norm;
mod pool;
mod portable;
mod quant;
pub mod reference;
mod rg_lru;
pub mod roofline;
mod rope;
mod simd;
mod speculative;
mod state;
mod storage;
mod view;

#[cfg(test)]
mod tests;

pub use attention::{Attention, Window, paged_attention};
pub use batch::{PagedBatch, StateBatch, StateWrites};
pub use conv1d::{Activation, causal_conv1d};
pub use elementwise::{silu_product, weighted_sum};
pub use error::{KernelError, Result};
pub use groups::{GroupFormat, dequantize_rows, quantize_rows};
pub use kv_cache::{quantize_and_cache, reshape_and_cache, rope_and_cache};
pub use linear::linear;
pub use linear_attention::{Decay, LinearAttention, linear_attention};
pub use mamba1::{Mamba1, mamba1_scan};
pub use mamba2::{Mamba2, ScanInput, TimeStep, mamba2_scan};
pub use mla::{
    MlaCacheMode, MlaNorm, MlaPreprocess, MlaProjection, MlaQuantMode, MlaQueries, MlaShape, MlaStep, nz_decode,
    nz_encode,
};
pub use norm::{GateOrder, gated_rms_norm, rms_norm};
pub use pool::{copy_rows, gather_rows, scatter_rows, zero_rows};
pub use quant::{KvQuant, KvScales};
pub use rg_lru::{RgLru, rg_lru};
pub use rope::{Rope, RopeLayout, RopeScaling};
pub use speculative::commit_accepted;
pub use view::{KvLayerView, KvOrder, StateLayerView};
