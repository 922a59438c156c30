//! The Mamba-2 mixer: projection, causal convolution, state space scan, gated norm, projection.

use cacheplan_handlers::Kind;
use cacheplan_kernels::{GateOrder, Mamba2Scan, RmsNorm, Run, ScanInput, TimeStep};
use cacheplan_managers::device::ReplayLayer;
use cacheplan_transforms::onnx::EDGE_LLM;
use candle_core::{DType, Tensor};
use serde::Deserialize;
use serde_json::Value;

use super::{Activation, CausalConv, Linear, Mixer, replay, size};
use crate::cache_use::CacheUse;
use crate::error::{ConfigError, Result};
use crate::exported::{Writer, int, recurrent};
use crate::step::Step;
use crate::weights::Scope;

/// The mixer of one layer.
#[derive(Debug)]
pub(crate) struct Mamba2 {
    layer: u32,
    in_proj: Linear,
    conv: CausalConv,
    /// `-exp(A_log)` in f32, `[heads]`.
    a: Tensor,
    d: Tensor,
    dt_bias: Tensor,
    norm_weight: Tensor,
    out_proj: Linear,
    shape: Mamba2Shape,
    rules: Mamba2Rules,
}

/// The dimensions of a [`Mamba2`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mamba2Shape {
    hidden: usize,
    heads: usize,
    head_dim: usize,
    d_state: usize,
    n_groups: usize,
    d_conv: usize,
}

/// How a [`Mamba2`] of whatever dimensions computes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mamba2Rules {
    /// What follows the convolution.
    pub(crate) activation: Activation,
    pub(crate) conv_bias: bool,
    pub(crate) in_bias: bool,
    pub(crate) out_bias: bool,
    pub(crate) norm_eps: f32,
    pub(crate) gate: GateOrder,
    /// Bounds of the time step, as [`dt_limit`] reads them.
    pub(crate) dt_limit: (f32, f32),
}

/// The keys of the mixer in the configs of Bamba and those that followed it.
#[derive(Debug, Deserialize)]
pub(crate) struct Mamba2Config {
    mamba_conv_bias: bool,
    mamba_proj_bias: bool,
    time_step_limit: Option<(Value, Value)>,
}

impl Mamba2Config {
    /// `activation` follows the convolution; the gate's is SiLU in all of them.
    pub(crate) fn rules(&self, activation: Activation, norm_eps: f64, gate: GateOrder) -> Mamba2Rules {
        Mamba2Rules {
            conv_bias: self.mamba_conv_bias,
            activation,
            in_bias: self.mamba_proj_bias,
            out_bias: self.mamba_proj_bias,
            norm_eps: norm_eps as f32,
            gate,
            dt_limit: dt_limit(self.time_step_limit.as_ref()),
        }
    }
}

impl Mamba2Shape {
    /// The shape of a mixer over a residual stream of `hidden` channels.
    pub(crate) fn new(hidden: usize, dims: &cacheplan_transforms::layers::Mamba2) -> Self {
        let [heads, head_dim, d_state] = [dims.num_heads, dims.head_dim, dims.d_state].map(size);
        Self { hidden, heads, head_dim, d_state, n_groups: size(dims.n_groups), d_conv: size(dims.d_conv) }
    }

    fn d_inner(&self) -> usize {
        self.heads * self.head_dim
    }

    fn conv_dim(&self) -> usize {
        self.d_inner() + 2 * self.n_groups * self.d_state
    }
}

impl Mamba2 {
    /// Reads the mixer of absolute layer `layer`.
    pub(crate) fn load(weights: &Scope<'_>, layer: u32, shape: Mamba2Shape, rules: Mamba2Rules) -> Result<Self> {
        let Mamba2Shape { hidden, heads, d_conv, n_groups, .. } = shape;
        if n_groups == 0 || !heads.is_multiple_of(n_groups) {
            return Err(ConfigError::unsupported("n_groups", n_groups, "divisors of the number of heads").into());
        }
        let (d_inner, conv_dim) = (shape.d_inner(), shape.conv_dim());
        let a_log = weights.float("A_log", heads)?;
        Ok(Self {
            layer,
            in_proj: Linear::load(&weights.enter("in_proj"), hidden, d_inner + conv_dim + heads, rules.in_bias)?,
            conv: CausalConv::load(&weights.enter("conv1d"), conv_dim, d_conv, rules.conv_bias)?
                .with_activation(rules.activation),
            a: a_log.exp()?.neg()?,
            d: weights.get("D", heads)?,
            dt_bias: weights.get("dt_bias", heads)?,
            norm_weight: match rules.gate {
                GateOrder::GateOnly => Tensor::ones(d_inner, DType::F32, a_log.device())?,
                GateOrder::GateThenNorm | GateOrder::NormThenGate => weights.enter("norm").get("weight", d_inner)?,
            },
            out_proj: Linear::load(&weights.enter("out_proj"), d_inner, hidden, rules.out_bias)?,
            shape,
            rules,
        })
    }
}

impl Mamba2 {
    fn scan(&self) -> Mamba2Scan<'_> {
        let time_step = TimeStep { limit: self.rules.dt_limit, ..TimeStep::new(Some(&self.dt_bias)) };
        Mamba2Scan { a: &self.a, d: Some(&self.d), time_step }
    }

    /// The sections `[z, x, B, C, dt]` of the inward projection, each multiplied by its factor.
    pub(crate) fn with_projection_scales(self, factors: [f64; 5]) -> candle_core::Result<Self> {
        let bc = self.shape.n_groups * self.shape.d_state;
        let sizes = [self.shape.d_inner(), self.shape.d_inner(), bc, bc, self.shape.heads];
        Ok(Self { in_proj: self.in_proj.scaled_sections(sizes.into_iter().zip(factors))?, ..self })
    }
}

impl Mixer for Mamba2 {
    fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        let Mamba2Shape { heads, n_groups, d_state, .. } = self.shape;
        let Mamba2Rules { norm_eps, gate, .. } = self.rules;
        let (d_inner, conv_dim, bc) = (self.shape.d_inner(), self.shape.conv_dim(), n_groups * d_state);
        let on = step.on();
        let projected = self.in_proj.forward(on, x)?;
        let z = projected.narrow(1, 0, d_inner)?;
        let xbc = projected.narrow(1, d_inner, conv_dim)?;
        let dt = projected.narrow(1, d_inner + conv_dim, heads)?;

        let xbc = self.conv.forward(on, &xbc, &step.state(self.layer, &Kind::CausalConv)?)?;
        let x = xbc.narrow(1, 0, d_inner)?;
        let b = xbc.narrow(1, d_inner, bc)?;
        let c = xbc.narrow(1, d_inner + bc, bc)?;

        let ssm = step.state(self.layer, &Kind::Ssm)?;
        let input = ScanInput { x: &x, dt: &dt, b: &b, c: &c, z: None };
        let y = self.scan().run(on, &input, &ssm.pool, &ssm.view, &ssm.batch)?;
        ssm.keep([("x", &x), ("b", &b), ("dt", &dt)])?;
        let group = d_inner / n_groups;
        let y = RmsNorm { weight: &self.norm_weight, eps: norm_eps }.run_gated(on, &y, &z, group, gate)?;
        Ok(self.out_proj.forward(on, &y)?)
    }

    fn replay(&self, on: &Run<'_>, kept: &ReplayLayer<'_>) -> Result<bool> {
        // Nothing is read out.
        replay(kept, self.layer, ["x", "b", "dt"], |[x, b, dt], state, batch| {
            let input = ScanInput { x, dt, b, c: b, z: None };
            self.scan().run(on, &input, state.pool, &state.view, batch)
        })
    }

    fn trace(&self, writer: &mut Writer, x: &str) -> Result<String> {
        let Mamba2Shape { heads, head_dim, n_groups, d_state, .. } = self.shape;
        let Mamba2Rules { norm_eps, gate, dt_limit, .. } = self.rules;
        let (d_inner, bc) = (self.shape.d_inner(), n_groups * d_state);
        let projected = self.in_proj.trace(writer, x)?;
        let [z, xbc, dt] = writer.split(&projected, [d_inner, self.shape.conv_dim(), heads]);
        let xbc = self.conv.trace(writer, &xbc, self.layer)?;
        let [x, b, c] = writer.split(&xbc, [d_inner, bc, bc]);
        let x = writer.reshape(&x, &[0, 0, heads as i64, head_dim as i64]);
        let [b, c] = [b, c].map(|part| writer.reshape(&part, &[0, 0, n_groups as i64, d_state as i64]));
        let (batch, tokens) = (Some(writer.batch()), writer.tokens());
        writer.state_shape(&x, &[batch, tokens, Some(heads), Some(head_dim)]);
        writer.state_shape(&b, &[batch, tokens, Some(n_groups), Some(d_state)]);
        // The op has no bounds of the time step, so that it is given the finished one.
        let (dt, bias) = (writer.wide(&dt), writer.wide_weight(&self.dt_bias)?);
        let dt = writer.node("Add", &[&dt, &bias]);
        let mut dt = writer.node("Softplus", &[&dt]);
        for (bound, op) in [(dt_limit.0, "Max"), (dt_limit.1, "Min")] {
            if bound > 0.0 && bound.is_finite() {
                let bound = writer.wide_number(bound);
                dt = writer.node(op, &[&dt, &bound]);
            }
        }
        let dt = writer.narrow(&dt);
        // What it is multiplied by is an exponent, for which f16 is too coarse.
        let (a, d) = (writer.wide_weight(&self.a)?, writer.weight(&self.d)?);
        let nothing = writer.data_floats(&vec![0.0; heads], &[heads]);
        let state = [batch, Some(heads), Some(head_dim), Some(d_state)];
        let name = format!("ssm_state_{}", self.layer);
        let before = writer.data_input(&name, &state);
        let lengths = writer.lengths();
        let inputs = [&x, &a, &b, &c, &d, &dt, &nothing, &before, &lengths].map(String::as_str);
        let sizes = [("nheads", heads), ("dim", head_dim), ("dstate", d_state), ("ngroups", n_groups)];
        let mut attributes = sizes.map(|(name, size)| int(name, size as i64)).to_vec();
        attributes.extend([int("dt_softplus", 0), int("chunk_size", 0)]);
        let [y, after] = writer.nodes(EDGE_LLM, "update_ssm_state", &inputs, attributes);
        writer.function(recurrent::update_ssm_state(heads, n_groups, d_state))?;
        writer.output(&after, &format!("{name}_out"), &state);
        let mut y = writer.reshape(&y, &[0, 0, d_inner as i64]);
        let silu = writer.silu(&z);
        if gate != GateOrder::NormThenGate {
            y = writer.node("Mul", &[&y, &silu]);
        }
        if gate != GateOrder::GateOnly {
            y = writer.reshape(&y, &[0, 0, n_groups as i64, (d_inner / n_groups) as i64]);
            y = writer.normalised(&y, norm_eps);
            y = writer.reshape(&y, &[0, 0, d_inner as i64]);
            let weight = writer.weight(&self.norm_weight)?;
            y = writer.node("Mul", &[&y, &weight]);
        }
        if gate == GateOrder::NormThenGate {
            y = writer.node("Mul", &[&y, &silu]);
        }
        self.out_proj.trace(writer, &y)
    }

    fn caches(&self) -> Vec<CacheUse> {
        let Mamba2Shape { heads, head_dim, d_state, d_conv, .. } = self.shape;
        vec![
            CacheUse::new(self.layer, Kind::Ssm, [heads, head_dim, d_state]),
            CacheUse::new(self.layer, Kind::CausalConv, [self.shape.conv_dim(), d_conv.saturating_sub(1)]),
        ]
    }
}

/// The bounds of a config's `time_step_limit`; none where it states none.
///
/// Infinity comes as a number beyond f32, as `{"__float__": "Infinity"}` or as `null`. The parameters
/// `time_step_min`, `time_step_max` and `time_step_floor` serve initialisation only.
pub(crate) fn dt_limit(time_step_limit: Option<&(Value, Value)>) -> (f32, f32) {
    let bound = |value: &Value, otherwise: f32| value.as_f64().map_or(otherwise, |bound| bound as f32);
    match time_step_limit {
        Some((low, high)) => (bound(low, 0.0), bound(high, f32::INFINITY)),
        None => (0.0, f32::INFINITY),
    }
}
