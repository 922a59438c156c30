//! The gated delta net: projections, causal convolution, delta rule with a decay per head, gated norm, projection.

use cacheplan_handlers::Kind;
use cacheplan_kernels::{GateOrder, LinearAttentionScan, RmsNorm, Run, StateDecay};
use cacheplan_managers::device::ReplayLayer;
use candle_core::{DType, Tensor};
use serde::Deserialize;

use super::{Activation, CausalConv, Linear, Mixer, replay, sigmoid, softplus};
use crate::cache_use::CacheUse;
use crate::error::Result;
use crate::exported::{Decay, Recurrence, Writer, int};
use crate::step::Step;
use crate::weights::Scope;

/// The mixer of one layer.
#[derive(Debug)]
pub(crate) struct GatedDelta {
    layer: u32,
    projections: GatedDeltaProjections,
    conv: CausalConv,
    /// `-exp(A_log)` in f32, `[value_heads]`.
    rate: Tensor,
    dt_bias: Tensor,
    /// `[value_dim]`, shared by the heads.
    norm_weight: Tensor,
    out_proj: Linear,
    /// The order of the output's channels that `out_proj` takes, if it is another.
    out_order: Option<Tensor>,
    shape: GatedDeltaShape,
}

/// The inward projections, however the checkpoint stores them.
#[derive(Debug)]
pub(crate) struct GatedDeltaProjections {
    /// Queries, keys and values, one after the other.
    pub(crate) qkv: Linear,
    /// The output's gate.
    pub(crate) z: Linear,
    /// The write strength.
    pub(crate) b: Linear,
    /// The decay.
    pub(crate) a: Linear,
}

/// What stands behind the inward projections, however the checkpoint calls it.
#[derive(Debug)]
pub(crate) struct GatedDeltaRest {
    /// Over queries, keys and values, without an activation.
    pub(crate) conv: CausalConv,
    /// `[value_dim]`, shared by the heads.
    pub(crate) norm_weight: Tensor,
    pub(crate) out_proj: Linear,
}

impl GatedDeltaRest {
    /// Reads it by the names that most checkpoints have.
    pub(crate) fn load(weights: &Scope<'_>, shape: &GatedDeltaShape) -> Result<Self> {
        Ok(Self {
            conv: CausalConv::load(&weights.enter("conv1d"), 2 * shape.keys() + shape.values(), shape.d_conv, false)?,
            norm_weight: weights.enter("norm").get("weight", shape.value_dim)?,
            out_proj: Linear::load(&weights.enter("out_proj"), shape.values(), shape.hidden, false)?,
        })
    }
}

/// The dimensions of a [`GatedDelta`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct GatedDeltaShape {
    pub(crate) hidden: usize,
    pub(crate) key_heads: usize,
    pub(crate) value_heads: usize,
    pub(crate) key_dim: usize,
    pub(crate) value_dim: usize,
    pub(crate) d_conv: usize,
    /// What follows the convolution.
    pub(crate) activation: Activation,
    pub(crate) norm_eps: f32,
    /// Factor on the write strength: with 2 a state may turn its sign.
    pub(crate) strength: f64,
    pub(crate) gate: OutputGate,
}

/// What the output's gate passes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OutputGate {
    #[default]
    Silu,
    Sigmoid,
}

impl GatedDeltaShape {
    /// Channels of all queries, which are those of all keys.
    pub(crate) fn keys(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Channels of all values.
    pub(crate) fn values(&self) -> usize {
        self.value_heads * self.value_dim
    }
}

impl GatedDelta {
    /// Reads the decay of absolute layer `layer`; the rest is given.
    pub(crate) fn load(
        weights: &Scope<'_>,
        layer: u32,
        shape: GatedDeltaShape,
        projections: GatedDeltaProjections,
        GatedDeltaRest { conv, norm_weight, out_proj }: GatedDeltaRest,
    ) -> Result<Self> {
        let a_log = weights.float("A_log", shape.value_heads)?;
        Ok(Self {
            layer,
            projections,
            conv: conv.with_activation(shape.activation),
            rate: a_log.exp()?.neg()?,
            dt_bias: weights.float("dt_bias", shape.value_heads)?,
            norm_weight,
            out_proj,
            out_order: None,
            shape,
        })
    }
}

impl GatedDelta {
    /// The same of weights whose value heads lie in tiles, the first of every key head, then the second of every one.
    pub(crate) fn out_of_tiles(self) -> candle_core::Result<Self> {
        let GatedDeltaShape { key_heads, value_heads, value_dim, .. } = self.shape;
        let per_key = value_heads / key_heads.max(1);
        let heads: Vec<usize> =
            (0..key_heads).flat_map(|key| (0..per_key).map(move |nth| nth * key_heads + key)).collect();
        let channels = || heads.iter().flat_map(|head| head * value_dim..(head + 1) * value_dim);
        let keys = 2 * self.shape.keys();
        let GatedDeltaProjections { qkv, z, b, a } = &self.projections;
        let of_tensor = |order: Vec<usize>| {
            let order: Vec<u32> = order.into_iter().map(|at| at as u32).collect();
            Tensor::new(order, self.rate.device())
        };
        let mut back = vec![0; heads.len() * value_dim];
        channels().enumerate().for_each(|(at, channel)| back[channel] = at);
        Ok(Self {
            projections: GatedDeltaProjections {
                qkv: qkv.select((0..keys).chain(channels().map(|channel| keys + channel)))?,
                z: z.select(channels())?,
                b: b.select(heads.iter().copied())?,
                a: a.select(heads.iter().copied())?,
            },
            conv: self.conv.select(&of_tensor((0..keys).chain(channels().map(|at| keys + at)).collect())?)?,
            rate: self.rate.index_select(&of_tensor(heads.clone())?, 0)?,
            dt_bias: self.dt_bias.index_select(&of_tensor(heads.clone())?, 0)?,
            out_order: Some(of_tensor(back)?),
            ..self
        })
    }

    /// Each head's output `y` `[tokens, values]` normalised, behind the gate `z`.
    fn gated(&self, on: &Run<'_>, y: &Tensor, z: &Tensor) -> Result<Tensor> {
        let norm = RmsNorm { weight: &self.norm_weight, eps: self.shape.norm_eps };
        let GatedDeltaShape { value_heads, value_dim, .. } = self.shape;
        Ok(match self.shape.gate {
            OutputGate::Silu => norm.run_gated(on, y, z, value_dim, GateOrder::NormThenGate)?,
            OutputGate::Sigmoid => {
                let y = norm.run(on, &y.reshape((y.dim(0)?, value_heads, value_dim))?)?.flatten_from(1)?;
                (y * sigmoid(z)?)?
            }
        })
    }

    fn scan<'a>(&self, q: &'a Tensor, [k, v, decay, beta]: [&'a Tensor; 4]) -> LinearAttentionScan<'a> {
        let (decay, beta) = (StateDecay::PerHead(decay), Some(beta));
        LinearAttentionScan { q, k, v, decay, beta, scale: 1.0 / (self.shape.key_dim as f32).sqrt(), l2_norm: true }
    }
}

impl Mixer for GatedDelta {
    fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        let GatedDeltaProjections { qkv, z, b, a } = &self.projections;
        let on = step.on();
        let (keys, values) = (self.shape.keys(), self.shape.values());
        let qkv = self.conv.forward(on, &qkv.forward(on, x)?, &step.state(self.layer, &Kind::CausalConv)?)?;
        let a = a.forward(on, x)?.to_dtype(DType::F32)?.broadcast_add(&self.dt_bias)?;
        let decay = softplus(&a)?.broadcast_mul(&self.rate)?;
        let mut beta = sigmoid(&b.forward(on, x)?)?;
        if self.shape.strength != 1.0 {
            beta = (beta * self.shape.strength)?;
        }

        let state = step.state(self.layer, &Kind::Ssm)?;
        let (k, v) = (qkv.narrow(1, keys, keys)?, qkv.narrow(1, 2 * keys, values)?);
        let q = qkv.narrow(1, 0, keys)?;
        let y = self.scan(&q, [&k, &v, &decay, &beta]).run(on, &state.pool, &state.view, &state.batch)?;
        state.keep([("k", &k), ("v", &v), ("g", &decay), ("beta", &beta)])?;
        let y = self.gated(on, &y, &z.forward(on, x)?)?;
        let y = match &self.out_order {
            Some(order) => y.index_select(order, 1)?,
            None => y,
        };
        Ok(self.out_proj.forward(on, &y)?)
    }

    fn replay(&self, on: &Run<'_>, kept: &ReplayLayer<'_>) -> Result<bool> {
        // Nothing is read out.
        replay(kept, self.layer, ["k", "v", "g", "beta"], |[k, v, decay, beta], state, batch| {
            self.scan(k, [k, v, decay, beta]).run(on, state.pool, &state.view, batch)
        })
    }

    fn trace(&self, writer: &mut Writer, x: &str) -> Result<String> {
        let GatedDeltaShape { key_heads, value_heads, key_dim, value_dim, norm_eps, strength, .. } = self.shape;
        let GatedDeltaProjections { qkv, z, b, a } = &self.projections;
        let qkv = qkv.trace(writer, x)?;
        let qkv = self.conv.trace(writer, &qkv, self.layer)?;
        let [q, k, v] = writer.split(&qkv, [self.shape.keys(), self.shape.keys(), self.shape.values()]);
        let qk = [q, k].map(|part| {
            let heads = writer.reshape(&part, &[0, 0, key_heads as i64, key_dim as i64]);
            let unit = writer.unit(&heads);
            writer.repeated(&unit, [key_heads, key_dim, value_heads / key_heads])
        });
        let a = a.trace(writer, x)?;
        let (a, bias, rate) = (writer.wide(&a), writer.wide_weight(&self.dt_bias)?, writer.wide_weight(&self.rate)?);
        let a = writer.node("Add", &[&a, &bias]);
        let a = writer.node("Softplus", &[&a]);
        let decay = writer.node("Mul", &[&a, &rate]);
        let decay = Decay::PerHead(writer.narrow(&decay));
        let b = b.trace(writer, x)?;
        let beta = writer.node("Sigmoid", &[&b]);
        let beta = Some(writer.scaled(&beta, strength));
        let (layer, heads, scale) = (self.layer, value_heads, 1.0 / (key_dim as f32).sqrt());
        let y = writer.recurrence(Recurrence { layer, qk, v, decay, beta, heads, key_dim, value_dim, scale });
        let y = writer.reshape(&y, &[0, 0, value_heads as i64, value_dim as i64]);
        let y = writer.normalised(&y, norm_eps);
        let weight = writer.weight(&self.norm_weight)?;
        let y = writer.node("Mul", &[&y, &weight]);
        let y = writer.reshape(&y, &[0, 0, self.shape.values() as i64]);
        let z = z.trace(writer, x)?;
        let gate = match self.shape.gate {
            OutputGate::Silu => writer.silu(&z),
            OutputGate::Sigmoid => writer.node("Sigmoid", &[&z]),
        };
        let mut y = writer.node("Mul", &[&y, &gate]);
        if let Some(order) = &self.out_order {
            let order: Vec<i64> = order.to_vec1::<u32>()?.into_iter().map(i64::from).collect();
            let order = writer.ints(&order);
            y = writer.node_with("Gather", &[&y, &order], vec![int("axis", 2)]);
        }
        self.out_proj.trace(writer, &y)
    }

    fn caches(&self) -> Vec<CacheUse> {
        let GatedDeltaShape { value_heads, key_dim, value_dim, d_conv, .. } = self.shape;
        let channels = 2 * self.shape.keys() + self.shape.values();
        vec![
            CacheUse::new(self.layer, Kind::Ssm, [value_heads, key_dim, value_dim]),
            CacheUse::new(self.layer, Kind::CausalConv, [channels, d_conv.saturating_sub(1)]),
        ]
    }
}
