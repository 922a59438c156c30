//! Sums and gates on the CPU, each in one pass.

use super::output::Output;
use super::simd::{silu, vectorized};
use super::storage::Input;
use super::tasks::for_each;
use crate::error::Result;
use candle_core::{Shape, Tensor};
use rayon::prelude::*;

/// Elements that are worth a task of their own.
const ELEMS_PER_TASK: usize = 1 << 14;

pub(crate) fn silu_product(gate_up: &Tensor) -> Result<Tensor> {
    let (rows, both) = gate_up.dims2()?;
    let input = Input::new(gate_up)?;
    let source = input.rows();
    by_rows(
        (rows, both / 2),
        rows,
        gate_up,
        #[inline(always)]
        |row, out| {
            let (gate, up) = source.row(row).split_at(out.len());
            for ((out, &gate), &up) in out.iter_mut().zip(gate).zip(up) {
                *out = silu(gate) * up;
            }
        },
    )
}

pub(crate) fn weighted_sum(x: &Tensor, a: f32, y: &Tensor, b: f32) -> Result<Tensor> {
    let (rows, width) = x.dims2()?;
    let (x_in, y_in) = (Input::new(x)?, Input::new(y)?);
    let (x_rows, y_rows) = (x_in.rows(), y_in.rows());
    by_rows(
        (rows, width),
        rows,
        x,
        #[inline(always)]
        |row, out| {
            for ((out, &x), &y) in out.iter_mut().zip(x_rows.row(row)).zip(y_rows.row(row)) {
                *out = a * x + b * y;
            }
        },
    )
}

/// A tensor of `shape` in the dtype of `like`, each of its `rows` made by `body`, which must be `#[inline(always)]`.
#[inline(always)]
pub(super) fn by_rows(
    shape: impl Into<Shape>,
    rows: usize,
    like: &Tensor,
    body: impl Fn(usize, &mut [f32]) + Sync,
) -> Result<Tensor> {
    let shape = shape.into();
    let width = shape.elem_count() / rows.max(1);
    let target = Output::new(rows * width);
    let rows_per_task = (ELEMS_PER_TASK / width.max(1)).max(1);
    for_each((0..rows).into_par_iter().with_min_len(rows_per_task), |row| {
        // SAFETY: tasks have distinct rows.
        let out = unsafe { target.piece(row * width..(row + 1) * width) };
        vectorized(
            #[inline(always)]
            || body(row, out),
        );
    });
    // SAFETY: all rows.
    unsafe { target.into_tensor(shape, like) }
}
