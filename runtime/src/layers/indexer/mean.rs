//! Keys that are means of several tokens', normalised and rotated to the place of the first.

use cacheplan_kernels::{Rope, Run};
use candle_core::Tensor;

use super::IndexSource;
use crate::error::Result;
use crate::layers::{Linear, RmsNorm};
use crate::step::Step;
use crate::weights::Scope;

/// Queries and keys of one projection, with a norm over each head.
#[derive(Debug)]
pub(crate) struct MeanKeys {
    query: Linear,
    key: Linear,
    query_norm: RmsNorm,
    key_norm: RmsNorm,
    rope: Rope,
    heads: usize,
    head_dim: usize,
}

/// The dimensions of [`MeanKeys`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct MeanKeysShape {
    pub(crate) hidden: usize,
    pub(crate) heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) norm_eps: f64,
}

impl MeanKeys {
    /// Reads `index_qk_proj`, which gives the one key behind the queries, `q_layernorm` and `k_layernorm`.
    pub(crate) fn load(weights: &Scope<'_>, shape: MeanKeysShape, rope: Rope) -> Result<Self> {
        let MeanKeysShape { hidden, heads, head_dim, norm_eps } = shape;
        let both = Linear::load(&weights.enter("index_qk_proj"), hidden, (heads + 1) * head_dim, false)?;
        let norm = |name: &str| RmsNorm::load_from_one(&weights.enter(name), head_dim, norm_eps);
        Ok(Self {
            query: both.select(0..heads * head_dim)?,
            key: both.select(heads * head_dim..(heads + 1) * head_dim)?,
            query_norm: norm("q_layernorm")?,
            key_norm: norm("k_layernorm")?,
            rope,
            heads,
            head_dim,
        })
    }
}

impl IndexSource for MeanKeys {
    fn rows(&self, on: &Run<'_>, x: &Tensor) -> Result<Tensor> {
        Ok(self.key.forward(on, x)?)
    }

    fn width(&self) -> usize {
        self.head_dim
    }

    fn keys(&self, on: &Run<'_>, rows: &Tensor, starts: &[u32]) -> Result<Tensor> {
        let normed = self.key_norm.forward(on, &rows.mean(1)?)?;
        Ok(self.rope.apply(on, &normed.unsqueeze(1)?, starts)?.squeeze(1)?)
    }

    fn queries(&self, x: &Tensor, _: Option<&Tensor>, step: &Step<'_>) -> Result<(Tensor, Option<Tensor>)> {
        let q = self.query.forward(step.on(), x)?.reshape((x.dim(0)?, self.heads, self.head_dim))?;
        let q = self.query_norm.forward(step.on(), &q)?;
        Ok((self.rope.apply(step.on(), &q, step.positions())?, None))
    }
}
