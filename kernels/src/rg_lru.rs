//! The real-gated linear recurrent unit of Griffin and RecurrentGemma.

use crate::batch::StateBatch;
use crate::check;
use crate::error::{KernelError, Result};
use crate::portable;
use crate::simd::{exp, sigmoid, softplus};
use crate::state::{Unit, for_each_unit};
use crate::storage::{Input, Output};
use crate::view::StateLayerView;
use candle_core::Tensor;
use std::cell::RefCell;

const OP: &str = "rg_lru";

/// The published constant that sharpens the recurrence gate.
pub(crate) const SHARPNESS: f32 = 8.0;

/// The activations and the parameter of one step.
#[derive(Clone, Copy, Debug)]
pub struct RgLru<'a> {
    /// `[total_tokens, width]`.
    pub x: &'a Tensor,
    /// `[total_tokens, width]` logits of the input gate.
    pub input_gate: &'a Tensor,
    /// `[total_tokens, width]` logits of the recurrence gate.
    pub recurrence_gate: &'a Tensor,
    /// `[width]`, what the checkpoint calls `recurrent_param`.
    pub a_param: &'a Tensor,
    /// `[total_tokens]`; position 0 starts a document: the state is dropped and the input enters unscaled.
    pub positions: &'a [u32],
}

/// Steps each sequence's state `[width, 1, 1]` over its tokens and returns it after each of them.
///
/// With `log a = -8 * sigmoid(recurrence_gate) * softplus(a_param)`:
/// `h = a * h + sqrt(1 - a^2) * sigmoid(input_gate) * x`. Returns `[total_tokens, width]` in the dtype of `x`.
pub fn rg_lru(input: &RgLru<'_>, pool: &Tensor, view: &StateLayerView, batch: &StateBatch<'_>) -> Result<Tensor> {
    let num_slots = view.check(OP, pool)?;
    let width = view.elems();
    let total_tokens = input.x.dim(0)?;
    batch.check(OP, total_tokens, num_slots)?;
    check::rows(OP, "x", input.x, total_tokens, width)?;
    check::rows(OP, "input_gate", input.input_gate, total_tokens, width)?;
    check::rows(OP, "recurrence_gate", input.recurrence_gate, total_tokens, width)?;
    check::vector(OP, "a_param", Some(input.a_param), width)?;
    if input.positions.len() != total_tokens {
        let reason = format!("{} positions for {total_tokens} tokens", input.positions.len());
        return Err(KernelError::Argument { op: OP, reason });
    }
    if !input.x.device().is_cpu() {
        return portable::rg_lru::rg_lru(input, pool, view, batch);
    }
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
    batch.clear_padding(width, &target);
    let units = (1..=256).rev().find(|&size| width.is_multiple_of(size)).map_or(1, |size| width / size);
    let channels = width / units;
    for_each_unit(
        OP,
        pool,
        view,
        batch,
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
