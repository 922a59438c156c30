//! Ops at sizes: the same calls are measured here, and checked and measured on a device by `cacheplan-gpu`.
#![allow(missing_docs, reason = "sizes and formats are called what the ops call them")]

mod attention;
mod data;
mod experts;
mod latents;
mod pools;
mod rows;
mod states;

pub use attention::{Attention, CacheWrite, Features, Format, Scales};
pub use data::{Data, Sequences};
pub use experts::{Choice, Experts};
pub use latents::Latents;
pub use pools::{Move, Pool};
pub use rows::{Elementwise, Norm, Product, StoredProduct};
pub use states::{Channels, Convolution, DeltaKind, LinearAttention, Mamba2, Recurrence, Writes};

use crate::{KernelError, Run};
use candle_core::{DType, Tensor};
use std::fmt;

/// One op at one size.
pub struct Case {
    pub op: &'static str,
    /// Its sizes by name, in the order in which they are read.
    pub sizes: Vec<(&'static str, usize)>,
    /// Number formats and what else tells it from its neighbours.
    pub variant: String,
    /// The largest error allowed, over the largest magnitude.
    pub tolerance: f32,
    pub work: Work,
    /// Makes what the op is called over.
    pub prepare: Prepare,
}

/// Makes operands, and a call over them.
pub type Prepare = Box<dyn Fn(&mut Data) -> Result<Call, KernelError>>;

/// Calls an op, and gives what it returned and the pools that it changed.
pub type Call = Box<dyn Fn(&Run<'_>) -> Result<Vec<Tensor>, KernelError>>;

impl Case {
    /// Calls the op once, over data that are made for it.
    ///
    /// # Errors
    /// What the op refuses.
    pub fn call(&self, on: &Run<'_>, data: &mut Data) -> Result<Vec<Tensor>, KernelError> {
        (self.prepare)(data)?(on)
    }
}

/// What a call cannot do without.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Bytes that are read or written, each counted once.
    pub bytes: u64,
    /// Operations of matrix products; 0 where there are none worth counting.
    pub flops: u64,
}

impl Work {
    pub fn bytes(bytes: usize) -> Self {
        Self { bytes: bytes as u64, flops: 0 }
    }
}

/// Returns the largest error of any tensor, over the largest magnitude of that tensor; infinite where shapes differ, or one of two
/// is no number.
pub fn furthest(found: &[Tensor], expected: &[Tensor]) -> f32 {
    let numbers = |tensor: &Tensor| -> Option<Vec<f32>> {
        tensor.to_dtype(DType::F32).and_then(|tensor| tensor.flatten_all()?.to_vec1()).ok()
    };
    let mut furthest = if found.len() == expected.len() { 0.0 } else { f32::INFINITY };
    for (found, expected) in found.iter().zip(expected) {
        if found.dims() != expected.dims() || found.dtype() != expected.dtype() {
            return f32::INFINITY;
        }
        let (Some(found), Some(expected)) = (numbers(found), numbers(expected)) else { return f32::INFINITY };
        let finite = expected.iter().filter(|value| value.is_finite());
        let magnitude = finite.fold(1e-6f32, |most, value| most.max(value.abs()));
        for (found, expected) in found.iter().zip(&expected) {
            let same = found == expected || (found.is_nan() && expected.is_nan());
            let error = if same { 0.0 } else { (found - expected).abs() / magnitude };
            furthest = if error.is_nan() { f32::INFINITY } else { furthest.max(error) };
        }
    }
    furthest
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, size) in &self.sizes {
            write!(f, "{name} {size}, ")?;
        }
        f.write_str(&self.variant)
    }
}

/// The largest error, over the largest magnitude, that numbers of a format may have: what the CPU's op is held to, but for
/// f32 twice that, since there the CPU's numbers are no closer to the truth than a kernel's.
fn tolerance(formats: &[DType]) -> f32 {
    let of = |dtype: &DType| match dtype {
        DType::F32 => 2e-5,
        DType::F16 => 2e-3,
        DType::BF16 => 2e-2,
        // A step between neighbours.
        _ => 7e-2,
    };
    formats.iter().map(of).fold(0.0, f32::max)
}

/// A format as kernels' names say it.
fn name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "f32",
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        DType::F8E4M3 => "f8",
        _ => "int8",
    }
}
