//! Grouped-query attention over a paged cache.

use cacheplan_handlers::Kind;
use cacheplan_kernels::{PagedAttention, Rope, Run, Window};
use candle_core::Tensor;

use super::{Chooser, Linear, Mixer, RmsNorm, sigmoid};
use crate::cache_use::CacheUse;
use crate::error::Result;
use crate::exported::{Attending, Writer, refuse};
use crate::step::Step;
use crate::weights::Scope;

/// The attention of one layer.
#[derive(Debug)]
pub(crate) struct Attention {
    layer: u32,
    /// To queries, keys and values, in this order, as far as it makes them.
    inward: Linear,
    o: Linear,
    /// The output is multiplied by the sigmoid of this.
    output_gate: Option<Linear>,
    norms: Norms,
    rope: Option<Rope>,
    shape: AttentionShape,
    scale: f32,
    /// One logit per head that takes part in the softmax's denominator alone.
    sinks: Option<Vec<f32>>,
    /// Who chooses the tokens that are seen, where not all are.
    chooser: Option<Chooser>,
}

/// Norms over queries, keys and values, before the rotation.
#[derive(Debug, Default)]
struct Norms {
    q: Option<RmsNorm>,
    k: Option<RmsNorm>,
    v: Option<RmsNorm>,
    /// Whether they are over all heads together; else over each.
    over_all: bool,
}

/// Where the keys and values of a layer come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keys {
    /// A projection to keys and one to values.
    Own,
    /// A projection to keys, which are the values too.
    AndValues,
    /// The cache of an earlier layer.
    OfLayer(u32),
}

impl Keys {
    /// How many projections lead inward: to queries, keys and values, in this order.
    fn projections(self) -> usize {
        match self {
            Self::Own => 3,
            Self::AndValues => 2,
            Self::OfLayer(_) => 1,
        }
    }

    /// The first head of the values among those that are projected to; none where the layer makes no keys.
    fn values_at(self, heads: usize, kv_heads: usize) -> Option<usize> {
        match self {
            Self::Own => Some(heads + kv_heads),
            Self::AndValues => Some(heads),
            Self::OfLayer(_) => None,
        }
    }
}

/// The dimensions of an [`Attention`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionShape {
    pub(crate) hidden: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) keys: Keys,
    /// What each token sees.
    pub(crate) window: Window,
    pub(crate) bias: bool,
}

impl Attention {
    /// Reads `q_proj`, `k_proj`, `v_proj` and `o_proj` of absolute layer `layer`, or those of them that it has.
    pub(crate) fn load(weights: &Scope<'_>, layer: u32, shape: AttentionShape, rope: Option<Rope>) -> Result<Self> {
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
    ) -> Result<Self> {
        let AttentionShape { hidden, heads, kv_heads, head_dim, bias, keys, .. } = shape;
        let parts = [("q_proj", heads), ("k_proj", kv_heads), ("v_proj", kv_heads)];
        let inward = parts.into_iter().take(keys.projections());
        let inward = inward.map(|(name, heads)| Linear::load(&weights.enter(name), hidden, heads * head_dim, bias));
        let inward: Vec<Linear> = inward.collect::<Result<_, _>>()?;
        let o = Linear::load(&weights.enter(output), heads * head_dim, hidden, output_bias)?;
        Ok(Self::new(layer, &inward, o, shape, rope)?)
    }

    /// The same for models whose `q_proj` gives each head's query and then a gate for its output.
    pub(crate) fn load_gated(
        weights: &Scope<'_>,
        layer: u32,
        shape: AttentionShape,
        rope: Option<Rope>,
    ) -> Result<Self> {
        let AttentionShape { hidden, heads, kv_heads, head_dim, bias, .. } = shape;
        let both = Linear::load(&weights.enter("q_proj"), hidden, 2 * heads * head_dim, bias)?;
        let half = |start: usize| {
            both.select((0..heads).flat_map(|head| (0..head_dim).map(move |i| (2 * head + start) * head_dim + i)))
        };
        let (q, gate) = (half(0)?, half(1)?);
        let kv = |name: &str| Linear::load(&weights.enter(name), hidden, kv_heads * head_dim, bias);
        let o = Linear::load(&weights.enter("o_proj"), heads * head_dim, hidden, bias)?;
        let attention = Self::new(layer, &[q, kv("k_proj")?, kv("v_proj")?], o, shape, rope)?;
        Ok(Self { output_gate: Some(gate), ..attention })
    }

    /// Attention by the projections to queries, keys and values, as far as the layer makes them, and back.
    pub(crate) fn new(
        layer: u32,
        inward: &[Linear],
        o: Linear,
        shape: AttentionShape,
        rope: Option<Rope>,
    ) -> candle_core::Result<Self> {
        Ok(Self {
            layer,
            inward: Linear::stacked(inward)?,
            o,
            output_gate: None,
            norms: Norms::default(),
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
        Self { norms: Norms { q: Some(q), k: Some(k), ..Norms::default() }, ..self }
    }

    /// Norms over each head of queries, and over each of keys and of values where the layer makes them.
    pub(crate) fn with_value_norms(self, q: RmsNorm, kv: Option<[RmsNorm; 2]>) -> Self {
        let (k, v) = kv.map_or((None, None), |[k, v]| (Some(k), Some(v)));
        Self { norms: Norms { q: Some(q), k, v, over_all: false }, ..self }
    }

    /// Norms over all heads of queries and over all of keys, before the rotation.
    pub(crate) fn with_whole_norms(self, q: RmsNorm, k: RmsNorm) -> Self {
        Self { norms: Norms { q: Some(q), k: Some(k), v: None, over_all: true }, ..self }
    }

    /// A factor on scores other than `1 / sqrt(head_dim)`.
    pub(crate) fn with_scale(self, scale: f64) -> Self {
        Self { scale: scale as f32, ..self }
    }

    /// Logits that take part in the softmax's denominator alone, one per head.
    pub(crate) fn with_sinks(self, sinks: Vec<f32>) -> Self {
        Self { sinks: Some(sinks), ..self }
    }

    /// Keys multiplied by `factor`, which are not the values too.
    pub(crate) fn with_key_scale(self, factor: f64) -> candle_core::Result<Self> {
        let AttentionShape { heads, kv_heads, head_dim, .. } = self.shape;
        let sections = [(heads * head_dim, 1.0), (kv_heads * head_dim, factor), (kv_heads * head_dim, 1.0)];
        Ok(Self { inward: self.inward.scaled_sections(sections.into_iter())?, ..self })
    }

    /// The layer whose cache it reads.
    fn cache_layer(&self) -> u32 {
        match self.shape.keys {
            Keys::Own | Keys::AndValues => self.layer,
            Keys::OfLayer(owner) => owner,
        }
    }

    /// Heads `start..start + heads` of those in `flat`, `[tokens, heads, head_dim]`, behind their norm.
    fn heads_of(
        &self,
        on: &Run<'_>,
        flat: &Tensor,
        [start, heads]: [usize; 2],
        norm: Option<&RmsNorm>,
    ) -> candle_core::Result<Tensor> {
        let (head_dim, (tokens, width)) = (self.shape.head_dim, flat.dims2()?);
        let each = || flat.reshape((tokens, width / head_dim, head_dim))?.narrow(1, start, heads);
        match norm {
            None => each(),
            Some(norm) if self.norms.over_all => {
                let rows = flat.narrow(1, start * head_dim, heads * head_dim)?;
                norm.forward(on, &rows)?.reshape((tokens, heads, head_dim))
            }
            Some(norm) => norm.forward(on, &each()?),
        }
    }

    /// The same as nodes of a graph, of a part `[1, tokens, heads · head_dim]`.
    fn trace_heads(&self, writer: &mut Writer, part: &str, heads: usize, norm: Option<&RmsNorm>) -> Result<String> {
        let apart = [0, 0, heads as i64, self.shape.head_dim as i64];
        match norm {
            None => Ok(writer.reshape(part, &apart)),
            Some(norm) if self.norms.over_all => {
                let whole = norm.trace(writer, part)?;
                Ok(writer.reshape(&whole, &apart))
            }
            Some(norm) => {
                let each = writer.reshape(part, &apart);
                norm.trace(writer, &each)
            }
        }
    }
}

impl Mixer for Attention {
    fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        let AttentionShape { heads, kv_heads, head_dim, keys, .. } = self.shape;
        let (on, tokens) = (step.on(), x.dim(0)?);
        let flat = self.inward.forward(on, x)?;
        let mut q = self.heads_of(on, &flat, [0, heads], self.norms.q.as_ref())?;
        let cache = step.paged(self.cache_layer(), &Kind::KvPaged)?;
        match (keys.values_at(heads, kv_heads), &self.rope) {
            (Some(values_at), rope) => {
                let k = self.heads_of(on, &flat, [heads, kv_heads], self.norms.k.as_ref())?;
                let v = self.heads_of(on, &flat, [values_at, kv_heads], self.norms.v.as_ref())?;
                match rope {
                    Some(rope) => q = cache.write_rotated(&q, &k, &v, rope, step.positions())?,
                    None => cache.write(&k, Some(&v))?,
                }
            }
            (None, Some(rope)) => q = rope.apply(on, &q, step.positions())?,
            (None, None) => {}
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

    fn trace(&self, writer: &mut Writer, x: &str) -> Result<String> {
        let AttentionShape { heads, kv_heads, head_dim, keys, window, .. } = self.shape;
        if self.chooser.is_some() {
            return Err(refuse("attention", "it chooses the tokens that it sees"));
        }
        let inward = self.inward.trace(writer, x)?;
        let [queries, each] = [heads, kv_heads].map(|heads| heads * head_dim);
        let Norms { q: q_norm, k: k_norm, v: v_norm, .. } = &self.norms;
        let (q, kv) = match keys {
            Keys::Own => {
                let [q, k, v] = writer.split(&inward, [queries, each, each]);
                (q, Some([k, v]))
            }
            Keys::AndValues => {
                let [q, k] = writer.split(&inward, [queries, each]);
                (q, Some([k.clone(), k]))
            }
            Keys::OfLayer(_) => (inward, None),
        };
        let q = self.trace_heads(writer, &q, heads, q_norm.as_ref())?;
        let kv = match kv {
            Some([k, v]) => Some([
                self.trace_heads(writer, &k, kv_heads, k_norm.as_ref())?,
                self.trace_heads(writer, &v, kv_heads, v_norm.as_ref())?,
            ]),
            None => None,
        };
        let (scale, rope, sinks) = (self.scale, self.rope.as_ref(), self.sinks.as_deref());
        let layer = self.cache_layer();
        let mut y = writer.attend(Attending { layer, q, kv, heads, kv_heads, head_dim, scale, window, rope, sinks })?;
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
        let own = CacheUse { window, ..CacheUse::new(self.cache_layer(), Kind::KvPaged, [2, kv_heads, head_dim]) };
        std::iter::once(own).chain(self.chooser.iter().flat_map(Chooser::caches)).collect()
    }
}
