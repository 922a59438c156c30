//! A product with a weight.

/// `x w^T` of `x` `[rows, width]` and `weight` `[outputs, width]`.
pub(crate) fn linear(x: &[f64], weight: &[f64], width: usize) -> Vec<f64> {
    let dot = |x: &[f64], row: &[f64]| x.iter().zip(row).map(|(x, weight)| x * weight).sum();
    x.chunks_exact(width).flat_map(|x| weight.chunks_exact(width).map(move |row| dot(x, row))).collect()
}
