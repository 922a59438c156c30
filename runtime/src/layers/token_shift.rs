//! A feed-forward layer that also sees the token before, as in RWKV.

use cacheplan_handlers::Kind;
use candle_core::Tensor;

use super::{CausalConv, Mixer, Mlp};
use crate::cache_use::CacheUse;
use crate::error::Result;
use crate::step::Step;

/// `mlp(mix · x + (1 - mix) · previous x)`. The previous token's input is a generic state of one row per sequence.
#[derive(Debug)]
pub(crate) struct TokenShift {
    pub(crate) layer: u32,
    /// `[2, hidden]`: the weights of the previous and of the present token.
    pub(crate) mix: CausalConv,
    pub(crate) mlp: Mlp,
}

impl Mixer for TokenShift {
    fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        let mixed = self.mix.forward(step.on(), x, &step.state(self.layer, &Kind::State)?)?;
        Ok(self.mlp.forward(step.on(), &mixed)?)
    }

    fn caches(&self) -> Vec<CacheUse> {
        let [width, channels] = self.mix.dims();
        vec![CacheUse::new(self.layer, Kind::State, [width.saturating_sub(1), channels])]
    }
}
