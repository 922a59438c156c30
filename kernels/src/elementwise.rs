//! What stands between the products of a layer: sums and gates, each in one pass.

use crate::check;
use crate::error::{KernelError, Result};
use crate::portable;
use crate::simd::{silu, vectorized};
use crate::storage::{Input, Output};
use candle_core::{Shape, Tensor};
use rayon::prelude::*;

/// Elements that are worth a task of their own.
const ELEMS_PER_TASK: usize = 1 << 14;

/// `silu(gate) * up` of rows `[.., 2 * width]` that hold the gate first, as `[.., width]`.
pub fn silu_product(gate_up: &Tensor) -> Result<Tensor> {
    const OP: &str = "silu_product";
    let (rows, both) = gate_up.dims2()?;
    if both % 2 != 0 {
        let expected = "[rows, an even number]".to_owned();
        return Err(KernelError::Shape { op: OP, operand: "gate_up", found: gate_up.dims().to_vec(), expected });
    }
    if !gate_up.device().is_cpu() {
        return portable::elementwise::silu_product(gate_up);
    }
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

/// `a * x + b * y` of `[rows, width]`.
pub fn weighted_sum(x: &Tensor, a: f32, y: &Tensor, b: f32) -> Result<Tensor> {
    const OP: &str = "weighted_sum";
    let (rows, width) = x.dims2()?;
    check::rows(OP, "y", y, rows, width)?;
    if !x.device().is_cpu() {
        return portable::elementwise::weighted_sum(x, a, y, b);
    }
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
pub(crate) fn by_rows(
    shape: impl Into<Shape>,
    rows: usize,
    like: &Tensor,
    body: impl Fn(usize, &mut [f32]) + Sync,
) -> Result<Tensor> {
    let shape = shape.into();
    let width = shape.elem_count() / rows.max(1);
    let target = Output::new(rows * width);
    let rows_per_task = (ELEMS_PER_TASK / width.max(1)).max(1);
    (0..rows).into_par_iter().with_min_len(rows_per_task).for_each(|row| {
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
