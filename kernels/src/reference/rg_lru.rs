//! The real-gated linear recurrent unit of one sequence.

use super::{sigmoid, softplus};

/// Steps `state` `[width]` over `x`, its gates' logits (all `[tokens, width]`) and positions; returns `[tokens, width]`.
pub(crate) fn rg_lru(
    x: &[f64],
    input_gate: &[f64],
    recurrence_gate: &[f64],
    a_param: &[f64],
    positions: &[u32],
    state: &mut [f64],
) -> Vec<f64> {
    let width = state.len();
    let mut out = Vec::new();
    for (token, &position) in positions.iter().enumerate() {
        for channel in 0..width {
            let at = token * width + channel;
            let a = (-8.0 * sigmoid(recurrence_gate[at]) * softplus(a_param[channel])).exp();
            let gated = sigmoid(input_gate[at]) * x[at];
            state[channel] = if position == 0 { gated } else { a * state[channel] + (1.0 - a * a).sqrt() * gated };
            out.push(state[channel]);
        }
    }
    out
}
