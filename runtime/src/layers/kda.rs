//! Kimi delta attention: a delta rule whose decay is one per key channel.

use cacheplan_handlers::Kind;
use cacheplan_kernels::{LinearAttentionScan, Run, StateDecay};
use cacheplan_managers::device::ReplayLayer;
use candle_core::{DType, Tensor};

use super::{Activation, CausalConv, Linear, Mixer, RmsNorm, replay, sigmoid, softplus};
use crate::cache_use::CacheUse;
use crate::error::Result;
use crate::exported::{Decay, Recurrence, Writer, int, refuse};
use crate::step::Step;
use crate::weights::Scope;

/// The mixer of one layer.
#[derive(Debug)]
pub(crate) struct Kda {
    layer: u32,
    qkv: [Linear; 3],
    conv: CausalConv,
    /// The decay, through a narrow layer.
    forget: [Linear; 2],
    /// `exp(A_log)` in f32, `[heads, 1]`.
    rate: Tensor,
    dt_bias: Tensor,
    beta: Linear,
    /// The output's gate, through a narrow layer.
    gate: [Linear; 2],
    norm: RmsNorm,
    o: Linear,
    shape: KdaShape,
}

/// The dimensions of a [`Kda`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct KdaShape {
    pub(crate) hidden: usize,
    pub(crate) heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) d_conv: usize,
    /// What follows the convolution.
    pub(crate) activation: Activation,
    pub(crate) norm_eps: f64,
    pub(crate) decay: KdaDecay,
}

/// How a decay follows from what the forget gate gives: `x` with its bias, and the head's rate.
#[derive(Clone, Copy, Debug)]
pub(crate) enum KdaDecay {
    /// `-rate * softplus(x)`.
    Softplus,
    /// `bound * sigmoid(rate * x)`, no lower than the bound.
    Bounded(f64),
}

impl KdaDecay {
    /// Of `x` `[tokens, heads, head_dim]`.
    fn forward(self, x: &Tensor, rate: &Tensor) -> candle_core::Result<Tensor> {
        match self {
            Self::Softplus => softplus(x)?.broadcast_mul(rate)?.neg(),
            Self::Bounded(bound) => sigmoid(&x.broadcast_mul(rate)?)? * bound,
        }
    }
}

impl Kda {
    /// Reads the mixer of absolute layer `layer`, whose heads decay by `a_log` in f32.
    pub(crate) fn load(weights: &Scope<'_>, layer: u32, shape: KdaShape, a_log: &Tensor) -> Result<Self> {
        let KdaShape { hidden, heads, head_dim, d_conv, activation, norm_eps, .. } = shape;
        let channels = heads * head_dim;
        let linear = |name: &str, from: usize, to: usize| Linear::load(&weights.enter(name), from, to, false);
        let conv = |name: &str| CausalConv::load(&weights.enter(name), channels, d_conv, false);
        Ok(Self {
            layer,
            qkv: [
                linear("q_proj", hidden, channels)?,
                linear("k_proj", hidden, channels)?,
                linear("v_proj", hidden, channels)?,
            ],
            conv: CausalConv::beside(&[conv("q_conv1d")?, conv("k_conv1d")?, conv("v_conv1d")?])?
                .with_activation(activation),
            forget: [linear("f_a_proj", hidden, head_dim)?, linear("f_b_proj", head_dim, channels)?],
            rate: a_log.exp()?.reshape((heads, 1))?,
            dt_bias: weights.float("dt_bias", channels)?,
            beta: linear("b_proj", hidden, heads)?,
            gate: [linear("g_a_proj", hidden, head_dim)?, linear("g_b_proj", head_dim, channels)?],
            norm: RmsNorm::load(&weights.enter("o_norm"), head_dim, norm_eps)?,
            o: linear("o_proj", channels, hidden)?,
            shape,
        })
    }
}

impl Kda {
    fn scan<'a>(&self, q: &'a Tensor, [k, v, decay, beta]: [&'a Tensor; 4]) -> LinearAttentionScan<'a> {
        let (decay, beta) = (StateDecay::PerChannel(decay), Some(beta));
        LinearAttentionScan { q, k, v, decay, beta, scale: 1.0 / (self.shape.head_dim as f32).sqrt(), l2_norm: true }
    }
}

impl Mixer for Kda {
    fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        let KdaShape { heads, head_dim, .. } = self.shape;
        let (on, tokens, channels) = (step.on(), x.dim(0)?, heads * head_dim);
        let through = |[a, b]: &[Linear; 2]| b.forward(on, &a.forward(on, x)?);
        let [q, k, v] = &self.qkv;
        let qkv = Tensor::cat(&[q.forward(on, x)?, k.forward(on, x)?, v.forward(on, x)?], 1)?;
        let qkv = self.conv.forward(on, &qkv, &step.state(self.layer, &Kind::CausalConv)?)?;
        let forget = through(&self.forget)?.to_dtype(DType::F32)?.broadcast_add(&self.dt_bias)?;
        let forget = forget.reshape((tokens, heads, head_dim))?;
        let decay = self.shape.decay.forward(&forget, &self.rate)?.reshape((tokens, channels))?;
        let beta = sigmoid(&self.beta.forward(on, x)?)?;

        let state = step.state(self.layer, &Kind::Ssm)?;
        let (q, k, v) =
            (qkv.narrow(1, 0, channels)?, qkv.narrow(1, channels, channels)?, qkv.narrow(1, 2 * channels, channels)?);
        let y = self.scan(&q, [&k, &v, &decay, &beta]).run(on, &state.pool, &state.view, &state.batch)?;
        state.keep([("k", &k), ("v", &v), ("g", &decay), ("beta", &beta)])?;
        let y = self.norm.forward(on, &y.reshape((tokens, heads, head_dim))?)?.reshape((tokens, channels))?;
        Ok(self.o.forward(on, &(y * sigmoid(&through(&self.gate)?)?)?)?)
    }

    fn replay(&self, on: &Run<'_>, kept: &ReplayLayer<'_>) -> Result<bool> {
        // Nothing is read out.
        replay(kept, self.layer, ["k", "v", "g", "beta"], |[k, v, decay, beta], state, batch| {
            self.scan(k, [k, v, decay, beta]).run(on, state.pool, &state.view, batch)
        })
    }

    fn trace(&self, writer: &mut Writer, x: &str) -> Result<String> {
        let KdaShape { heads, head_dim, .. } = self.shape;
        let (channels, apart) = (heads * head_dim, [0, 0, heads as i64, head_dim as i64]);
        let flat = [0, 0, channels as i64];
        let through = |writer: &mut Writer, [a, b]: &[Linear; 2]| {
            let narrow = a.trace(writer, x)?;
            b.trace(writer, &narrow)
        };
        let mut parts = Vec::new();
        for linear in &self.qkv {
            parts.push(linear.trace(writer, x)?);
        }
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let qkv = writer.node_with("Concat", &parts, vec![int("axis", -1)]);
        let qkv = self.conv.trace(writer, &qkv, self.layer)?;
        let [q, k, v] = writer.split(&qkv, [channels; 3]);
        let qk = [q, k].map(|part| {
            let heads = writer.reshape(&part, &apart);
            let unit = writer.unit(&heads);
            writer.reshape(&unit, &flat)
        });
        let forget = through(writer, &self.forget)?;
        if let KdaDecay::Bounded(_) = self.shape.decay {
            return Err(refuse("delta attention", "its decay has a bound"));
        }
        let (forget, bias) = (writer.wide(&forget), writer.wide_weight(&self.dt_bias)?);
        let forget = writer.node("Add", &[&forget, &bias]);
        let forget = writer.node("Softplus", &[&forget]);
        let (forget, rate) = (writer.reshape(&forget, &apart), writer.wide_weight(&self.rate.neg()?)?);
        let decay = writer.node("Mul", &[&forget, &rate]);
        let decay = writer.reshape(&decay, &flat);
        let decay = Decay::PerChannel(writer.narrow(&decay));
        let beta = self.beta.trace(writer, x)?;
        let beta = Some(writer.node("Sigmoid", &[&beta]));
        let (layer, key_dim, value_dim) = (self.layer, head_dim, head_dim);
        let scale = 1.0 / (head_dim as f32).sqrt();
        let y = writer.recurrence(Recurrence { layer, qk, v, decay, beta, heads, key_dim, value_dim, scale });
        let y = writer.reshape(&y, &apart);
        let y = self.norm.trace(writer, &y)?;
        let y = writer.reshape(&y, &flat);
        let gate = through(writer, &self.gate)?;
        let gate = writer.node("Sigmoid", &[&gate]);
        let y = writer.node("Mul", &[&y, &gate]);
        self.o.trace(writer, &y)
    }

    fn caches(&self) -> Vec<CacheUse> {
        let KdaShape { heads, head_dim, d_conv, .. } = self.shape;
        vec![
            CacheUse::new(self.layer, Kind::Ssm, [heads, head_dim, head_dim]),
            CacheUse::new(self.layer, Kind::CausalConv, [3 * heads * head_dim, d_conv.saturating_sub(1)]),
        ]
    }
}
