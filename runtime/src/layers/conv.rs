//! The causal depthwise convolution that recurrent mixers start with.

use cacheplan_kernels::causal_conv1d;
use candle_core::Tensor;

use super::Activation;
use crate::error::RuntimeError;
use crate::step::StateCache;
use crate::weights::Scope;

/// `act(bias + weight * x)` over time; the inputs before the step's first token are the state.
#[derive(Debug)]
pub(crate) struct CausalConv {
    /// `[d_conv, channels]`.
    weight: Tensor,
    bias: Option<Tensor>,
    activation: Option<Activation>,
}

impl CausalConv {
    /// A convolution with `weight` `[d_conv, channels]`, no bias and no activation.
    pub(crate) fn new(weight: Tensor) -> Self {
        Self { weight, bias: None, activation: None }
    }

    /// Reads `weight`, which checkpoints store as `[channels, 1, d_conv]`, and `bias` if the config states one.
    pub(crate) fn load(weights: &Scope<'_>, channels: usize, d_conv: usize, bias: bool) -> Result<Self, RuntimeError> {
        let weight = weights.get("weight", (channels, 1, d_conv))?.squeeze(1)?.t()?.contiguous()?;
        Ok(Self { bias: weights.bias(bias, channels)?, ..Self::new(weight) })
    }

    /// Convolutions over different channels, none of which has a bias, as one over all of them.
    pub(crate) fn beside(parts: &[Self]) -> candle_core::Result<Self> {
        let weights: Vec<&Tensor> = parts.iter().map(|part| &part.weight).collect();
        Ok(Self::new(Tensor::cat(&weights, 1)?))
    }

    /// What follows the convolution.
    pub(crate) fn with_activation(self, activation: Activation) -> Self {
        Self { activation: Some(activation), ..self }
    }

    /// `[tokens, channels]` to `[tokens, channels]`; moves the state on.
    pub(crate) fn forward(&self, x: &Tensor, state: &StateCache<'_>) -> Result<Tensor, RuntimeError> {
        // The kernel has SiLU only.
        let (fused, after) = match self.activation {
            Some(Activation::Silu) => (cacheplan_kernels::Activation::Silu, None),
            other => (cacheplan_kernels::Activation::None, other),
        };
        let bias = self.bias.as_ref();
        let y = causal_conv1d(x, &self.weight, bias, fused, state.pool, &state.view, &state.batch)?;
        Ok(match after {
            Some(activation) => activation.forward(&y)?,
            None => y,
        })
    }
}
