//! The Mamba-1 selective scan on the CPU.

use super::output::Output;
use super::simd::{exp, silu};
use super::state::{Unit, for_each_unit, time_step};
use super::storage::Input;
use crate::error::Result;
use crate::ops::mamba1::Mamba1Scan;
use crate::ops::mamba2::ScanInput;
use crate::states::States;
use candle_core::Tensor;

const OP: &str = "mamba1_scan";

pub(crate) fn mamba1_scan(input: &ScanInput<'_>, layer: &Mamba1Scan<'_>, states: &States<'_>) -> Result<Tensor> {
    let States { view, batch, .. } = *states;
    let [outer, inner, d_state] = view.shape;
    let d_inner = outer * inner;
    let ScanInput { x, dt, b, c, z } = *input;
    let total_tokens = x.dim(0)?;
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
    target.clear_padding(batch.padding(), d_inner);
    let units = units(d_inner);
    let channels = d_inner / units;
    for_each_unit(
        OP,
        states,
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
                    let dt = time_step(&layer.time_step, dt.row(row)[channel], bias.map_or(0.0, |bias| bias[channel]));
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
