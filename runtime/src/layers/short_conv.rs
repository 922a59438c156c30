//! The gated short convolution of LFM2.

use cacheplan_handlers::Kind;
use cacheplan_kernels::{Activation, causal_conv1d};
use candle_core::Tensor;

use super::{Linear, Mixer, conv_weight};
use crate::error::RuntimeError;
use crate::step::Step;
use crate::weights::Scope;

/// `out(c · conv(b · x))` with `b`, `c` and `x` from one projection.
#[derive(Debug)]
pub(crate) struct ShortConv {
    layer: u32,
    in_proj: Linear,
    /// `[d_conv, hidden]`.
    weight: Tensor,
    bias: Option<Tensor>,
    out_proj: Linear,
}

impl ShortConv {
    /// Reads the mixer of absolute layer `layer`, a convolution of width `d_conv`.
    pub(crate) fn load(
        weights: &Scope<'_>,
        layer: u32,
        hidden: usize,
        d_conv: usize,
        bias: bool,
    ) -> Result<Self, RuntimeError> {
        let conv = weights.enter("conv");
        Ok(Self {
            layer,
            in_proj: Linear::load(&weights.enter("in_proj"), hidden, 3 * hidden, bias)?,
            weight: conv_weight(&conv, hidden, d_conv)?,
            bias: conv.bias(bias, hidden)?,
            out_proj: Linear::load(&weights.enter("out_proj"), hidden, hidden, bias)?,
        })
    }
}

impl Mixer for ShortConv {
    fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor, RuntimeError> {
        let projected = self.in_proj.forward(x)?.chunk(3, 1)?;
        let [b, c, x] = &projected[..] else {
            return Err(candle_core::Error::Msg("a chunk in three gave other than three parts".into()).into());
        };
        let state = step.state(self.layer, &Kind::CausalConv)?;
        let (weight, bias) = (&self.weight, self.bias.as_ref());
        let y = causal_conv1d(&(b * x)?, weight, bias, Activation::None, state.pool, &state.view, &state.batch)?;
        Ok(self.out_proj.forward(&(c * y)?)?)
    }
}
