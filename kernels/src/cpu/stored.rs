//! Products with matrices that stay as they are stored; their blocks are widened piece by piece.

use super::blocks::{Block, with_blocks};
use super::linear::{MAX_STREAMED_ROWS, ROWS_PER_TASK, widened};
use super::simd::{CHUNK, StridedRows, block_products, vectorized};
use super::storage::{Input, Output, Rows};
use super::tasks::for_each;
use crate::error::Result;
use crate::stored::StoredMatrix;
use candle_core::{Device, Tensor};
use pulp::bytemuck::cast_slice;
use rayon::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};

/// `x w^T` of rows `[rows, in]` and all of `parts` `[.., in]`, one after the other.
pub(crate) fn product(x: &Tensor, parts: &[StoredMatrix]) -> Result<Tensor> {
    let (rows, out_width) = (x.dim(0)?, parts.iter().map(StoredMatrix::rows).sum::<usize>());
    let input = Input::new(x)?;
    let target = Output::new(rows * out_width);
    match rows {
        0 => {}
        1..=MAX_STREAMED_ROWS => streamed(&input.rows(), parts, &target, out_width),
        _ => {
            let mut start = 0;
            for part in parts {
                let columns = start..start + part.rows();
                start = columns.end;
                with_blocks!(part.format(), B => {
                    let (blocks, width) = (blocks::<B>(part), part.columns() / B::ELEMENTS);
                    widened(&input.rows(), &target, out_width, columns, |row, start, wide| {
                        widen(&blocks[row * width + start / B::ELEMENTS..], wide);
                    });
                });
            }
        }
    }
    // SAFETY: the parts make up all columns of all rows.
    unsafe { target.into_tensor((rows, out_width), x) }
}

fn blocks<B: Block>(matrix: &StoredMatrix) -> &[B] {
    cast_slice(matrix.as_bytes())
}

/// Fills `wide`, which is as long as whole blocks, with what `blocks` begin with.
fn widen<B: Block>(blocks: &[B], wide: &mut [f32]) {
    vectorized(
        #[inline(always)]
        || {
            let numbers = pulp::bytemuck::cast_slice_mut::<f32, B::Numbers>(wide);
            numbers.iter_mut().zip(blocks).for_each(|(numbers, block)| block.widen(numbers));
        },
    );
}

/// Few rows, which stay in the caches while the parts pass.
fn streamed(x: &Rows<'_>, parts: &[StoredMatrix], target: &Output, out_width: usize) {
    let (rows, width) = (x.len(), x.width());
    let a = StridedRows::new(x.row_and_after(0), x.stride(), width, rows);
    let tasks_of = |part: &StoredMatrix| part.rows().div_ceil(ROWS_PER_TASK);
    for_each((0..parts.iter().map(tasks_of).sum::<usize>()).into_par_iter(), |task| {
        let (mut task, mut before) = (task, 0);
        for part in parts {
            if task >= tasks_of(part) {
                task -= tasks_of(part);
                before += part.rows();
                continue;
            }
            let start = task * ROWS_PER_TASK;
            let count = ROWS_PER_TASK.min(part.rows() - start);
            let mut products = [0f32; MAX_STREAMED_ROWS * ROWS_PER_TASK];
            with_blocks!(part.format(), B => {
                let in_row = width / B::ELEMENTS;
                let blocks = &blocks::<B>(part)[start * in_row..][..count * in_row];
                block_products(a, blocks, &mut products, ROWS_PER_TASK);
            });
            for (row, products) in products.chunks_exact(ROWS_PER_TASK).take(rows).enumerate() {
                let at = row * out_width + before + start;
                // SAFETY: this task alone has these columns.
                unsafe { target.piece(at..at + count) }.copy_from_slice(&products[..count]);
            }
            return;
        }
    });
}

/// All numbers as f32.
pub(crate) fn numbers(matrix: &StoredMatrix) -> Result<Tensor> {
    let mut numbers = vec![0f32; matrix.rows() * matrix.columns()];
    let tasks = numbers.par_chunks_mut(matrix.columns()).enumerate();
    for_each(tasks, |(row, numbers)| {
        with_blocks!(matrix.format(), B => {
            widen(&blocks::<B>(matrix)[row * matrix.columns() / B::ELEMENTS..], numbers);
        });
    });
    Ok(Tensor::from_vec(numbers, (matrix.rows(), matrix.columns()), &Device::Cpu)?)
}

/// Whether all numbers are finite.
pub(crate) fn are_finite(matrix: &StoredMatrix) -> bool {
    let finite = AtomicBool::new(true);
    with_blocks!(matrix.format(), B => {
        for_each(blocks::<B>(matrix).par_chunks((1 << 20) / size_of::<B>()), |blocks| {
            let all = vectorized(#[inline(always)] || blocks.iter().fold(true, |all, block| all & block.is_finite()));
            finite.fetch_and(all, Ordering::Relaxed);
        });
    });
    finite.into_inner()
}

const _: () = assert!(CHUNK.is_multiple_of(256), "a chunk holds whole blocks of every format");
