//! Gated RMS normalisation.

use super::silu;

/// Normalises rows of `x` over groups; the gate comes before the norm, or after it.
pub(crate) fn gated_rms_norm(
    x: &[f64],
    z: &[f64],
    weight: &[f64],
    eps: f64,
    group: usize,
    norm_before_gate: bool,
) -> Vec<f64> {
    let mut out = Vec::new();
    for start in (0..x.len()).step_by(group) {
        let gated: Vec<f64> =
            (start..start + group).map(|i| if norm_before_gate { x[i] } else { x[i] * silu(z[i]) }).collect();
        let mean_square = gated.iter().map(|x| x * x).sum::<f64>() / group as f64;
        for (i, value) in (start..).zip(gated) {
            let normed = value / (mean_square + eps).sqrt() * weight[i % weight.len()];
            out.push(if norm_before_gate { normed * silu(z[i]) } else { normed });
        }
    }
    out
}
