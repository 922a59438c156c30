//! The Mamba-2 mixer: projection, causal convolution, state space scan, gated norm, projection.

use cacheplan_handlers::Kind;
use cacheplan_kernels::{GateOrder, ScanInput, TimeStep, gated_rms_norm, mamba2_scan};
use candle_core::{DType, Tensor};
use serde::Deserialize;
use serde_json::Value;

use super::{Activation, CausalConv, Linear, Mixer};
use crate::error::{ConfigError, RuntimeError};
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
}

/// The dimensions and constants of a [`Mamba2`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mamba2Shape {
    pub(crate) hidden: usize,
    pub(crate) heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) d_state: usize,
    pub(crate) n_groups: usize,
    pub(crate) d_conv: usize,
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
    mamba_n_heads: usize,
    mamba_d_head: usize,
    mamba_d_state: usize,
    mamba_n_groups: usize,
    mamba_d_conv: usize,
    mamba_conv_bias: bool,
    mamba_proj_bias: bool,
    time_step_limit: Option<(Value, Value)>,
}

impl Mamba2Config {
    /// `activation` follows the convolution; the gate's is SiLU in all of them.
    pub(crate) fn shape(&self, hidden: usize, activation: Activation, norm_eps: f64, gate: GateOrder) -> Mamba2Shape {
        Mamba2Shape {
            hidden,
            heads: self.mamba_n_heads,
            head_dim: self.mamba_d_head,
            d_state: self.mamba_d_state,
            n_groups: self.mamba_n_groups,
            d_conv: self.mamba_d_conv,
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
    fn d_inner(&self) -> usize {
        self.heads * self.head_dim
    }

    fn conv_dim(&self) -> usize {
        self.d_inner() + 2 * self.n_groups * self.d_state
    }
}

impl Mamba2 {
    /// Reads the mixer of absolute layer `layer`.
    pub(crate) fn load(weights: &Scope<'_>, layer: u32, shape: Mamba2Shape) -> Result<Self, RuntimeError> {
        let Mamba2Shape { hidden, heads, d_conv, n_groups, .. } = shape;
        if n_groups == 0 || !heads.is_multiple_of(n_groups) {
            let (found, known) = (n_groups.to_string(), "divisors of the number of heads");
            return Err(ConfigError::Unsupported { key: "n_groups", found, known }.into());
        }
        let (d_inner, conv_dim) = (shape.d_inner(), shape.conv_dim());
        let a_log = weights.get("A_log", heads)?.to_dtype(DType::F32)?;
        Ok(Self {
            layer,
            in_proj: Linear::load(&weights.enter("in_proj"), hidden, d_inner + conv_dim + heads, shape.in_bias)?,
            conv: CausalConv::load(&weights.enter("conv1d"), conv_dim, d_conv, shape.conv_bias)?
                .with_activation(shape.activation),
            a: a_log.exp()?.neg()?,
            d: weights.get("D", heads)?,
            dt_bias: weights.get("dt_bias", heads)?,
            norm_weight: match shape.gate {
                GateOrder::GateOnly => Tensor::ones(d_inner, DType::F32, a_log.device())?,
                GateOrder::GateThenNorm | GateOrder::NormThenGate => weights.enter("norm").get("weight", d_inner)?,
            },
            out_proj: Linear::load(&weights.enter("out_proj"), d_inner, hidden, shape.out_bias)?,
            shape,
        })
    }
}

impl Mamba2 {
    /// The sections `[z, x, B, C, dt]` of the inward projection, each multiplied by its factor.
    pub(crate) fn with_projection_scales(self, factors: [f64; 5]) -> candle_core::Result<Self> {
        let bc = self.shape.n_groups * self.shape.d_state;
        let sizes = [self.shape.d_inner(), self.shape.d_inner(), bc, bc, self.shape.heads];
        Ok(Self { in_proj: self.in_proj.scaled_sections(sizes.into_iter().zip(factors))?, ..self })
    }
}

impl Mixer for Mamba2 {
    fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor, RuntimeError> {
        let Mamba2Shape { heads, n_groups, d_state, norm_eps, gate, dt_limit, .. } = self.shape;
        let (d_inner, conv_dim, bc) = (self.shape.d_inner(), self.shape.conv_dim(), n_groups * d_state);
        let projected = self.in_proj.forward(x)?;
        let z = projected.narrow(1, 0, d_inner)?;
        let xbc = projected.narrow(1, d_inner, conv_dim)?;
        let dt = projected.narrow(1, d_inner + conv_dim, heads)?;

        let xbc = self.conv.forward(&xbc, &step.state(self.layer, &Kind::CausalConv)?)?;
        let x = xbc.narrow(1, 0, d_inner)?;
        let b = xbc.narrow(1, d_inner, bc)?;
        let c = xbc.narrow(1, d_inner + bc, bc)?;

        let ssm = step.state(self.layer, &Kind::Ssm)?;
        let parameters = cacheplan_kernels::Mamba2 {
            a: &self.a,
            d: Some(&self.d),
            time_step: TimeStep { limit: dt_limit, ..TimeStep::new(Some(&self.dt_bias)) },
        };
        let input = ScanInput { x: &x, dt: &dt, b: &b, c: &c, z: None };
        let y = mamba2_scan(&input, &parameters, ssm.pool, &ssm.view, &ssm.batch)?;
        let group = d_inner / n_groups;
        let y = gated_rms_norm(&y, &z, &self.norm_weight, norm_eps, group, gate)?;
        Ok(self.out_proj.forward(&y)?)
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
