//! The Mamba-1 mixer: projection, causal convolution, selective scan, projection.

use cacheplan_handlers::Kind;
use cacheplan_kernels::{Mamba1Scan, Run, ScanInput, TimeStep};
use cacheplan_managers::device::ReplayLayer;
use candle_core::Tensor;

use super::{Activation, CausalConv, Linear, Mixer, RmsNorm, replay, size};
use crate::cache_use::CacheUse;
use crate::error::Result;
use crate::exported::{Decay, Recurrence, Writer};
use crate::step::Step;
use crate::weights::Scope;

/// The mixer of one layer.
#[derive(Debug)]
pub(crate) struct Mamba1 {
    layer: u32,
    in_proj: Linear,
    conv: CausalConv,
    x_proj: Linear,
    /// Norms of the time step's low-rank form, of B and of C.
    selection_norms: Option<[RmsNorm; 3]>,
    dt_proj: Linear,
    dt_bias: Tensor,
    /// `-exp(A_log)` in f32, `[d_inner, d_state]`.
    a: Tensor,
    d: Tensor,
    out_proj: Linear,
    shape: Mamba1Shape,
}

/// The dimensions of a [`Mamba1`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mamba1Shape {
    pub(crate) hidden: usize,
    pub(crate) d_inner: usize,
    pub(crate) d_state: usize,
    pub(crate) d_conv: usize,
    pub(crate) dt_rank: usize,
    /// What follows the convolution; the gate's is SiLU.
    pub(crate) activation: Activation,
    pub(crate) conv_bias: bool,
    pub(crate) proj_bias: bool,
}

impl Mamba1Shape {
    /// The shape of a mixer whose convolution, and whose projections, may have biases.
    pub(crate) fn new(
        hidden: usize,
        dims: &cacheplan_transforms::layers::Mamba1,
        activation: Activation,
        [conv_bias, proj_bias]: [bool; 2],
    ) -> Self {
        let [d_inner, d_state, d_conv, dt_rank] = [dims.d_inner, dims.d_state, dims.d_conv, dims.dt_rank].map(size);
        Self { hidden, d_inner, d_state, d_conv, dt_rank, activation, conv_bias, proj_bias }
    }
}

impl Mamba1 {
    /// Reads the mixer of absolute layer `layer`.
    pub(crate) fn load(weights: &Scope<'_>, layer: u32, shape: Mamba1Shape) -> Result<Self> {
        let Mamba1Shape { hidden, d_inner, d_state, d_conv, dt_rank, activation, conv_bias, proj_bias } = shape;
        let dt = weights.enter("dt_proj");
        let a_log = weights.float("A_log", (d_inner, d_state))?;
        Ok(Self {
            layer,
            in_proj: Linear::load(&weights.enter("in_proj"), hidden, 2 * d_inner, proj_bias)?,
            conv: CausalConv::load(&weights.enter("conv1d"), d_inner, d_conv, conv_bias)?.with_activation(activation),
            x_proj: Linear::load(&weights.enter("x_proj"), d_inner, dt_rank + 2 * d_state, false)?,
            selection_norms: None,
            // The scan adds the bias.
            dt_proj: Linear::new(dt.get("weight", (d_inner, dt_rank))?, None),
            dt_bias: dt.get("bias", d_inner)?,
            a: a_log.exp()?.neg()?,
            d: weights.get("D", d_inner)?,
            out_proj: Linear::load(&weights.enter("out_proj"), d_inner, hidden, proj_bias)?,
            shape,
        })
    }

    fn scan(&self) -> Mamba1Scan<'_> {
        Mamba1Scan { a: &self.a, d: Some(&self.d), time_step: TimeStep::new(Some(&self.dt_bias)) }
    }

    /// Norms of the time step's low-rank form, of B and of C.
    pub(crate) fn with_selection_norms(self, norms: [RmsNorm; 3]) -> Self {
        Self { selection_norms: Some(norms), ..self }
    }
}

impl Mixer for Mamba1 {
    fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        let Mamba1Shape { d_inner, d_state, dt_rank, .. } = self.shape;
        let on = step.on();
        let projected = self.in_proj.forward(on, x)?;
        let (x, z) = (projected.narrow(1, 0, d_inner)?, projected.narrow(1, d_inner, d_inner)?);
        let x = self.conv.forward(on, &x, &step.state(self.layer, &Kind::CausalConv)?)?;

        let selection = self.x_proj.forward(on, &x)?;
        let mut dt = selection.narrow(1, 0, dt_rank)?;
        let mut b = selection.narrow(1, dt_rank, d_state)?;
        let mut c = selection.narrow(1, dt_rank + d_state, d_state)?;
        if let Some([dt_norm, b_norm, c_norm]) = &self.selection_norms {
            (dt, b, c) = (dt_norm.forward(on, &dt)?, b_norm.forward(on, &b)?, c_norm.forward(on, &c)?);
        }
        let dt = self.dt_proj.forward(on, &dt.contiguous()?)?;

        let ssm = step.state(self.layer, &Kind::Ssm)?;
        let input = ScanInput { x: &x, dt: &dt, b: &b, c: &c, z: Some(&z) };
        let y = self.scan().run(on, &input, &ssm.pool, &ssm.view, &ssm.batch)?;
        ssm.keep([("x", &x), ("b", &b), ("dt", &dt)])?;
        Ok(self.out_proj.forward(on, &y)?)
    }

    fn replay(&self, on: &Run<'_>, kept: &ReplayLayer<'_>) -> Result<bool> {
        // Nothing is read out.
        replay(kept, self.layer, ["x", "b", "dt"], |[x, b, dt], state, batch| {
            let input = ScanInput { x, dt, b, c: b, z: None };
            self.scan().run(on, &input, state.pool, &state.view, batch)
        })
    }

    /// Each channel is a head whose keys are the elements of its state, and which has a value of one element.
    fn trace(&self, writer: &mut Writer, x: &str) -> Result<String> {
        let Mamba1Shape { d_inner, d_state, dt_rank, .. } = self.shape;
        let projected = self.in_proj.trace(writer, x)?;
        let [x, z] = writer.split(&projected, [d_inner; 2]);
        let x = self.conv.trace(writer, &x, self.layer)?;
        let selection = self.x_proj.trace(writer, &x)?;
        let [mut dt, mut b, mut c] = writer.split(&selection, [dt_rank, d_state, d_state]);
        if let Some([dt_norm, b_norm, c_norm]) = &self.selection_norms {
            (dt, b, c) = (dt_norm.trace(writer, &dt)?, b_norm.trace(writer, &b)?, c_norm.trace(writer, &c)?);
        }
        let dt = self.dt_proj.trace(writer, &dt)?;
        let (dt, bias) = (writer.wide(&dt), writer.wide_weight(&self.dt_bias)?);
        let dt = writer.node("Add", &[&dt, &bias]);
        let dt = writer.node("Softplus", &[&dt]);
        let a = writer.wide_weight(&self.a)?;
        let apart = writer.unsqueeze(&dt, &[3]);
        let decay = writer.node("Mul", &[&apart, &a]);
        let decay = writer.reshape(&decay, &[0, 0, (d_inner * d_state) as i64]);
        let (decay, dt) = (writer.narrow(&decay), writer.narrow(&dt));
        let qk = [c, b].map(|part| writer.repeated(&part, [1, d_state, d_inner]));
        let v = writer.node("Mul", &[&dt, &x]);
        let y = writer.recurrence(Recurrence {
            layer: self.layer,
            qk,
            v,
            decay: Decay::PerChannel(decay),
            beta: None,
            heads: d_inner,
            key_dim: d_state,
            value_dim: 1,
            scale: 1.0,
        });
        let d = writer.weight(&self.d)?;
        let direct = writer.node("Mul", &[&x, &d]);
        let y = writer.node("Add", &[&y, &direct]);
        let gate = writer.silu(&z);
        let y = writer.node("Mul", &[&y, &gate]);
        self.out_proj.trace(writer, &y)
    }

    fn caches(&self) -> Vec<CacheUse> {
        let Mamba1Shape { d_inner, d_state, d_conv, .. } = self.shape;
        vec![
            CacheUse::new(self.layer, Kind::Ssm, [d_inner, 1, d_state]),
            CacheUse::new(self.layer, Kind::CausalConv, [d_inner, d_conv.saturating_sub(1)]),
        ]
    }
}
