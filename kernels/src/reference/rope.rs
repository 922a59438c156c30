//! Rotary position embedding of one head.

/// Rotates pairs of `x` by `position * frequency`; pair `i` is `(i, i + n)`, or `(2i, 2i + 1)` when interleaved.
pub(crate) fn rotate(x: &[f64], position: f64, frequencies: &[f64], interleaved: bool) -> Vec<f64> {
    let mut out = x.to_vec();
    for (i, frequency) in frequencies.iter().enumerate() {
        let (first, second) = if interleaved { (2 * i, 2 * i + 1) } else { (i, i + frequencies.len()) };
        let (sin, cos) = (position * frequency).sin_cos();
        out[first] = x[first] * cos - x[second] * sin;
        out[second] = x[first] * sin + x[second] * cos;
    }
    out
}
