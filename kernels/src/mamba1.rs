//! The Mamba-1 selective scan.

use crate::batch::StateBatch;
use crate::check;
use crate::error::Result;
use crate::mamba2::{ScanInput, TimeStep};
use crate::portable;
use crate::simd::{exp, silu};
use crate::state::{Unit, for_each_unit};
use crate::storage::{Input, Output};
use crate::view::StateLayerView;
use candle_core::Tensor;

const OP: &str = "mamba1_scan";

/// A layer's parameters and how its time step is made.
#[derive(Clone, Copy, Debug)]
pub struct Mamba1<'a> {
    /// `[d_inner, d_state]` decay rates, negative (`-exp(A_log)`), in f32.
    pub a: &'a Tensor,
    /// `[d_inner]` direct term.
    pub d: Option<&'a Tensor>,
    /// How `dt` is made from the projection's output; its bias is `[d_inner]`.
    pub time_step: TimeStep<'a>,
}

/// Steps each sequence's state over its tokens and reads it out.
///
/// The state is `[d_inner, 1, d_state]`; `x`, `dt` and `z` are `[total_tokens, d_inner]`, `b` and `c`
/// `[total_tokens, d_state]`. Per token and channel: `s = s * exp(a * dt) + dt * b * x` and `y = s . c + d * x`,
/// then the gate. Prefill and decode are the same call. Returns `[total_tokens, d_inner]` in the dtype of `x`.
pub fn mamba1_scan(
    input: &ScanInput<'_>,
    layer: &Mamba1<'_>,
    pool: &Tensor,
    view: &StateLayerView,
    batch: &StateBatch<'_>,
) -> Result<Tensor> {
    let num_slots = view.check(OP, pool)?;
    let [outer, inner, d_state] = view.shape;
    let d_inner = outer * inner;
    let ScanInput { x, dt, b, c, z } = *input;
    let total_tokens = x.dim(0)?;
    batch.check(OP, total_tokens, num_slots)?;
    for (operand, tensor) in [("x", Some(x)), ("dt", Some(dt)), ("z", z)] {
        if let Some(tensor) = tensor {
            check::rows(OP, operand, tensor, total_tokens, d_inner)?;
        }
    }
    check::rows(OP, "b", b, total_tokens, d_state)?;
    check::rows(OP, "c", c, total_tokens, d_state)?;
    check::rows(OP, "a", layer.a, d_inner, d_state)?;
    check::vector(OP, "d", layer.d, d_inner)?;
    check::vector(OP, "dt bias", layer.time_step.bias, d_inner)?;
    if !x.device().is_cpu() {
        return portable::mamba1::mamba1_scan(input, layer, pool, view, batch);
    }
    let (x_in, dt_in, b_in, c_in) = (Input::new(x)?, Input::new(dt)?, Input::new(b)?, Input::new(c)?);
    let (x, dt, b, c) = (x_in.rows(), dt_in.rows(), b_in.rows(), c_in.rows());
    let z_in = z.map(Input::new).transpose()?;
    let z = z_in.as_ref().map(Input::rows);
    let a_in = Input::new(layer.a)?;
    let a = a_in.rows();
    let d_in = Input::optional_flat(layer.d)?;
    let d = d_in.as_ref().map(|d| d.rows().row(0));
    let bias_in = Input::optional_flat(layer.time_step.bias)?;
    let bias = bias_in.as_ref().map(|bias| bias.rows().row(0));

    let target = Output::new(total_tokens * d_inner);
    batch.clear_padding(d_inner, &target);
    let units = units(d_inner);
    let channels = d_inner / units;
    for_each_unit(
        OP,
        pool,
        view,
        batch,
        units,
        #[inline(always)]
        |unit: Unit<'_>| {
            let first = unit.index * channels;
            for row in unit.rows {
                let start = row * d_inner + first;
                // SAFETY: this task alone has this row and these channels.
                let out = unsafe { target.piece(start..start + channels) };
                let (b, c) = (b.row(row), c.row(row));
                for (index, (state, out)) in unit.state.chunks_exact_mut(d_state).zip(&mut *out).enumerate() {
                    let channel = first + index;
                    let dt = layer.time_step.apply(dt.row(row)[channel], bias.map_or(0.0, |bias| bias[channel]));
                    let x_value = x.row(row)[channel];
                    let u = dt * x_value;
                    for (((state, &a), &b), &c) in state.iter_mut().zip(a.row(channel)).zip(b).zip(c) {
                        *state = *state * exp(a * dt) + u * b;
                        *out += *state * c;
                    }
                    *out += d.map_or(0.0, |d| d[channel] * x_value);
                }
                if let Some(z) = &z {
                    for (out, &z) in out.iter_mut().zip(&z.row(row)[first..]) {
                        *out *= silu(z);
                    }
                }
            }
        },
    )?;
    // SAFETY: the units and the padding make up all rows.
    unsafe { target.into_tensor((total_tokens, d_inner), input.x) }
}

/// Into how many equal stretches the channels are cut: about 64 channels each.
fn units(d_inner: usize) -> usize {
    (1..=64).rev().find(|&size| d_inner.is_multiple_of(size)).map_or(1, |size| d_inner / size)
}
