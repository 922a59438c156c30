//! Causal depthwise convolution of one sequence.

use super::silu;

/// Convolves `x` `[tokens, channels]` with `weight` `[channels, width]`, the layout of a checkpoint.
///
/// `history` `[width - 1, channels]` holds the inputs before the first token, the oldest first, and is moved on.
pub(crate) fn causal_conv1d(
    x: &[f64],
    weight: &[f64],
    bias: Option<&[f64]>,
    history: &mut Vec<f64>,
    width: usize,
    with_silu: bool,
) -> Vec<f64> {
    let channels = weight.len() / width;
    let mut all = history.clone();
    all.extend_from_slice(x);
    let mut out = Vec::new();
    for token in 0..x.len() / channels {
        for channel in 0..channels {
            let mut sum = bias.map_or(0.0, |bias| bias[channel]);
            for tap in 0..width {
                sum += weight[channel * width + tap] * all[(token + tap) * channels + channel];
            }
            out.push(if with_silu { silu(sum) } else { sum });
        }
    }
    *history = all[all.len() - (width - 1) * channels..].to_vec();
    out
}
