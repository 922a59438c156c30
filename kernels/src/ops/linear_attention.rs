//! Linear attention with a matrix state (gated delta nets, Kimi delta attention, lightning attention): what it is told,
//! and what it refuses.

use super::check;
use crate::error::{KernelError, Result};
use crate::states::States;
use candle_core::Tensor;

const OP: &str = "linear_attention";

/// How much of the state is left before a token is added, as a logarithm (at most 0).
#[derive(Clone, Copy, Debug)]
pub enum StateDecay<'a> {
    /// `[heads]`, the same at every token: lightning attention's negative slopes.
    Fixed(&'a [f32]),
    /// `[total_tokens, heads]`: gated delta rule.
    PerHead(&'a Tensor),
    /// `[total_tokens, heads * key_dim]`, one per key channel: Kimi delta attention.
    PerChannel(&'a Tensor),
}

/// The activations of one step.
#[derive(Clone, Copy, Debug)]
pub struct LinearAttentionScan<'a> {
    /// `[total_tokens, key_heads * key_dim]`.
    pub q: &'a Tensor,
    /// `[total_tokens, key_heads * key_dim]`.
    pub k: &'a Tensor,
    /// `[total_tokens, heads * value_dim]`; consecutive `heads / key_heads` value heads share a key head.
    pub v: &'a Tensor,
    /// The decay.
    pub decay: StateDecay<'a>,
    /// `[total_tokens, heads]` write strength of the delta rule. None adds `k (x) v` as it is.
    pub beta: Option<&'a Tensor>,
    /// Factor on `q`.
    pub scale: f32,
    /// Whether each head of `q` and `k` is divided by its length, `sqrt(sum of squares + 1e-6)`, first.
    pub l2_norm: bool,
}

/// Checks the operands of a call.
pub(super) fn check(input: &LinearAttentionScan<'_>, states: &States<'_>) -> Result<()> {
    let States { pool, view, batch } = *states;
    let num_slots = view.check(OP, pool)?;
    let [heads, key_dim, value_dim] = view.shape;
    let LinearAttentionScan { q, k, v, .. } = *input;
    let total_tokens = v.dim(0)?;
    batch.check(OP, total_tokens, num_slots)?;
    let key_heads = check::pieces(OP, "k", k, key_dim)?;
    check::shared(OP, heads, "value heads", key_heads, "key heads")?;
    check::rows(OP, "q", q, total_tokens, key_heads * key_dim)?;
    check::rows(OP, "k", k, total_tokens, key_heads * key_dim)?;
    check::rows(OP, "v", v, total_tokens, heads * value_dim)?;
    if let Some(beta) = input.beta {
        check::rows(OP, "beta", beta, total_tokens, heads)?;
    }
    match input.decay {
        StateDecay::Fixed(decay) if decay.len() != heads => {
            let reason = format!("{} decays for {heads} heads", decay.len());
            Err(KernelError::Argument { op: OP, reason })
        }
        StateDecay::Fixed(_) => Ok(()),
        StateDecay::PerHead(decay) => check::rows(OP, "decay", decay, total_tokens, heads),
        StateDecay::PerChannel(decay) => check::rows(OP, "decay", decay, total_tokens, heads * key_dim),
    }
}
