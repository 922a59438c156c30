//! The Mamba-1 selective scan: what it is told, and what it refuses.

use super::check;
use super::mamba2::{ScanInput, TimeStep};
use crate::error::Result;
use crate::states::States;
use candle_core::Tensor;

const OP: &str = "mamba1_scan";

/// A layer's parameters and how its time step is made.
#[derive(Clone, Copy, Debug)]
pub struct Mamba1Scan<'a> {
    /// `[d_inner, d_state]` decay rates, negative (`-exp(A_log)`), in f32.
    pub a: &'a Tensor,
    /// `[d_inner]` direct term.
    pub d: Option<&'a Tensor>,
    /// How `dt` is made from the projection's output; its bias is `[d_inner]`.
    pub time_step: TimeStep<'a>,
}

/// Checks the operands of a call.
pub(super) fn check(layer: &Mamba1Scan<'_>, input: &ScanInput<'_>, states: &States<'_>) -> Result<()> {
    let States { pool, view, batch } = *states;
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
    check::vector(OP, "dt bias", layer.time_step.bias, d_inner)
}
