//! Products with matrices that stay as they are stored; their blocks are widened piece by piece.

use super::blocks::{Block, Half, half, with_blocks};
#[cfg(target_arch = "x86_64")]
use super::linear::Rounded;
use super::linear::{Blocks, Numbers, side_by_side};
use super::output::Output;
use super::simd::vectorized;
use super::storage::Input;
use super::tasks::for_each;
use crate::error::Result;
#[cfg(target_arch = "x86_64")]
use crate::stored::Products;
use crate::stored::{BlockFormat, StoredMatrix};
use candle_core::{Device, Tensor};
use half::{bf16, f16};
use pulp::bytemuck::{Pod, cast_slice, cast_slice_mut, try_cast_slice};
use rayon::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};

/// Up to so many rows whole numbers are multiplied; with more, widening a weight once is faster.
#[cfg(target_arch = "x86_64")]
const ROUNDED_ROWS: usize = 256;

/// `x w^T` of rows `[rows, in]` and all of `parts` `[.., in]`, one after the other.
pub(crate) fn product(x: &Tensor, parts: &[StoredMatrix]) -> Result<Tensor> {
    let (rows, out_width) = (x.dim(0)?, parts.iter().map(StoredMatrix::rows).sum::<usize>());
    let input = Input::new(x)?;
    let target = Output::new(rows * out_width);
    let input = input.rows();
    #[cfg(target_arch = "x86_64")]
    let rounded = (rows <= ROUNDED_ROWS && parts.iter().any(is_fast)).then(|| Rounded::new(&input)).flatten();
    side_by_side(&input, &target, parts, StoredMatrix::rows, |part, task| {
        match part.format() {
            BlockFormat::F32 => {
                if let Some(weight) = single::<f32>(part) {
                    return task.multiply(weight);
                }
            }
            BlockFormat::F16 => {
                if let Some(weight) = single::<f16>(part) {
                    return task.multiply(weight);
                }
            }
            BlockFormat::Bf16 => {
                if let Some(weight) = single::<bf16>(part) {
                    return task.multiply(weight);
                }
            }
            _ => {}
        }
        #[cfg(target_arch = "x86_64")]
        if let Some(rounded) = rounded.as_ref().filter(|_| is_fast(part)) {
            return with_blocks!(part.format(), B => {
                task.multiply_rounded(Blocks { blocks: blocks::<B>(part), width: part.columns() }, rounded);
            });
        }
        with_blocks!(part.format(), B => task.multiply(Blocks { blocks: blocks::<B>(part), width: part.columns() }));
    });
    // SAFETY: the parts make up all columns of all rows.
    unsafe { target.into_tensor((rows, out_width), x) }
}

/// Whether rows are rounded for products with it.
#[cfg(target_arch = "x86_64")]
fn is_fast(part: &StoredMatrix) -> bool {
    part.products() == Products::Fast && part.format().elements() > 1
}

fn blocks<B: Block>(matrix: &StoredMatrix) -> &[B] {
    cast_slice(matrix.as_bytes())
}

/// Numbers that stand by themselves, where they lie as this machine has them.
fn single<T: Pod>(matrix: &StoredMatrix) -> Option<Numbers<'_, T>> {
    let data = try_cast_slice(matrix.as_bytes()).ok().filter(|_| cfg!(target_endian = "little"))?;
    Some(Numbers { data, in_width: matrix.columns() })
}

/// Fills `wide`, which is as long as whole blocks, with what `blocks` begin with.
#[inline(always)]
fn widen<B: Block>(blocks: &[B], half: impl Fn(Half) -> f32 + Copy, wide: &mut [f32]) {
    let numbers = cast_slice_mut::<f32, B::Numbers>(wide);
    for (numbers, block) in numbers.iter_mut().zip(blocks) {
        block.widen(half, numbers);
    }
}

/// All numbers as f32.
pub(crate) fn numbers(matrix: &StoredMatrix) -> Result<Tensor> {
    let mut numbers = vec![0f32; matrix.rows() * matrix.columns()];
    let tasks = numbers.par_chunks_mut(matrix.columns()).enumerate();
    for_each(tasks, |(row, numbers)| {
        with_blocks!(matrix.format(), B => {
            let blocks = &blocks::<B>(matrix)[row * matrix.columns() / B::ELEMENTS..];
            vectorized(#[inline(always)] || widen(blocks, half, numbers));
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
