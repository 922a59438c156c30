//! Grouped-query attention over a paged cache.

use cacheplan_handlers::Kind;
use cacheplan_kernels::{PagedAttention, Rope, Window};
use candle_core::Tensor;

use super::{Chooser, Linear, Mixer, RmsNorm, sigmoid};
use crate::cache_use::CacheUse;
use crate::error::RuntimeError;
use crate::exported::{Attending, Writer, refuse};
use crate::step::Step;
use crate::weights::Scope;

/// The attention of one layer.
#[derive(Debug)]
pub(crate) struct Attention {
    layer: u32,
    /// To queries, keys and values, in this order.
    qkv: Linear,
    o: Linear,
    /// The output is multiplied by the sigmoid of this.
    output_gate: Option<Linear>,
    /// Norms over queries and over keys, before the rotation.
    norms: Option<QueryKeyNorms>,
    rope: Option<Rope>,
    shape: AttentionShape,
    scale: f32,
    /// One logit per head that takes part in the softmax's denominator alone.
    sinks: Option<Vec<f32>>,
    /// Who chooses the tokens that are seen, where not all are.
    chooser: Option<Chooser>,
}

/// Norms over queries and over keys.
#[derive(Debug)]
enum QueryKeyNorms {
    /// Over each head.
    PerHead(RmsNorm, RmsNorm),
    /// Over all heads together.
    Whole(RmsNorm, RmsNorm),
}

/// The dimensions of an [`Attention`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionShape {
    pub(crate) hidden: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    /// What each token sees.
    pub(crate) window: Window,
    pub(crate) bias: bool,
}

impl Attention {
    /// Reads `q_proj`, `k_proj`, `v_proj` and `o_proj` of absolute layer `layer`.
    pub(crate) fn load(
        weights: &Scope<'_>,
        layer: u32,
        shape: AttentionShape,
        rope: Option<Rope>,
    ) -> Result<Self, RuntimeError> {
        Self::load_with_output(weights, ("o_proj", shape.bias), layer, shape, rope)
    }

    /// The same for models whose outward projection has another name, or a bias where the others have none or none
    /// where they have one.
    pub(crate) fn load_with_output(
        weights: &Scope<'_>,
        (output, output_bias): (&str, bool),
        layer: u32,
        shape: AttentionShape,
        rope: Option<Rope>,
    ) -> Result<Self, RuntimeError> {
        let AttentionShape { hidden, heads, kv_heads, head_dim, bias, .. } = shape;
        let inward = |name: &str, heads: usize| Linear::load(&weights.enter(name), hidden, heads * head_dim, bias);
        let o = Linear::load(&weights.enter(output), heads * head_dim, hidden, output_bias)?;
        let qkv = (inward("q_proj", heads)?, inward("k_proj", kv_heads)?, inward("v_proj", kv_heads)?);
        Ok(Self::new(layer, [qkv.0, qkv.1, qkv.2, o], shape, rope)?)
    }

    /// The same for models whose `q_proj` gives each head's query and then a gate for its output.
    pub(crate) fn load_gated(
        weights: &Scope<'_>,
        layer: u32,
        shape: AttentionShape,
        rope: Option<Rope>,
    ) -> Result<Self, RuntimeError> {
        let AttentionShape { hidden, heads, kv_heads, head_dim, bias, .. } = shape;
        let both = Linear::load(&weights.enter("q_proj"), hidden, 2 * heads * head_dim, bias)?;
        let half = |start: usize| {
            both.select((0..heads).flat_map(|head| (0..head_dim).map(move |i| (2 * head + start) * head_dim + i)))
        };
        let (q, gate) = (half(0)?, half(1)?);
        let kv = |name: &str| Linear::load(&weights.enter(name), hidden, kv_heads * head_dim, bias);
        let o = Linear::load(&weights.enter("o_proj"), heads * head_dim, hidden, bias)?;
        let attention = Self::new(layer, [q, kv("k_proj")?, kv("v_proj")?, o], shape, rope)?;
        Ok(Self { output_gate: Some(gate), ..attention })
    }

    /// Attention by the projections to queries, keys and values and back.
    pub(crate) fn new(
        layer: u32,
        [q, k, v, o]: [Linear; 4],
        shape: AttentionShape,
        rope: Option<Rope>,
    ) -> candle_core::Result<Self> {
        Ok(Self {
            layer,
            qkv: Linear::stacked(&[q, k, v])?,
            o,
            output_gate: None,
            norms: None,
            rope,
            shape,
            scale: 1.0 / (shape.head_dim as f32).sqrt(),
            sinks: None,
            chooser: None,
        })
    }

    /// The same over tokens that are chosen.
    pub(crate) fn choosing(self, chooser: Chooser) -> Self {
        Self { chooser: Some(chooser), ..self }
    }

    /// Norms over each head of queries and of keys, before the rotation.
    pub(crate) fn with_head_norms(self, q: RmsNorm, k: RmsNorm) -> Self {
        Self { norms: Some(QueryKeyNorms::PerHead(q, k)), ..self }
    }

    /// Norms over all heads of queries and over all of keys, before the rotation.
    pub(crate) fn with_whole_norms(self, q: RmsNorm, k: RmsNorm) -> Self {
        Self { norms: Some(QueryKeyNorms::Whole(q, k)), ..self }
    }

    /// A factor on scores other than `1 / sqrt(head_dim)`.
    pub(crate) fn with_scale(self, scale: f64) -> Self {
        Self { scale: scale as f32, ..self }
    }

    /// Logits that take part in the softmax's denominator alone, one per head.
    pub(crate) fn with_sinks(self, sinks: Vec<f32>) -> Self {
        Self { sinks: Some(sinks), ..self }
    }

    /// Keys multiplied by `factor`.
    pub(crate) fn with_key_scale(self, factor: f64) -> candle_core::Result<Self> {
        let AttentionShape { heads, kv_heads, head_dim, .. } = self.shape;
        let sections = [(heads * head_dim, 1.0), (kv_heads * head_dim, factor), (kv_heads * head_dim, 1.0)];
        Ok(Self { qkv: self.qkv.scaled_sections(sections.into_iter())?, ..self })
    }
}

impl Mixer for Attention {
    fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor, RuntimeError> {
        let AttentionShape { heads, kv_heads, head_dim, .. } = self.shape;
        let (on, tokens) = (step.on(), x.dim(0)?);
        let flat = self.qkv.forward(on, x)?;
        let qkv = flat.reshape((tokens, heads + 2 * kv_heads, head_dim))?;
        let mut q = qkv.narrow(1, 0, heads)?;
        let mut k = qkv.narrow(1, heads, kv_heads)?;
        let v = qkv.narrow(1, heads + kv_heads, kv_heads)?;
        match &self.norms {
            None => {}
            Some(QueryKeyNorms::PerHead(q_norm, k_norm)) => {
                (q, k) = (q_norm.forward(on, &q)?, k_norm.forward(on, &k)?);
            }
            Some(QueryKeyNorms::Whole(q_norm, k_norm)) => {
                let whole = |norm: &RmsNorm, start: usize, heads: usize| {
                    let rows = flat.narrow(1, start * head_dim, heads * head_dim)?;
                    norm.forward(on, &rows)?.reshape((tokens, heads, head_dim))
                };
                (q, k) = (whole(q_norm, 0, heads)?, whole(k_norm, heads, kv_heads)?);
            }
        }
        let cache = step.paged(self.layer, &Kind::KvPaged)?;
        match &self.rope {
            Some(rope) => q = cache.write_rotated(&q, &k, &v, rope, step.positions())?,
            None => cache.write(&k, Some(&v))?,
        }
        let rule = PagedAttention {
            window: self.shape.window,
            sinks: self.sinks.as_deref(),
            quant: cache.quant,
            ..PagedAttention::new(self.scale, head_dim)
        };
        let choice = self.chooser.as_ref().map(|chooser| chooser.choose(x, None, step)).transpose()?;
        let batch = choice.as_ref().map_or(cache.batch, |choice| cache.batch.with_chosen(choice.chosen()));
        let y = rule.run(on, &q, cache.pool, &cache.view, &batch)?;
        let mut y = y.reshape((tokens, heads * head_dim))?;
        if let Some(gate) = &self.output_gate {
            y = (y * sigmoid(&gate.forward(on, x)?)?)?;
        }
        Ok(self.o.forward(on, &y)?)
    }

    fn trace(&self, writer: &mut Writer, x: &str) -> Result<String, RuntimeError> {
        let AttentionShape { heads, kv_heads, head_dim, window, .. } = self.shape;
        if self.chooser.is_some() {
            return Err(refuse("attention", "it chooses the tokens that it sees"));
        }
        let qkv = self.qkv.trace(writer, x)?;
        let mut parts = writer.split(&qkv, [heads, kv_heads, kv_heads].map(|heads| heads * head_dim));
        if let Some(QueryKeyNorms::Whole(q_norm, k_norm)) = &self.norms {
            parts[0] = q_norm.trace(writer, &parts[0])?;
            parts[1] = k_norm.trace(writer, &parts[1])?;
        }
        let mut apart = |part: &str, heads: usize| writer.reshape(part, &[0, 0, heads as i64, head_dim as i64]);
        let (mut q, mut k) = (apart(&parts[0], heads), apart(&parts[1], kv_heads));
        let v = apart(&parts[2], kv_heads);
        if let Some(QueryKeyNorms::PerHead(q_norm, k_norm)) = &self.norms {
            (q, k) = (q_norm.trace(writer, &q)?, k_norm.trace(writer, &k)?);
        }
        let (scale, rope, sinks) = (self.scale, self.rope.as_ref(), self.sinks.as_deref());
        let layer = self.layer;
        let mut y =
            writer.attend(Attending { layer, q, k, v, heads, kv_heads, head_dim, scale, window, rope, sinks })?;
        if let Some(gate) = &self.output_gate {
            let gate = gate.trace(writer, x)?;
            let gate = writer.node("Sigmoid", &[&gate]);
            y = writer.node("Mul", &[&y, &gate]);
        }
        self.o.trace(writer, &y)
    }

    fn ropes(&self) -> Vec<&Rope> {
        self.rope.iter().collect()
    }

    fn caches(&self) -> Vec<CacheUse> {
        let AttentionShape { kv_heads, head_dim, window, .. } = self.shape;
        let window = match window {
            Window::Sliding(tokens) => Some(tokens as u64),
            _ => None,
        };
        let own = CacheUse { window, ..CacheUse::new(self.layer, Kind::KvPaged, [2, kv_heads, head_dim]) };
        std::iter::once(own).chain(self.chooser.iter().flat_map(Chooser::caches)).collect()
    }
}
