//! The Mamba-2 state space recurrence: what it is told, and what it refuses.

use super::check;
use crate::error::Result;
use crate::states::States;
use candle_core::Tensor;

const OP: &str = "mamba2_scan";

/// A layer's parameters and how its time step is made.
#[derive(Clone, Copy, Debug)]
pub struct Mamba2Scan<'a> {
    /// `[heads]` decay rates, negative (`-exp(A_log)`), in f32.
    pub a: &'a Tensor,
    /// `[heads]` direct term.
    pub d: Option<&'a Tensor>,
    /// How `dt` is made from the projection's output.
    pub time_step: TimeStep<'a>,
}

/// How the time step is made: `clamp(softplus(dt + bias), limit)`, the same in prefill and decode.
#[derive(Clone, Copy, Debug)]
pub struct TimeStep<'a> {
    /// Added before softplus, one per head or channel.
    pub bias: Option<&'a Tensor>,
    /// Whether softplus is applied.
    pub softplus: bool,
    /// Bounds after softplus: the config's `time_step_limit`, `(0, inf)` where it has none.
    pub limit: (f32, f32),
}

impl<'a> TimeStep<'a> {
    /// `softplus(dt + bias)` without bounds.
    pub fn new(bias: Option<&'a Tensor>) -> Self {
        Self { bias, softplus: true, limit: (0.0, f32::INFINITY) }
    }
}

/// The activations of one step.
#[derive(Clone, Copy, Debug)]
pub struct ScanInput<'a> {
    /// `[total_tokens, heads * head_dim]`.
    pub x: &'a Tensor,
    /// `[total_tokens, heads]`.
    pub dt: &'a Tensor,
    /// `[total_tokens, groups * d_state]`.
    pub b: &'a Tensor,
    /// `[total_tokens, groups * d_state]`.
    pub c: &'a Tensor,
    /// `[total_tokens, heads * head_dim]` gate: the output is multiplied by `silu(z)`.
    pub z: Option<&'a Tensor>,
}

/// Checks the operands of a call.
pub(super) fn check(layer: &Mamba2Scan<'_>, input: &ScanInput<'_>, states: &States<'_>) -> Result<()> {
    let States { pool, view, batch } = *states;
    let num_slots = view.check(OP, pool)?;
    let [heads, head_dim, d_state] = view.shape;
    let ScanInput { x, dt, b, c, z } = *input;
    let total_tokens = x.dim(0)?;
    batch.check(OP, total_tokens, num_slots)?;
    let groups = check::pieces(OP, "b", b, d_state)?;
    check::shared(OP, heads, "heads", groups, "groups")?;
    check::rows(OP, "x", x, total_tokens, heads * head_dim)?;
    check::rows(OP, "dt", dt, total_tokens, heads)?;
    check::rows(OP, "b", b, total_tokens, groups * d_state)?;
    check::rows(OP, "c", c, total_tokens, groups * d_state)?;
    if let Some(z) = z {
        check::rows(OP, "z", z, total_tokens, heads * head_dim)?;
    }
    check::vector(OP, "a", Some(layer.a), heads)?;
    check::vector(OP, "d", layer.d, heads)?;
    check::vector(OP, "dt bias", layer.time_step.bias, heads)
}
