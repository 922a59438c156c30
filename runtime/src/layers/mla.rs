//! Multi-head latent attention in its absorbed form: the cache holds the latent and one rope key for all heads.

use cacheplan_handlers::Kind;
use cacheplan_kernels::{PagedAttention, Rope};
use candle_core::Tensor;

use super::{Chooser, Linear, Mixer, RmsNorm};
use crate::cache_use::CacheUse;
use crate::error::Result;
use crate::exported::{Writer, int, refuse};
use crate::step::Step;
use crate::weights::Scope;

/// The norms of the latents have an epsilon of their own in most models, whatever the config's `rms_norm_eps`.
pub(crate) const LATENT_NORM_EPS: f64 = 1e-6;

/// The attention of one layer.
#[derive(Debug)]
pub(crate) struct Mla {
    layer: u32,
    query: Query,
    kv_a: Linear,
    kv_a_norm: RmsNorm,
    /// `[heads, nope, latent]`: from a query to the latent that it is compared with.
    to_latent: Tensor,
    /// `[heads, latent, value]`: from the attended latent to the head's output.
    from_latent: Tensor,
    o: Linear,
    rope: Option<Rope>,
    /// Who chooses the tokens that are seen, where not all are.
    chooser: Option<Chooser>,
    shape: MlaShape,
}

#[derive(Debug)]
enum Query {
    Direct(Linear),
    Compressed { a: Linear, norm: RmsNorm, b: Linear },
}

/// The dimensions of an [`Mla`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct MlaShape {
    pub(crate) hidden: usize,
    pub(crate) heads: usize,
    pub(crate) q_lora_rank: Option<usize>,
    pub(crate) kv_lora_rank: usize,
    pub(crate) nope: usize,
    pub(crate) rope: usize,
    pub(crate) value: usize,
    pub(crate) bias: bool,
    /// Factor on scores.
    pub(crate) scale: f64,
    /// Of the norms of latents.
    pub(crate) norm_eps: f64,
    /// Whether the checkpoint pairs neighbours (2i, 2i + 1) in the rotation, rather than halves.
    pub(crate) interleaved: bool,
}

impl Mla {
    /// Reads the attention of absolute layer `layer`.
    pub(crate) fn load(weights: &Scope<'_>, layer: u32, shape: MlaShape, rope: Option<Rope>) -> Result<Self> {
        let MlaShape { hidden, heads, kv_lora_rank, nope, rope: rotated, value, bias, norm_eps, .. } = shape;
        let queries = heads * (nope + rotated);
        let query = match shape.q_lora_rank {
            None => {
                Query::Direct(shape.in_halves(Linear::load(&weights.enter("q_proj"), hidden, queries, false)?, heads)?)
            }
            Some(rank) => Query::Compressed {
                a: Linear::load(&weights.enter("q_a_proj"), hidden, rank, bias)?,
                norm: RmsNorm::load(&weights.enter("q_a_layernorm"), rank, norm_eps)?,
                b: shape.in_halves(Linear::load(&weights.enter("q_b_proj"), rank, queries, false)?, heads)?,
            },
        };
        let kv_a = Linear::load(&weights.enter("kv_a_proj_with_mqa"), hidden, kv_lora_rank + rotated, bias)?;
        let [to_latent, from_latent] = up_projection(weights, &shape)?;
        Ok(Self {
            layer,
            query,
            kv_a: shape.in_halves(kv_a, 1)?,
            kv_a_norm: RmsNorm::load(&weights.enter("kv_a_layernorm"), kv_lora_rank, norm_eps)?,
            to_latent,
            from_latent,
            o: Linear::load(&weights.enter("o_proj"), heads * value, hidden, bias)?,
            rope,
            chooser: None,
            shape,
        })
    }

    /// The same over tokens that are chosen.
    pub(crate) fn choosing(self, chooser: Chooser) -> Self {
        Self { chooser: Some(chooser), ..self }
    }
}

/// From a query to the latent that it is compared with, `[heads, nope, latent]`, and from the attended latent to the head's
/// output, `[heads, latent, value]`.
pub(super) fn up_projection(weights: &Scope<'_>, shape: &MlaShape) -> Result<[Tensor; 2]> {
    let MlaShape { heads, kv_lora_rank, nope, value, .. } = *shape;
    let kv_b = weights.enter("kv_b_proj").get("weight", (heads * (nope + value), kv_lora_rank))?;
    let kv_b = kv_b.reshape((heads, nope + value, kv_lora_rank))?;
    let from_latent = kv_b.narrow(1, nope, value)?.transpose(1, 2)?.contiguous()?;
    Ok([kv_b.narrow(1, 0, nope)?.contiguous()?, from_latent])
}

impl MlaShape {
    /// The projection with the rotated elements, the last of each of `heads` groups, in pairs of halves.
    ///
    /// Scores do not depend on the order, so that it is changed once here and not at every step.
    fn in_halves(&self, projection: Linear, heads: usize) -> candle_core::Result<Linear> {
        if !self.interleaved {
            return Ok(projection);
        }
        projection.select(self.halves(projection.outputs(), heads))
    }

    /// The order of outputs in which neighbours that are rotated together stand half the rotated elements apart.
    pub(super) fn halves(&self, outputs: usize, heads: usize) -> impl Iterator<Item = usize> {
        let size = outputs / heads.max(1);
        let kept = size - self.rope;
        (0..heads).flat_map(move |head| {
            let start = head * size;
            let pairs = start + kept..start + size;
            (start..start + kept).chain(pairs.clone().step_by(2)).chain(pairs.skip(1).step_by(2))
        })
    }
}

impl Mixer for Mla {
    fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        let MlaShape { heads, kv_lora_rank, nope, rope: rotated, value, scale, .. } = self.shape;
        let (on, tokens) = (step.on(), x.dim(0)?);
        let (q, query_latent) = match &self.query {
            Query::Direct(q) => (q.forward(on, x)?, None),
            Query::Compressed { a, norm, b } => {
                let latent = norm.forward(on, &a.forward(on, x)?)?;
                (b.forward(on, &latent)?, Some(latent))
            }
        };
        let q = q.reshape((tokens, heads, nope + rotated))?;
        let kv = self.kv_a.forward(on, x)?;
        let latent = self.kv_a_norm.forward(on, &kv.narrow(1, 0, kv_lora_rank)?)?.unsqueeze(1)?;
        let q_latent = q.narrow(2, 0, nope)?.transpose(0, 1)?.contiguous()?.matmul(&self.to_latent)?.transpose(0, 1)?;
        let (q, k) = if rotated == 0 {
            (q_latent.contiguous()?, latent)
        } else {
            let mut k_rope = kv.narrow(1, kv_lora_rank, rotated)?.unsqueeze(1)?;
            let mut q_rope = q.narrow(2, nope, rotated)?;
            if let Some(rope) = &self.rope {
                let positions = step.positions();
                (q_rope, k_rope) = (rope.apply(on, &q_rope, positions)?, rope.apply(on, &k_rope, positions)?);
            }
            (Tensor::cat(&[&q_latent, &q_rope], 2)?, Tensor::cat(&[&latent, &k_rope], 2)?)
        };

        let cache = step.paged(self.layer, &Kind::MlaPaged)?;
        cache.write(&k, None)?;
        let rule = PagedAttention { quant: cache.quant, ..PagedAttention::new(scale as f32, kv_lora_rank) };
        let choice = self.chooser.as_ref().map(|chooser| chooser.choose(x, query_latent.as_ref(), step)).transpose()?;
        let batch = choice.as_ref().map_or(cache.batch, |choice| cache.batch.with_chosen(choice.chosen()));
        let y = rule.run(on, &q, cache.pool, &cache.view, &batch)?;
        let y = y.transpose(0, 1)?.contiguous()?.matmul(&self.from_latent)?.transpose(0, 1)?;
        Ok(self.o.forward(on, &y.reshape((tokens, heads * value))?)?)
    }

    fn ropes(&self) -> Vec<&Rope> {
        self.rope.iter().collect()
    }

    fn trace(&self, writer: &mut Writer, x: &str) -> Result<String> {
        let MlaShape { heads, kv_lora_rank, nope, rope: rotated, value, scale, .. } = self.shape;
        if self.chooser.is_some() {
            return Err(refuse("latent attention", "it chooses the tokens that it sees"));
        }
        let q = match &self.query {
            Query::Direct(q) => q.trace(writer, x)?,
            Query::Compressed { a, norm, b } => {
                let narrow = a.trace(writer, x)?;
                let narrow = norm.trace(writer, &narrow)?;
                b.trace(writer, &narrow)?
            }
        };
        let q = writer.reshape(&q, &[0, 0, heads as i64, (nope + rotated) as i64]);
        let [q, mut q_rope] = writer.split(&q, [nope, rotated]);
        let kv = self.kv_a.trace(writer, x)?;
        let [latent, k_rope] = writer.split(&kv, [kv_lora_rank, rotated]);
        let latent = self.kv_a_norm.trace(writer, &latent)?;
        let (latent, mut k_rope) = (writer.unsqueeze(&latent, &[2]), writer.unsqueeze(&k_rope, &[2]));
        if let Some(rope) = &self.rope {
            (q_rope, k_rope) = (writer.rotated(&q_rope, rope, rotated)?, writer.rotated(&k_rope, rope, rotated)?);
        }
        let (q, to_latent) = (writer.transpose(&q, &[0, 2, 1, 3]), writer.weight(&self.to_latent)?);
        let q = writer.node("MatMul", &[&q, &to_latent]);
        let q = writer.transpose(&q, &[0, 2, 1, 3]);
        let [q, latents] = [[&q, &q_rope], [&latent, &k_rope]]
            .map(|parts| writer.node_with("Concat", &parts.map(String::as_str), vec![int("axis", -1)]));
        let width = kv_lora_rank + rotated;
        let y = writer.attend_latents(self.layer, [&q, &latents], [width, kv_lora_rank], scale as f32)?;
        let from_latent = writer.weight(&self.from_latent)?;
        let y = writer.node("MatMul", &[&y, &from_latent]);
        let y = writer.transpose(&y, &[0, 2, 1, 3]);
        let y = writer.reshape(&y, &[0, 0, (heads * value) as i64]);
        self.o.trace(writer, &y)
    }

    fn caches(&self) -> Vec<CacheUse> {
        let width = self.shape.kv_lora_rank + self.shape.rope;
        let own = CacheUse::new(self.layer, Kind::MlaPaged, [1, 1, width]);
        std::iter::once(own).chain(self.chooser.iter().flat_map(Chooser::caches)).collect()
    }
}
