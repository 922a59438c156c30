//! Lightning attention: linear attention with a fixed decay per head.

use cacheplan_handlers::Kind;
use cacheplan_kernels::{LinearAttentionScan, Run, StateDecay};
use cacheplan_managers::device::ReplayLayer;
use candle_core::Tensor;

use super::{Activation, Linear, Mixer, RmsNorm, replay, sigmoid};
use crate::cache_use::CacheUse;
use crate::error::Result;
use crate::exported::{Decay, Recurrence, Writer};
use crate::step::Step;
use crate::weights::Scope;

/// The norm of the output has an epsilon of its own, whatever the config's `rms_norm_eps`.
const NORM_EPS: f64 = 1e-6;

/// The mixer of one layer.
#[derive(Debug)]
pub(crate) struct Lightning {
    layer: u32,
    /// How many, and how wide each is.
    heads: (usize, usize),
    qkv: [Linear; 3],
    activation: Activation,
    /// Logarithm of the decay of each head.
    decay: Vec<f32>,
    norm: RmsNorm,
    output_gate: Linear,
    out_proj: Linear,
}

impl Lightning {
    /// Reads the mixer of absolute layer `layer` of `layers`.
    pub(crate) fn load(
        weights: &Scope<'_>,
        layer: u32,
        layers: u32,
        hidden: usize,
        (heads, head_dim): (usize, usize),
        activation: Activation,
    ) -> Result<Self> {
        let channels = heads * head_dim;
        let qkv = Linear::load(&weights.enter("qkv_proj"), hidden, 3 * channels, false)?;
        // Each head's query, key and value lie side by side.
        let part = |part: usize| {
            let rows = (0..heads).flat_map(|head| (0..head_dim).map(move |i| (3 * head + part) * head_dim + i));
            qkv.select(rows)
        };
        Ok(Self {
            layer,
            heads: (heads, head_dim),
            qkv: [part(0)?, part(1)?, part(2)?],
            activation,
            decay: decay(layer, layers, heads),
            norm: RmsNorm::load(&weights.enter("norm"), channels, NORM_EPS)?,
            output_gate: Linear::load(&weights.enter("output_gate"), hidden, channels, false)?,
            out_proj: Linear::load(&weights.enter("out_proj"), channels, hidden, false)?,
        })
    }
}

/// ALiBi's slopes, flatter in deeper layers.
fn decay(layer: u32, layers: u32, heads: usize) -> Vec<f32> {
    let flatter = 1.0 - f64::from(layer) / (f64::from(layers) - 1.0 + 1e-5) + 1e-5;
    let slope = |head: usize| 2f64.powf(-8.0 * (head + 1) as f64 / heads as f64);
    (0..heads).map(|head| -(slope(head) * flatter) as f32).collect()
}

impl Lightning {
    fn scan<'a>(&'a self, [q, k, v]: [&'a Tensor; 3]) -> LinearAttentionScan<'a> {
        let decay = StateDecay::Fixed(&self.decay);
        LinearAttentionScan { q, k, v, decay, beta: None, scale: 1.0, l2_norm: false }
    }
}

impl Mixer for Lightning {
    fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        let (on, [q, k, v]) = (step.on(), &self.qkv);
        let project = |linear: &Linear| self.activation.forward(&linear.forward(on, x)?);
        let state = step.state(self.layer, &Kind::Ssm)?;
        let (q, k, v) = (project(q)?, project(k)?, project(v)?);
        let y = self.scan([&q, &k, &v]).run(on, &state.pool, &state.view, &state.batch)?;
        state.keep([("k", &k), ("v", &v)])?;
        let gate = sigmoid(&self.output_gate.forward(on, x)?)?;
        Ok(self.out_proj.forward(on, &(self.norm.forward(on, &y)? * gate)?)?)
    }

    fn replay(&self, on: &Run<'_>, kept: &ReplayLayer<'_>) -> Result<bool> {
        // Nothing is read out.
        replay(kept, self.layer, ["k", "v"], |[k, v], state, batch| {
            self.scan([k, k, v]).run(on, state.pool, &state.view, batch)
        })
    }

    fn trace(&self, writer: &mut Writer, x: &str) -> Result<String> {
        let (heads, head_dim) = self.heads;
        let mut project = |linear: &Linear| {
            let projected = linear.trace(writer, x)?;
            self.activation.trace(writer, &projected)
        };
        let [q, k, v] = &self.qkv;
        let (qk, v) = ([project(q)?, project(k)?], project(v)?);
        let (layer, key_dim, value_dim) = (self.layer, head_dim, head_dim);
        let (decay, beta, scale) = (Decay::Fixed(self.decay.clone()), None, 1.0);
        let y = writer.recurrence(Recurrence { layer, qk, v, decay, beta, heads, key_dim, value_dim, scale });
        let y = self.norm.trace(writer, &y)?;
        let gate = self.output_gate.trace(writer, x)?;
        let gate = writer.node("Sigmoid", &[&gate]);
        let y = writer.node("Mul", &[&y, &gate]);
        self.out_proj.trace(writer, &y)
    }

    fn caches(&self) -> Vec<CacheUse> {
        let (heads, head_dim) = self.heads;
        vec![CacheUse::new(self.layer, Kind::Ssm, [heads, head_dim, head_dim])]
    }
}
