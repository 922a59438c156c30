//! Computes attention, state space models and convolutions over planned pools.
//!
//! Every op works in place on the pools that a plan lays out, finds its data through block tables or slots, and
//! never gathers a cache. Layouts are described by [`KvLayerView`] and [`StateLayerView`]; a step's sequences by
//! [`PagedBatch`] and [`StateBatch`]. Arithmetic is in f32 whatever the pool stores. An op with parameters is a struct
//! with a `run`.
//!
//! Read `ops` first: each op's parameters and checks in a file of their own, and in `ops/mod.rs` who runs it. Behind it
//! `cpu` holds the fast paths, `portable` the same made of candle's own ops, and `cuda` launches of kernels; the
//! [`Backend`] decides, which each op is given as the [`Run`] of its step. `reference` holds slow f64 versions for the
//! tests that share no code with any.
//!
//! Padding is the same everywhere: a token with slot -1 writes nothing, a sequence with slot -1 or context 0 gives
//! zeros and touches no state.
//!
//! ```
//! use cacheplan_kernels::{Backend, CausalConv1d, StateBatch, StateLayerView};
//! use candle_core::{DType, Device, Tensor};
//!
//! // Two slots, each with the last input of a convolution over one channel, two tokens wide.
//! let pool = Tensor::zeros((2, 1), DType::F32, &Device::Cpu)?;
//! let view = StateLayerView::conv(1, 0, 2, 1);
//! let weight = Tensor::new(&[[1f32], [2.]], &Device::Cpu)?;
//! // One sequence of three tokens, whose state is in slot 1.
//! let x = Tensor::new(&[[1f32], [2.], [3.]], &Device::Cpu)?;
//! let batch = StateBatch::new(&[0, 3], &[1]);
//! let conv = CausalConv1d { weight: &weight, bias: None, silu: false };
//! let y = conv.run(&Backend::Cpu.run(), &x, &pool, &view, &batch)?;
//! assert_eq!(y.flatten_all()?.to_vec1::<f32>()?, [2., 5., 8.]);
//! assert_eq!(pool.flatten_all()?.to_vec1::<f32>()?, [0., 3.]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(unnameable_types)]
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

mod backend;
mod batch;
pub mod cases;
mod cpu;
mod cuda;
mod error;
mod launcher;
mod mapped;
mod numbers;
mod ops;
mod portable;
#[cfg(test)]
mod reference;
pub mod roofline;
mod states;
pub mod stored;
#[cfg(test)]
mod tests;
mod view;

pub use backend::{Backend, Run, StepBuffer};
pub use batch::{Chosen, PagedBatch, StateBatch, StateWrites};
pub use cpu::product::Matrix;
pub use cuda::{Argument, Buffer, Contents, Launch, Launches, Target};
pub use error::KernelError;
pub use launcher::{Graph, Launcher};
pub use numbers::{Numbers, StepLists, Word};
pub use ops::attention::{PagedAttention, Window};
pub use ops::conv1d::CausalConv1d;
pub use ops::groups::GroupFormat;
pub use ops::index_scores::IndexScores;
pub use ops::kv_cache::KvWrite;
pub use ops::linear_attention::{LinearAttentionScan, StateDecay};
pub use ops::mamba1::Mamba1Scan;
pub use ops::mamba2::{Mamba2Scan, ScanInput, TimeStep};
pub use ops::mla::MlaCacheMode;
pub use ops::mla::{MlaEpsilon, MlaNorm, MlaPool, MlaPreprocess, MlaProjection, MlaQuantMode, MlaShape, MlaStep};
pub use ops::norm::{GateOrder, RmsNorm};
pub use ops::pool::PoolRows;
pub use ops::quant::{KvQuant, KvScales};
pub use ops::rg_lru::RgLruScan;
pub use ops::rope::{Positions, Rope, RopeScaling, Rotations};
pub use ops::routing::Routing;
pub use ops::{Rows, linear};
pub use stored::{Products, StoredMatrix};
pub use view::{KvLayerView, StateLayerView};
