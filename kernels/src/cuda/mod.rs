//! Launches of the kernels in `kernels/cuda`: which one, over what, with how many blocks.
//!
//! A function here turns the checked operands of an op into [`Launches`], which are plain data: it needs no CUDA, no
//! device, and is the same for whatever executes them. What a kernel was not instantiated for has no launches, and is
//! left to the portable path.
//!
//! Each function has the name and the operands of the op on the CPU, and what launches are made for behind them. A
//! [`Launcher`](crate::Launcher) runs what they give.
//!
//! An argument list mirrors the struct `Args` of its `.cu` file, in the same order.

mod attend;
pub(crate) mod attention;
mod call;
pub(crate) mod conv1d;
mod decode;
#[cfg(feature = "cuda")]
mod device;
pub(crate) mod elementwise;
pub(crate) mod experts;
pub(crate) mod kv_cache;
mod launch;
pub(crate) mod linear_attention;
pub(crate) mod mamba1;
pub(crate) mod mamba2;
pub(crate) mod mla;
mod mla_preprocess;
pub(crate) mod norm;
pub(crate) mod pool;
mod prefill;
pub(crate) mod rg_lru;
pub(crate) mod rope;
pub(crate) mod routing;
mod states;

#[cfg(feature = "cuda")]
pub(crate) use device::CudaLauncher;
pub use launch::{Argument, Buffer, Contents, Launch, Launches, Target};

use crate::numbers::Numbers;
use crate::{KvLayerView, PagedBatch};
use candle_core::{DType, Tensor};

/// The buffers of an op while its arguments are listed.
#[derive(Default)]
struct Buffers<'a>(Vec<Buffer<'a>>);

impl<'a> Buffers<'a> {
    fn add(&mut self, name: &'static str, contents: Contents<'a>) -> Argument {
        self.0.push(Buffer { name, contents });
        Argument::Pointer(Some(self.0.len() - 1))
    }

    fn input(&mut self, name: &'static str, tensor: impl Into<Option<&'a Tensor>>) -> Argument {
        match tensor.into() {
            Some(tensor) => self.add(name, Contents::Input(tensor)),
            None => Argument::Pointer(None),
        }
    }

    fn floats(&mut self, name: &'static str, floats: Option<impl Into<Numbers<'a, f32>>>) -> Argument {
        floats.map_or(Argument::Pointer(None), |floats| self.add(name, Contents::Floats(floats.into())))
    }

    fn indices(&mut self, name: &'static str, indices: Option<&'a [i32]>) -> Argument {
        indices.map_or(Argument::Pointer(None), |indices| self.add(name, Contents::Indices(indices.into())))
    }

    /// One launch over them, of a kernel that asks for no shared memory.
    fn launch(self, kernel: String, grid: [usize; 3], threads: usize, arguments: Vec<Argument>) -> Launches<'a> {
        let (grid, threads) = (grid.map(|blocks| blocks as u32), threads as u32);
        let launch = Launch { kernel, grid, threads, shared_bytes: 0, arguments };
        Launches { buffers: self.0, launches: vec![launch] }
    }
}

/// A dtype as names of kernels say it.
fn format(dtype: DType) -> Option<&'static str> {
    match dtype {
        DType::F32 => Some("f32"),
        DType::F16 => Some("f16"),
        DType::BF16 => Some("bf16"),
        _ => None,
    }
}

/// As [`format`] for pools of keys and values, whose bytes are floats or int8.
fn pool_format(dtype: DType) -> Option<&'static str> {
    match dtype {
        DType::F8E4M3 => Some("f8"),
        DType::U8 => Some("i8"),
        _ => format(dtype),
    }
}

/// Tokens of a sequence over which a kernel loops; with more, stretches or chunks of them are worth it.
const MAX_TOKENS: usize = 16;

/// Whether a kernel that loops over tokens is the one for each of these sequences.
fn is_short(cu_seqlens: &[u32]) -> bool {
    cu_seqlens.windows(2).all(|rows| (rows[1] - rows[0]) as usize <= MAX_TOKENS)
}

/// Tokens for which the tables of a step have room. Launches are made for these and not for the longest context, so that
/// they are the same in all steps of these shapes.
fn room(batch: &PagedBatch<'_>, view: &KvLayerView) -> usize {
    batch.max_blocks * view.tokens_per_block
}

/// Bytes of the widest load.
const VECTOR: usize = 16;

/// Elements from one row of `tensor` to its next, where a row is contiguous.
fn row_stride(tensor: &Tensor) -> Option<i64> {
    let layout = tensor.layout();
    let mut width = 1;
    for (&dim, &stride) in layout.dims().iter().zip(layout.stride()).skip(1).rev() {
        if dim != 1 && stride != width {
            return None;
        }
        width *= dim;
    }
    // With one row the stride is never used, and may be anything.
    Some(if layout.dims()[0] <= 1 { width } else { layout.stride()[0] } as i64)
}

/// As [`row_stride`], where every row begins at a multiple of 16 bytes.
fn vector_stride(tensor: &Tensor) -> Option<i64> {
    let stride = row_stride(tensor)?;
    let starts = [tensor.layout().start_offset(), stride as usize];
    starts.iter().all(|at| is_vector(*at, tensor.dtype())).then_some(stride)
}

/// Whether an offset in elements is a multiple of 16 bytes.
fn is_vector(offset: usize, dtype: DType) -> bool {
    (offset * dtype.size_in_bytes()).is_multiple_of(VECTOR)
}

/// A vector of f32, contiguous.
fn is_plain(tensor: Option<&Tensor>) -> bool {
    tensor.is_none_or(|tensor| tensor.dtype() == DType::F32 && tensor.is_contiguous())
}
