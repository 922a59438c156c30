//! The real-gated linear recurrent unit of Griffin and RecurrentGemma: what it is told, and what it refuses.

use super::check;
use crate::error::{KernelError, Result};
use crate::numbers::Numbers;
use crate::states::States;
use candle_core::Tensor;

const OP: &str = "rg_lru";

/// The published constant that sharpens the recurrence gate.
pub(crate) const SHARPNESS: f32 = 8.0;

/// The activations and the parameter of one step.
#[derive(Clone, Copy, Debug)]
pub struct RgLruScan<'a> {
    /// `[total_tokens, width]`.
    pub x: &'a Tensor,
    /// `[total_tokens, width]` logits of the input gate.
    pub input_gate: &'a Tensor,
    /// `[total_tokens, width]` logits of the recurrence gate.
    pub recurrence_gate: &'a Tensor,
    /// `[width]`, what the checkpoint calls `recurrent_param`.
    pub a_param: &'a Tensor,
    /// `[total_tokens]`; position 0 starts a document: the state is dropped and the input enters unscaled.
    pub positions: Numbers<'a, u32>,
}

/// Checks the operands of a call.
pub(super) fn check(input: &RgLruScan<'_>, states: &States<'_>) -> Result<()> {
    let States { pool, view, batch } = *states;
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
    Ok(())
}
