//! The gated short convolution of LFM2.

use cacheplan_handlers::Kind;
use candle_core::Tensor;

use super::{CausalConv, Linear, Mixer};
use crate::cache_use::CacheUse;
use crate::error::Result;
use crate::exported::Writer;
use crate::step::Step;
use crate::weights::Scope;

/// `out(c · conv(b · x))` with `b`, `c` and `x` from one projection.
#[derive(Debug)]
pub(crate) struct ShortConv {
    layer: u32,
    in_proj: Linear,
    conv: CausalConv,
    out_proj: Linear,
}

impl ShortConv {
    /// Reads the mixer of absolute layer `layer`, a convolution of width `d_conv`.
    pub(crate) fn load(weights: &Scope<'_>, layer: u32, hidden: usize, d_conv: usize, bias: bool) -> Result<Self> {
        Ok(Self {
            layer,
            in_proj: Linear::load(&weights.enter("in_proj"), hidden, 3 * hidden, bias)?,
            conv: CausalConv::load(&weights.enter("conv"), hidden, d_conv, bias)?,
            out_proj: Linear::load(&weights.enter("out_proj"), hidden, hidden, bias)?,
        })
    }
}

impl Mixer for ShortConv {
    fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        let projected = self.in_proj.forward(step.on(), x)?.chunk(3, 1)?;
        let [b, c, x] = &projected[..] else {
            return Err(candle_core::Error::Msg("a chunk in three gave other than three parts".into()).into());
        };
        let y = self.conv.forward(step.on(), &(b * x)?, &step.state(self.layer, &Kind::CausalConv)?)?;
        Ok(self.out_proj.forward(step.on(), &(c * y)?)?)
    }

    fn trace(&self, writer: &mut Writer, x: &str) -> Result<String> {
        let channels = self.conv.dims()[1];
        let projected = self.in_proj.trace(writer, x)?;
        let [b, c, x] = writer.split(&projected, [channels; 3]);
        let x = writer.node("Mul", &[&b, &x]);
        let y = self.conv.trace(writer, &x, self.layer)?;
        let y = writer.node("Mul", &[&c, &y]);
        self.out_proj.trace(writer, &y)
    }

    fn caches(&self) -> Vec<CacheUse> {
        let [d_conv, channels] = self.conv.dims();
        vec![CacheUse::new(self.layer, Kind::CausalConv, [channels, d_conv.saturating_sub(1)])]
    }
}
