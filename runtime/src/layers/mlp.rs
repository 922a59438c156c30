//! Feed-forward layers, gated and plain.

use cacheplan_kernels::{Rows, Run};
use candle_core::{Module, Tensor};
use serde::Deserialize;

use super::{Linear, sigmoid};
use crate::error::Result;
use crate::exported::Writer;
use crate::weights::{Scope, WeightError};

/// The non-linearity between the projections, by its name in a config.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Activation {
    #[serde(alias = "swish")]
    Silu,
    Relu,
    Relu2,
    Gelu,
    #[serde(alias = "gelu_new", alias = "gelu_fast")]
    GeluPytorchTanh,
    QuickGelu,
    Tanh,
}

impl Activation {
    /// As nodes of a graph.
    pub(crate) fn trace(self, writer: &mut Writer, x: &str) -> Result<String> {
        match self {
            Self::Silu => Ok(writer.silu(x)),
            Self::Relu => Ok(writer.node("Relu", &[x])),
            Self::Relu2 => {
                let x = writer.node("Relu", &[x]);
                Ok(writer.node("Mul", &[&x, &x]))
            }
            Self::Tanh => Ok(writer.node("Tanh", &[x])),
            Self::GeluPytorchTanh => {
                let square = writer.node("Mul", &[x, x]);
                let cube = writer.node("Mul", &[&square, x]);
                let cube = writer.scaled(&cube, 0.044715);
                let sum = writer.node("Add", &[x, &cube]);
                let inner = writer.scaled(&sum, (2.0 / std::f64::consts::PI).sqrt());
                let tanh = writer.node("Tanh", &[&inner]);
                let one = writer.data_number(1.0);
                let above = writer.node("Add", &[&tanh, &one]);
                let half = writer.scaled(x, 0.5);
                Ok(writer.node("Mul", &[&half, &above]))
            }
            Self::QuickGelu => {
                let steep = writer.scaled(x, 1.702);
                let gate = writer.node("Sigmoid", &[&steep]);
                Ok(writer.node("Mul", &[x, &gate]))
            }
            Self::Gelu => {
                let scaled = writer.scaled(x, std::f64::consts::FRAC_1_SQRT_2);
                let erf = writer.node("Erf", &[&scaled]);
                let one = writer.data_number(1.0);
                let above = writer.node("Add", &[&erf, &one]);
                let half = writer.scaled(x, 0.5);
                Ok(writer.node("Mul", &[&half, &above]))
            }
        }
    }

    pub(crate) fn forward(self, x: &Tensor) -> candle_core::Result<Tensor> {
        let layer = match self {
            Self::Silu => candle_nn::Activation::Silu,
            Self::Relu => candle_nn::Activation::Relu,
            Self::Relu2 => candle_nn::Activation::Relu2,
            Self::Gelu => candle_nn::Activation::Gelu,
            Self::GeluPytorchTanh => candle_nn::Activation::GeluPytorchTanh,
            Self::QuickGelu => return x * sigmoid(&(x * 1.702)?)?,
            Self::Tanh => return x.tanh(),
        };
        layer.forward(x)
    }
}

/// What lies between the inward projection and `down`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Inner {
    /// `act(up)`.
    Plain(Activation),
    /// `act(gate) · up` of one projection to both, the gate first.
    Gated(Activation),
    /// `gate · sigmoid(alpha · gate) · (up + lift)` with both bounded by `limit`, of one projection to both.
    Clamped(ClampedSwiglu),
}

impl Inner {
    /// Of what the inward projection gives, `width` channels, as nodes of a graph.
    pub(super) fn written(self, writer: &mut Writer, x: &str, width: usize) -> Result<String> {
        let halves = [width / 2; 2];
        match self {
            Self::Plain(activation) => activation.trace(writer, x),
            Self::Gated(activation) => {
                let [gate, up] = writer.split(x, halves);
                let gate = activation.trace(writer, &gate)?;
                Ok(writer.node("Mul", &[&gate, &up]))
            }
            Self::Clamped(ClampedSwiglu { alpha, limit, lift }) => {
                let [gate, up] = writer.split(x, halves);
                let [least, most, lift] = [-limit, limit, lift].map(|number| writer.data_number(number as f32));
                let gate = writer.node("Min", &[&gate, &most]);
                let up = writer.node("Min", &[&up, &most]);
                let up = writer.node("Max", &[&up, &least]);
                let steep = writer.scaled(&gate, alpha);
                let sigmoid = writer.node("Sigmoid", &[&steep]);
                let swish = writer.node("Mul", &[&gate, &sigmoid]);
                let above = writer.node("Add", &[&up, &lift]);
                Ok(writer.node("Mul", &[&swish, &above]))
            }
        }
    }

    /// Of what the inward projection gives.
    pub(super) fn forward(self, on: &Run<'_>, x: &Tensor) -> candle_core::Result<Tensor> {
        match self {
            Self::Plain(activation) => activation.forward(x),
            Self::Gated(Activation::Silu) => Ok(Rows(x).silu_product(on)?),
            Self::Gated(activation) => {
                let (gate, up) = halves(x)?;
                activation.forward(&gate)? * up
            }
            Self::Clamped(ClampedSwiglu { alpha, limit, lift }) => {
                let (gate, up) = halves(x)?;
                let (gate, up) = (gate.minimum(limit)?, up.clamp(-limit, limit)?);
                let swish = (&gate * sigmoid(&(&gate * alpha)?)?)?;
                swish * (up + lift)?
            }
        }
    }
}

/// A SwiGLU whose parts are bounded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ClampedSwiglu {
    /// How steep the gate's sigmoid is; with 1 it is SiLU.
    pub(crate) alpha: f64,
    /// The gate is no more than this, and `up` is no further from 0.
    pub(crate) limit: f64,
    /// What is added to `up`.
    pub(crate) lift: f64,
}

/// A feed-forward layer.
#[derive(Debug)]
pub(crate) struct Mlp {
    pub(super) inward: Linear,
    pub(super) inner: Inner,
    pub(super) down: Linear,
}

/// The dimensions of an [`Mlp`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct MlpShape {
    pub(crate) hidden: usize,
    pub(crate) intermediate: usize,
    pub(crate) bias: bool,
    pub(crate) activation: Activation,
}

impl Mlp {
    /// As nodes of a graph.
    pub(crate) fn written(&self, writer: &mut Writer, x: &str) -> Result<String> {
        let y = self.inward.trace(writer, x)?;
        let inner = self.inner.written(writer, &y, self.inward.outputs())?;
        self.down.trace(writer, &inner)
    }

    /// Reads `up_proj` and `down_proj`.
    pub(crate) fn load_plain(weights: &Scope<'_>, shape: MlpShape) -> Result<Self, WeightError> {
        let MlpShape { hidden, intermediate, bias, activation } = shape;
        let inward = Linear::load(&weights.enter("up_proj"), hidden, intermediate, bias)?;
        let down = Linear::load(&weights.enter("down_proj"), intermediate, hidden, bias)?;
        Ok(Self { inward, inner: Inner::Plain(activation), down })
    }

    /// What most models call the gate, up and down projection.
    pub(crate) const NAMES: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];

    /// Reads the three projections under their usual names.
    pub(crate) fn load_gated(weights: &Scope<'_>, shape: MlpShape) -> Result<Self> {
        Self::load_named(weights, Self::NAMES, shape)
    }

    /// Reads gate, up and down projection under the names that the model gives them.
    pub(crate) fn load_named(weights: &Scope<'_>, names: [&str; 3], shape: MlpShape) -> Result<Self> {
        let MlpShape { hidden, intermediate, bias, activation } = shape;
        let [gate, up, down] = names.map(|name| weights.enter(name));
        let gate = Linear::load(&gate, hidden, intermediate, bias)?;
        let up = Linear::load(&up, hidden, intermediate, bias)?;
        let down = Linear::load(&down, intermediate, hidden, bias)?;
        Ok(Self::gated(gate, up, down, activation)?)
    }

    /// `down(act(gate(x)) · up(x))`.
    pub(crate) fn gated(gate: Linear, up: Linear, down: Linear, activation: Activation) -> candle_core::Result<Self> {
        Ok(Self::fused(Linear::stacked(&[gate, up])?, down, activation))
    }

    /// A gated layer whose `gate_up` gives the gate first.
    pub(crate) fn fused(gate_up: Linear, down: Linear, activation: Activation) -> Self {
        Self { inward: gate_up, inner: Inner::Gated(activation), down }
    }

    /// The same with what lies between clamped.
    pub(crate) fn clamped(self, swiglu: ClampedSwiglu) -> Self {
        Self { inner: Inner::Clamped(swiglu), ..self }
    }

    /// `[rows, hidden]` to `[rows, hidden]`.
    pub(crate) fn forward(&self, on: &Run<'_>, x: &Tensor) -> candle_core::Result<Tensor> {
        self.down.forward(on, &self.inner.forward(on, &self.inward.forward(on, x)?)?)
    }
}

/// The columns of gate and up.
fn halves(gate_up: &Tensor) -> candle_core::Result<(Tensor, Tensor)> {
    let width = gate_up.dim(1)? / 2;
    Ok((gate_up.narrow(1, 0, width)?, gate_up.narrow(1, width, width)?))
}

/// A feed-forward layer that every token passes, weighted per token by `sigmoid(gate(x))` if there is a gate.
#[derive(Debug)]
pub(crate) struct SharedExpert {
    pub(crate) mlp: Mlp,
    pub(crate) gate: Option<Linear>,
}

impl SharedExpert {
    /// As nodes of a graph.
    pub(crate) fn written(&self, writer: &mut Writer, x: &str) -> Result<String> {
        let y = self.mlp.written(writer, x)?;
        let Some(gate) = &self.gate else { return Ok(y) };
        let gate = gate.trace(writer, x)?;
        let gate = writer.node("Sigmoid", &[&gate]);
        Ok(writer.node("Mul", &[&y, &gate]))
    }

    pub(crate) fn forward(&self, on: &Run<'_>, x: &Tensor) -> candle_core::Result<Tensor> {
        let y = self.mlp.forward(on, x)?;
        match &self.gate {
            Some(gate) => y.broadcast_mul(&sigmoid(&gate.forward(on, x)?)?),
            None => Ok(y),
        }
    }
}
