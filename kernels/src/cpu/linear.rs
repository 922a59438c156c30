//! Products with a weight on the CPU, which is read as it is stored and widened on the way.

use super::matmul::{Matrix, multiply};
use super::simd::{StridedRows, streamed_products, vectorized};
use super::storage::{Element, Input, Output, Rows, with_pool};
use super::tasks::for_each;
use crate::error::Result;
use crate::ops::linear::shape;
use candle_core::{DType, Tensor};
use float8::F8E4M3;
use half::{bf16, f16};
use rayon::prelude::*;
use std::cell::RefCell;
use std::ops::Range;

const OP: &str = "linear";

/// Up to this many rows the weight is streamed once past all of them; more rows make a matrix product.
pub(super) const MAX_STREAMED_ROWS: usize = 8;
/// Rows of the weight that one task streams.
pub(super) const ROWS_PER_TASK: usize = 64;

pub(crate) fn linear(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let (shape, rows) = shape(x, weight)?;
    match weight.dtype() {
        DType::F32 if rows <= MAX_STREAMED_ROWS => product::<f32>(x, weight, rows, shape),
        DType::F16 => product::<f16>(x, weight, rows, shape),
        DType::BF16 => product::<bf16>(x, weight, rows, shape),
        DType::F8E4M3 => product::<F8E4M3>(x, weight, rows, shape),
        _ => Ok(x.reshape((rows, weight.dim(1)?))?.matmul(&weight.t()?)?.reshape(shape)?),
    }
}

fn product<T: Element>(x: &Tensor, weight: &Tensor, rows: usize, shape: Vec<usize>) -> Result<Tensor> {
    let (out_width, in_width) = weight.dims2()?;
    let flat;
    let x_rows = match x.rank() {
        2 => x,
        _ => {
            flat = x.reshape((rows, in_width))?;
            &flat
        }
    };
    let input = Input::new(x_rows)?;
    let target = Output::new(rows * out_width);
    with_pool::<T, _>(OP, &weight.contiguous()?, |weight| {
        match rows {
            0 => {}
            1..=MAX_STREAMED_ROWS => streamed(&input.rows(), weight, &target),
            _ => widened(&input.rows(), &target, out_width, 0..out_width, |row, start, wide| {
                vectorized(
                    #[inline(always)]
                    || {
                        let stored = &weight[row * in_width + start..];
                        wide.iter_mut().zip(stored).for_each(|(wide, stored)| *wide = stored.load());
                    },
                );
            }),
        }
        Ok(())
    })?;
    // SAFETY: the tasks make up all columns of all rows.
    unsafe { target.into_tensor(shape, x) }
}

/// Few rows, which stay in the caches while the weight passes.
fn streamed<T: Element>(x: &Rows<'_>, weight: &[T], target: &Output) {
    let (rows, in_width) = (x.len(), x.width());
    let out_width = target.len() / rows;
    let a = StridedRows::new(x.row_and_after(0), x.stride(), in_width, rows);
    for_each((0..out_width.div_ceil(ROWS_PER_TASK)).into_par_iter(), |task| {
        let start = task * ROWS_PER_TASK;
        let count = ROWS_PER_TASK.min(out_width - start);
        let b = StridedRows::new(&weight[start * in_width..], in_width, in_width, count);
        let mut products = [0f32; MAX_STREAMED_ROWS * ROWS_PER_TASK];
        streamed_products(a, b, &mut products, ROWS_PER_TASK);
        for (row, products) in products.chunks_exact(ROWS_PER_TASK).take(rows).enumerate() {
            let at = row * out_width + start;
            // SAFETY: this task alone has these columns.
            unsafe { target.piece(at..at + count) }.copy_from_slice(&products[..count]);
        }
    });
}

/// Rows of `x`, rows of the weight, and elements of either that a task multiplies at once. What it widens of the weight,
/// a part in the number of its rows of the work, stays in a near cache.
const TILE: [usize; 3] = [256, 128, 512];

/// Many rows: tiles of the weight as f32, multiplied one after the other. `widen` gives the elements of one of its rows
/// from a place on; their products are `columns` of the target's rows of `out_width`.
pub(super) fn widened(
    x: &Rows<'_>,
    target: &Output,
    out_width: usize,
    columns: Range<usize>,
    widen: impl Fn(usize, usize, &mut [f32]) + Send + Sync,
) {
    thread_local! {
        /// A tile of the weight, and one of the product.
        static TILES: RefCell<(Vec<f32>, Vec<f32>)> = const { RefCell::new((Vec::new(), Vec::new())) };
    }
    let (rows, in_width) = (x.len(), x.width());
    let [tile_rows, tile_columns, depth] = TILE;
    let across = columns.len().div_ceil(tile_columns);
    for_each((0..rows.div_ceil(tile_rows) * across).into_par_iter(), |task| {
        let (row, column) = (task / across * tile_rows, task % across * tile_columns);
        let (len, count) = (tile_rows.min(rows - row), tile_columns.min(columns.len() - column));
        let (mut wide, mut tile) = TILES.take();
        wide.resize(tile_columns * depth, 0.0);
        tile.resize(tile_rows * tile_columns, 0.0);
        for start in (0..in_width).step_by(depth) {
            let depth = depth.min(in_width - start);
            for (n, wide) in wide.chunks_exact_mut(depth).take(count).enumerate() {
                widen(column + n, start, wide);
            }
            let a = Matrix::new(&x.row_and_after(row)[start..], len, depth, x.stride());
            let keep = if start == 0 { 0.0 } else { 1.0 };
            multiply(&mut tile, tile_columns, keep, a, Matrix::new(&wide, count, depth, depth).transposed());
        }
        for (n, products) in tile.chunks_exact(tile_columns).take(len).enumerate() {
            let at = (row + n) * out_width + columns.start + column;
            // SAFETY: this task alone has these columns of these rows.
            unsafe { target.piece(at..at + count) }.copy_from_slice(&products[..count]);
        }
        TILES.set((wide, tile));
    });
}
