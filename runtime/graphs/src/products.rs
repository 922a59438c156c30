//! Products of matrices and the softmax of rows, which several kernels are made of.

use cacheplan_kernels::Matrix;

use crate::layout::Layout;
use crate::nest::{Nest, Row};

/// The last two axes are multiplied, for each of the others.
pub(crate) fn matmul(
    a: &[f32],
    a_layout: &Layout,
    b: &[f32],
    b_layout: &Layout,
    out: &mut [f32],
) -> Result<(), String> {
    let last = a_layout.rank() - 2;
    let matrix = |layout: &Layout| {
        ([layout.shape[last], layout.shape[last + 1]], [layout.strides[last], layout.strides[last + 1]])
    };
    let ((a_shape, a_strides), (b_shape, b_strides)) = (matrix(a_layout), matrix(b_layout));
    let part = a_shape[0] * b_shape[1];
    let outer = [a_layout, b_layout].map(|layout| layout.permuted(&(0..last).collect::<Vec<_>>()));
    let (mut at, mut fits) = (0, true);
    Nest::new(&outer[0].shape, &[&outer[0], &outer[1]]).for_rows(|_, Row { starts, strides, len }| {
        for n in 0..len {
            let start = |operand: usize| starts[operand] + n * strides[operand];
            let a = a.get(start(0)..).and_then(|a| Matrix::new(a, a_shape, a_strides));
            let b = b.get(start(1)..).and_then(|b| Matrix::new(b, b_shape, b_strides));
            match a.zip(b) {
                Some((a, b)) => a.product(b, &mut out[at..at + part]),
                None => fits = false,
            }
            at += part;
        }
    });
    if fits { Ok(()) } else { Err("a matrix reaches beyond its numbers".to_owned()) }
}

/// Each row of `width` in place.
pub(crate) fn softmax_rows(rows: &mut [f32], width: usize) {
    for row in rows.chunks_exact_mut(width.max(1)) {
        let top = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        row.iter_mut().for_each(|x| *x = (*x - top).exp());
        let scale = 1.0 / row.iter().sum::<f32>();
        row.iter_mut().for_each(|x| *x *= scale);
    }
}
