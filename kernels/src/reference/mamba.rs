//! The state space recurrence of Mamba-1 and Mamba-2, of one sequence.

use super::{silu, softplus};

/// The sizes, parameters and activations of one scan.
///
/// Mamba-1 is the case of one channel per head (`head_dim` 1) and one group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MambaCase<'a> {
    /// Heads.
    pub(crate) heads: usize,
    /// Channels of a head.
    pub(crate) head_dim: usize,
    /// State elements of a channel.
    pub(crate) d_state: usize,
    /// Groups that share `b` and `c`.
    pub(crate) groups: usize,
    /// `[tokens, heads, head_dim]`.
    pub(crate) x: &'a [f64],
    /// `[tokens, heads]`.
    pub(crate) dt: &'a [f64],
    /// `[heads]` (Mamba-2) or `[heads, d_state]` (Mamba-1).
    pub(crate) a: &'a [f64],
    /// `[tokens, groups, d_state]`.
    pub(crate) b: &'a [f64],
    /// `[tokens, groups, d_state]`.
    pub(crate) c: &'a [f64],
    /// `[heads]`.
    pub(crate) d: Option<&'a [f64]>,
    /// `[tokens, heads, head_dim]`.
    pub(crate) z: Option<&'a [f64]>,
    /// `[heads]`.
    pub(crate) dt_bias: Option<&'a [f64]>,
    /// Bounds of the time step after softplus.
    pub(crate) dt_limit: (f64, f64),
}

/// Steps `state` `[heads, head_dim, d_state]` and returns `[tokens, heads, head_dim]`.
pub(crate) fn mamba(case: &MambaCase<'_>, state: &mut [f64]) -> Vec<f64> {
    let MambaCase { heads, head_dim, d_state, groups, .. } = *case;
    let tokens = case.dt.len() / heads;
    let mut out = Vec::new();
    for token in 0..tokens {
        for head in 0..heads {
            let group = head * groups / heads;
            let bias = case.dt_bias.map_or(0.0, |bias| bias[head]);
            let dt = softplus(case.dt[token * heads + head] + bias).clamp(case.dt_limit.0, case.dt_limit.1);
            for channel in 0..head_dim {
                let at = (token * heads + head) * head_dim + channel;
                let mut y = 0.0;
                for n in 0..d_state {
                    let a = if case.a.len() == heads { case.a[head] } else { case.a[head * d_state + n] };
                    let s = &mut state[(head * head_dim + channel) * d_state + n];
                    *s = *s * (a * dt).exp() + dt * case.b[(token * groups + group) * d_state + n] * case.x[at];
                    y += *s * case.c[(token * groups + group) * d_state + n];
                }
                y += case.d.map_or(0.0, |d| d[head] * case.x[at]);
                out.push(y * case.z.map_or(1.0, |z| silu(z[at])));
            }
        }
    }
    out
}
