//! The causal depthwise convolution that recurrent mixers start with.

use cacheplan_kernels::{CausalConv1d, Run};
use cacheplan_transforms::onnx::EDGE_LLM;
use candle_core::Tensor;

use super::Activation;
use crate::error::Result;
use crate::exported::{Writer, recurrent};
use crate::layer_cache::StateCache;
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
    pub(crate) fn load(weights: &Scope<'_>, channels: usize, d_conv: usize, bias: bool) -> Result<Self> {
        let weight = weights.get("weight", (channels, 1, d_conv))?.squeeze(1)?.t()?.contiguous()?;
        Ok(Self { bias: weights.bias(bias, channels)?, ..Self::new(weight) })
    }

    /// Convolutions over different channels, none of which has a bias, as one over all of them.
    pub(crate) fn beside(parts: &[Self]) -> candle_core::Result<Self> {
        let weights: Vec<&Tensor> = parts.iter().map(|part| &part.weight).collect();
        Ok(Self::new(Tensor::cat(&weights, 1)?))
    }

    /// The same over these channels, without a bias.
    pub(crate) fn select(&self, channels: &Tensor) -> candle_core::Result<Self> {
        Ok(Self { activation: self.activation, ..Self::new(self.weight.index_select(channels, 1)?) })
    }

    /// Its width and how many channels it has.
    pub(crate) fn dims(&self) -> [usize; 2] {
        [self.weight.dims()[0], self.weight.dims()[1]]
    }

    /// What follows the convolution.
    pub(crate) fn with_activation(self, activation: Activation) -> Self {
        Self { activation: Some(activation), ..self }
    }

    /// As nodes of a graph that keeps the last inputs of `layer`.
    pub(crate) fn trace(&self, writer: &mut Writer, x: &str, layer: u32) -> Result<String> {
        let [d_conv, channels] = self.dims();
        let weight = writer.weight(&self.weight.t()?.unsqueeze(1)?.contiguous()?)?;
        let bias = match &self.bias {
            Some(bias) => writer.weight(bias)?,
            None => writer.data_floats(&vec![0.0; channels], &[channels]),
        };
        let state = [Some(writer.batch()), Some(channels), Some(d_conv)];
        let name = format!("conv_state_{layer}");
        let before = writer.data_input(&name, &state);
        let lengths = writer.lengths();
        let inputs = [x, &weight, &bias, &before, &lengths];
        let [y, after] = writer.nodes(EDGE_LLM, "causal_conv1d", &inputs, Vec::new());
        writer.function(recurrent::causal_conv1d(d_conv))?;
        writer.output(&after, &format!("{name}_out"), &state);
        self.activation.map_or(Ok(y.clone()), |activation| activation.trace(writer, &y))
    }

    /// `[tokens, channels]` to `[tokens, channels]`; moves the state on.
    pub(crate) fn forward(&self, on: &Run<'_>, x: &Tensor, state: &StateCache<'_>) -> Result<Tensor> {
        // The kernel has SiLU only.
        let (silu, after) = match self.activation {
            Some(Activation::Silu) => (true, None),
            other => (false, other),
        };
        let conv = CausalConv1d { weight: &self.weight, bias: self.bias.as_ref(), silu };
        let y = conv.run(on, x, &state.pool, &state.view, &state.batch)?;
        state.keep_columns(x)?;
        Ok(match after {
            Some(activation) => activation.forward(&y)?,
            None => y,
        })
    }
}
