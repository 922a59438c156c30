//! Keys that are weighted means of several tokens': the weights follow from the tokens and their places.

use cacheplan_kernels::Run;
use candle_core::{DType, Tensor};
use candle_nn::ops::softmax;

use super::IndexSource;
use crate::error::Result;
use crate::layers::Linear;
use crate::step::Step;
use crate::weights::Scope;

/// Of the norm over keys, whatever the config's `rms_norm_eps`.
const KEY_NORM_EPS: f64 = 1e-6;

/// Queries of attention's latent, and keys that a gate weighs, channel by channel.
#[derive(Debug)]
pub(crate) struct GatedKeys {
    query: Linear,
    key: Linear,
    /// Weight and bias of the norm over keys, in f32.
    key_norm: [Tensor; 2],
    /// What each token brings into the weights.
    gate: Linear,
    /// What each place brings into them, `[stride, head_dim]` in f32.
    place: Tensor,
    shares: Linear,
    heads: usize,
    head_dim: usize,
}

/// The dimensions of [`GatedKeys`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct GatedKeysShape {
    pub(crate) hidden: usize,
    /// Channels of the latent that queries are made of.
    pub(crate) rank: usize,
    pub(crate) heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) stride: usize,
}

impl GatedKeys {
    /// Reads `wq_b`, `wk`, `k_norm`, `weights_proj` and what pools keys.
    pub(crate) fn load(weights: &Scope<'_>, shape: GatedKeysShape) -> Result<Self> {
        let GatedKeysShape { hidden, rank, heads, head_dim, stride } = shape;
        let linear = |name: &str, from, to| Linear::load(&weights.enter(name), from, to, false);
        let norm = |name: &str| weights.enter("k_norm").float(name, head_dim);
        let gate = weights.get("index_kpool_compress_gate", (head_dim, hidden))?;
        Ok(Self {
            query: linear("wq_b", rank, heads * head_dim)?,
            key: linear("wk", hidden, head_dim)?,
            key_norm: [norm("weight")?, norm("bias")?],
            gate: Linear::new(gate, None),
            place: weights.float("index_kpool_compress_ape", (stride, head_dim))?,
            shares: linear("weights_proj", hidden, heads)?,
            heads,
            head_dim,
        })
    }
}

impl IndexSource for GatedKeys {
    fn rows(&self, on: &Run<'_>, x: &Tensor) -> Result<Tensor> {
        let [weight, bias] = &self.key_norm;
        let key = self.key.forward(on, x)?.to_dtype(DType::F32)?;
        let key = candle_nn::ops::layer_norm(&key.contiguous()?, weight, bias, KEY_NORM_EPS as f32)?;
        Ok(Tensor::cat(&[key, self.gate.forward(on, x)?.to_dtype(DType::F32)?], 1)?)
    }

    fn width(&self) -> usize {
        2 * self.head_dim
    }

    fn keys(&self, _: &Run<'_>, rows: &Tensor, _: &[u32]) -> Result<Tensor> {
        let (keys, gates) = (rows.narrow(2, 0, self.head_dim)?, rows.narrow(2, self.head_dim, self.head_dim)?);
        let weights = softmax(&gates.broadcast_add(&self.place)?, 1)?;
        Ok((weights * keys)?.sum(1)?)
    }

    fn queries(&self, x: &Tensor, latent: Option<&Tensor>, step: &Step<'_>) -> Result<(Tensor, Option<Tensor>)> {
        let on = step.on();
        let q = self.query.forward(on, latent.unwrap_or(x))?.reshape((x.dim(0)?, self.heads, self.head_dim))?;
        let shares = self.shares.forward(on, x)?.to_dtype(DType::F32)?;
        Ok((q, Some((shares / (self.heads as f64).sqrt())?)))
    }
}
