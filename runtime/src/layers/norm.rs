//! Root-mean-square normalisation.

use cacheplan_kernels::Run;
use candle_core::Tensor;

use crate::error::Result;
use crate::exported::Writer;
use crate::weights::Scope;

/// `x / rms(x) · weight` over the last dimension.
#[derive(Clone, Debug)]
pub(crate) struct RmsNorm {
    weight: Tensor,
    eps: f32,
}

impl RmsNorm {
    /// As nodes of a graph, over the last axis.
    pub(crate) fn trace(&self, writer: &mut Writer, x: &str) -> Result<String> {
        let normalised = writer.normalised(x, self.eps);
        let weight = writer.weight(&self.weight)?;
        Ok(writer.node("Mul", &[&normalised, &weight]))
    }

    /// A norm with these weights.
    pub(crate) fn new(weight: Tensor, eps: f64) -> Self {
        Self { weight, eps: eps as f32 }
    }

    /// Reads `weight` `[size]`.
    pub(crate) fn load(weights: &Scope<'_>, size: usize, eps: f64) -> Result<Self> {
        Ok(Self { weight: weights.get("weight", size)?, eps: eps as f32 })
    }

    /// The same for models whose `weight` is stored as the distance from one.
    pub(crate) fn load_from_one(weights: &Scope<'_>, size: usize, eps: f64) -> Result<Self> {
        Ok(Self { weight: (weights.get("weight", size)? + 1.0)?, eps: eps as f32 })
    }

    /// The same with a weight that was made otherwise.
    pub(crate) fn of(weight: Tensor, eps: f64) -> Self {
        Self { weight, eps: eps as f32 }
    }

    /// The same for norms that have no weight.
    pub(crate) fn unweighted(weights: &Scope<'_>, size: usize, eps: f64) -> Result<Self> {
        Ok(Self::of(weights.ones(size)?, eps))
    }

    /// Normalises each row.
    pub(crate) fn forward(&self, on: &Run<'_>, x: &Tensor) -> candle_core::Result<Tensor> {
        Ok(cacheplan_kernels::RmsNorm { weight: &self.weight, eps: self.eps }.run(on, x)?)
    }
}
