//! Products of a few rows with a weight: what a decode step spends its time on.

use crate::error::{KernelError, Result};
use crate::simd::{StridedRows, streamed_products};
use crate::storage::{Input, Output};
use candle_core::{DType, Tensor};
use rayon::prelude::*;

const OP: &str = "linear";

/// Up to this many rows the weight is streamed once past all of them; more rows make a matrix product.
const MAX_STREAMED_ROWS: usize = 8;
/// Rows of the weight that one task takes.
const ROWS_PER_TASK: usize = 64;

/// `x w^T` of `x` `[.., in]` and `weight` `[out, in]`, as `[.., out]` in the dtype of `x`.
///
/// A few f32 rows on the CPU, as in decode, read the weight at the speed of memory; everything else is candle's product.
pub fn linear(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let (out_width, in_width) = weight.dims2()?;
    let Some((&last, outer)) = x.dims().split_last() else {
        let expected = format!("[.., {in_width}]");
        return Err(KernelError::Shape { op: OP, operand: "x", found: Vec::new(), expected });
    };
    let rows = outer.iter().product::<usize>();
    if last != in_width {
        let (found, expected) = (x.dims().to_vec(), format!("[.., {in_width}]"));
        return Err(KernelError::Shape { op: OP, operand: "x", found, expected });
    }
    let streamed = x.device().is_cpu()
        && (1..=MAX_STREAMED_ROWS).contains(&rows)
        && weight.dtype() == DType::F32
        && weight.is_contiguous();
    let shape = [outer, &[out_width]].concat();
    if !streamed {
        let product = x.reshape((rows, in_width))?.matmul(&weight.t()?)?;
        return Ok(product.reshape(shape)?);
    }
    let flat;
    let x_rows = match x.rank() {
        2 => x,
        _ => {
            flat = x.reshape((rows, in_width))?;
            &flat
        }
    };
    let (x_in, weight_in) = (Input::new(x_rows)?, Input::new(weight)?);
    let (x_rows, weight_rows) = (x_in.rows(), weight_in.rows());
    let a = StridedRows::new(x_rows.row_and_after(0), x_rows.stride(), in_width, rows);
    let target = Output::new(rows * out_width);
    (0..out_width.div_ceil(ROWS_PER_TASK)).into_par_iter().for_each(|task| {
        let start = task * ROWS_PER_TASK;
        let count = ROWS_PER_TASK.min(out_width - start);
        let b = StridedRows::new(weight_rows.row_and_after(start), weight_rows.stride(), in_width, count);
        let mut products = [0f32; MAX_STREAMED_ROWS * ROWS_PER_TASK];
        streamed_products(a, b, &mut products, ROWS_PER_TASK);
        for (row, products) in products.chunks_exact(ROWS_PER_TASK).take(rows).enumerate() {
            let at = row * out_width + start;
            // SAFETY: this task alone has these columns.
            unsafe { target.piece(at..at + count) }.copy_from_slice(&products[..count]);
        }
    });
    // SAFETY: the tasks make up all columns.
    unsafe { target.into_tensor(shape, x) }
}
