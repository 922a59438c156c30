//! The real-gated linear recurrent unit on the CPU.

use super::output::Output;
use super::simd::{exp, sigmoid, softplus};
use super::state::{Unit, for_each_unit};
use super::storage::Input;
use crate::error::Result;
use crate::ops::rg_lru::{RgLruScan, SHARPNESS};
use crate::states::States;
use candle_core::Tensor;
use std::cell::RefCell;

const OP: &str = "rg_lru";

pub(crate) fn rg_lru(input: &RgLruScan<'_>, states: &States<'_>) -> Result<Tensor> {
    let States { view, batch, .. } = *states;
    let width = view.elems();
    let total_tokens = input.x.dim(0)?;
    let (x_in, i_in, r_in) = (Input::new(input.x)?, Input::new(input.input_gate)?, Input::new(input.recurrence_gate)?);
    let (x, i, r) = (x_in.rows(), i_in.rows(), r_in.rows());
    let a_in = Input::flat(input.a_param)?;
    thread_local! {
        // Kept, so that a decode step allocates nothing.
        static RATES: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
    }
    let mut rates = RATES.take();
    rates.clear();
    rates.extend(a_in.rows().row(0).iter().map(|&a| -SHARPNESS * softplus(a)));
    let target = Output::new(total_tokens * width);
    target.clear_padding(batch.padding(), width);
    let units = (1..=256).rev().find(|&size| width.is_multiple_of(size)).map_or(1, |size| width / size);
    let channels = width / units;
    for_each_unit(
        OP,
        states,
        units,
        #[inline(always)]
        |unit: Unit<'_>| {
            let span = unit.index * channels..(unit.index + 1) * channels;
            let rates = &rates[span.clone()];
            for row in unit.rows {
                let begins = input.positions[row] == 0;
                let (x, i, r) = (&x.row(row)[span.clone()], &i.row(row)[span.clone()], &r.row(row)[span.clone()]);
                let start = row * width + span.start;
                // SAFETY: this task alone has this row and these channels.
                let out = unsafe { target.piece(start..start + channels) };
                for channel in 0..channels {
                    let log_a = rates[channel] * sigmoid(r[channel]);
                    let gated = x[channel] * sigmoid(i[channel]);
                    unit.state[channel] = if begins {
                        gated
                    } else {
                        exp(log_a) * unit.state[channel] + (1.0 - exp(2.0 * log_a)).sqrt() * gated
                    };
                    out[channel] = unit.state[channel];
                }
            }
        },
    )?;
    RATES.set(rates);
    // SAFETY: the units and the padding make up all rows.
    unsafe { target.into_tensor((total_tokens, width), input.x) }
}
