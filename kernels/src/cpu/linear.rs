//! Products with a weight on the CPU, which is read as it is stored and widened on the way.

#[cfg(target_arch = "x86_64")]
mod rounded;
mod tile;
mod weight;

#[cfg(target_arch = "x86_64")]
use super::blocks::Groups;
use super::element::Element;
use super::output::Output;
use super::storage::{Input, Rows, with_pool};
use super::tasks::for_each;
use crate::error::{KernelError, Result};
use crate::ops::linear::shape;
use candle_core::{DType, Tensor};
use float8::F8E4M3;
use half::{bf16, f16};
use rayon::prelude::*;
#[cfg(target_arch = "x86_64")]
use std::cell::RefCell;
use std::ops::Range;
use tile::TASK;

#[cfg(target_arch = "x86_64")]
pub(super) use rounded::Rounded;
pub(super) use tile::{Inputs, Task};
pub(super) use weight::{Blocks, Numbers, Weight};

const OP: &str = "linear";

pub(crate) fn linear(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    match weight.dtype() {
        DType::F32 => product::<f32>(x, weight),
        DType::F16 => product::<f16>(x, weight),
        DType::BF16 => product::<bf16>(x, weight),
        DType::F8E4M3 => product::<F8E4M3>(x, weight),
        found => Err(KernelError::DType { op: OP, operand: "weight", found, expected: "f32, f16, bf16 or f8e4m3" }),
    }
}

fn product<T: Element>(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let (shape, rows) = shape(x, weight)?;
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
    with_pool::<T, _>(OP, &weight.contiguous()?, |data| {
        let weight = Numbers { data, in_width };
        side_by_side(&input.rows(), &target, &[out_width], |&outputs| outputs, |_, task| task.multiply(weight));
        Ok(())
    })?;
    // SAFETY: the tasks make up all columns of all rows.
    unsafe { target.into_tensor(shape, x) }
}

/// So many rows are laid out anew at a time. More would take more memory, and read a weight less often than multiplying them takes.
const MOST_ROWS: usize = 256;

/// The products of all rows with parts of so many outputs each, which stand side by side in the target; `multiply` does
/// a task with its part.
pub(super) fn side_by_side<P: Sync>(
    x: &Rows<'_>,
    target: &Output,
    parts: &[P],
    outputs_of: impl Fn(&P) -> usize + Send + Sync,
    multiply: impl Fn(&P, OfTarget<'_>) + Send + Sync,
) {
    let rows = x.len();
    if rows == 0 || x.width() == 0 {
        // SAFETY: nobody else writes.
        unsafe { target.piece(0..target.len()) };
        return;
    }
    for first in (0..rows).step_by(MOST_ROWS) {
        side_by_side_of(x, first..rows.min(first + MOST_ROWS), target, parts, &outputs_of, &multiply);
    }
}

/// The products of some of the rows.
fn side_by_side_of<P: Sync>(
    x: &Rows<'_>,
    rows: Range<usize>,
    target: &Output,
    parts: &[P],
    outputs_of: &(impl Fn(&P) -> usize + Send + Sync),
    multiply: &(impl Fn(&P, OfTarget<'_>) + Send + Sync),
) {
    let (out_width, inputs) = (target.len() / x.len(), &Inputs::new(x, rows.clone()));
    let [rows_at_once, outputs_at_once] = TASK;
    // The rows of one piece of the weight come one after the other, while it is near.
    let groups = rows.len().div_ceil(rows_at_once);
    let tasks_of = |part: &P| outputs_of(part).div_ceil(outputs_at_once) * groups;
    for_each((0..parts.iter().map(tasks_of).sum::<usize>()).into_par_iter(), |mut task| {
        let mut before = 0;
        for part in parts {
            let outputs = outputs_of(part);
            if task < tasks_of(part) {
                let [row, output] = [task % groups * rows_at_once, task / groups * outputs_at_once];
                return multiply(
                    part,
                    OfTarget {
                        inputs,
                        first: rows.start,
                        rows: row..rows.len().min(row + rows_at_once),
                        outputs: output..outputs.min(output + outputs_at_once),
                        target,
                        out_width,
                        before,
                    },
                );
            }
            task -= tasks_of(part);
            before += outputs;
        }
    });
}

/// Some rows and outputs of a part, whose products are this task's alone.
pub(super) struct OfTarget<'a> {
    inputs: &'a Inputs,
    /// The row that these begin with, and some of them.
    first: usize,
    rows: Range<usize>,
    outputs: Range<usize>,
    target: &'a Output,
    out_width: usize,
    /// Columns of the target in front of the part's.
    before: usize,
}

impl OfTarget<'_> {
    #[inline(always)]
    pub(super) fn multiply(self, weight: impl Weight) {
        let Self { inputs, first, rows, outputs, target, out_width, before } = self;
        let column = before + outputs.start;
        let write = |row: usize, products: &[f32]| {
            let at = (first + row) * out_width + column;
            // SAFETY: this task alone has these columns of these rows.
            unsafe { target.keep(at, products) };
        };
        Task { inputs, rows, outputs }.multiply(weight, write);
    }

    /// As [`multiply`](Self::multiply), with rows that are rounded.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn multiply_rounded<B: Groups>(self, weight: Blocks<'_, B>, x: &Rounded) {
        let Self { first, rows, outputs, target, out_width, before, .. } = self;
        let rows = first + rows.start..first + rows.end;
        thread_local! {
            static PRODUCTS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
        }
        let mut products = PRODUCTS.take();
        products.resize(rows.len() * outputs.len(), 0.0);
        x.multiply(weight, rows.clone(), outputs.clone(), &mut products);
        for (row, products) in rows.zip(products.chunks_exact(outputs.len())) {
            let at = row * out_width + before + outputs.start;
            // SAFETY: this task alone has these columns of these rows.
            unsafe { target.keep(at, products) };
        }
        PRODUCTS.set(products);
    }
}
