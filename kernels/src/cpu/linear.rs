//! Products with a weight on the CPU, which is read as it is stored and widened on the way.

#[cfg(target_arch = "x86_64")]
mod rounded;
mod tile;
mod weight;

#[cfg(target_arch = "x86_64")]
use super::blocks::Groups;
use super::element::Element;
use super::matmul::{Matrix, multiply};
use super::output::Output;
use super::storage::{Input, Rows, with_pool};
use super::tasks::for_each;
use crate::error::{KernelError, Result};
use crate::ops::linear::shape;
use candle_core::{DType, Tensor};
use float8::F8E4M3;
use half::{bf16, f16};
use rayon::prelude::*;
use std::cell::RefCell;
use std::ops::Range;
use tile::{TASK, widened};

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

/// Up to so many rows an output is summed in one order, whatever the rows beside it. With more, tiles of the weight are
/// widened for a matrix product of another library, which is faster then.
pub(super) const MOST_ROWS: usize = 256;
/// Rows and outputs of a tile of that product, and inputs that it takes at a time. What it widens, a part in the number of
/// its rows of the work, stays in a near cache.
const TILE: [usize; 3] = [256, 128, 512];

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
    let (out_width, inputs) = (target.len() / rows, (rows <= MOST_ROWS).then(|| Inputs::new(x)));
    let [rows_at_once, outputs_at_once] = if inputs.is_some() { TASK } else { [TILE[0], TILE[1]] };
    // The rows of one piece of the weight come one after the other, while it is near.
    let groups = rows.div_ceil(rows_at_once);
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
                        x,
                        inputs: inputs.as_ref(),
                        rows: row..rows.min(row + rows_at_once),
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
    x: &'a Rows<'a>,
    /// The rows for tiles of our own, if they are few enough.
    inputs: Option<&'a Inputs>,
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
        let Self { x, inputs, rows, outputs, target, out_width, before } = self;
        let column = before + outputs.start;
        let write = |row: usize, products: &[f32]| {
            let at = row * out_width + column;
            // SAFETY: this task alone has these columns of these rows.
            unsafe { target.piece(at..at + products.len()) }.copy_from_slice(products);
        };
        match inputs {
            Some(inputs) => Task { inputs, rows, outputs }.multiply(weight, write),
            None => multiply_many(x, rows, weight, outputs, write),
        }
    }

    /// As [`multiply`](Self::multiply), with rows that are rounded.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn multiply_rounded<B: Groups>(self, weight: Blocks<'_, B>, x: &Rounded) {
        let Self { rows, outputs, target, out_width, before, .. } = self;
        thread_local! {
            static PRODUCTS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
        }
        let mut products = PRODUCTS.take();
        products.resize(rows.len() * outputs.len(), 0.0);
        x.multiply(weight, rows.clone(), outputs.clone(), &mut products);
        for (row, products) in rows.zip(products.chunks_exact(outputs.len())) {
            let at = row * out_width + before + outputs.start;
            // SAFETY: this task alone has these columns of these rows.
            unsafe { target.piece(at..at + products.len()) }.copy_from_slice(products);
        }
        PRODUCTS.set(products);
    }
}

/// Some outputs of many rows.
fn multiply_many(
    x: &Rows<'_>,
    rows: Range<usize>,
    weight: impl Weight,
    outputs: Range<usize>,
    mut each: impl FnMut(usize, &[f32]),
) {
    thread_local! {
        /// A tile of the weight, and one of the product.
        static TILES: RefCell<(Vec<f32>, Vec<f32>)> = const { RefCell::new((Vec::new(), Vec::new())) };
    }
    let [tile_rows, tile_outputs, depth] = TILE;
    let (mut wide, mut tile) = TILES.take();
    wide.resize(tile_outputs * depth, 0.0);
    tile.resize(tile_rows * tile_outputs, 0.0);
    for start in (0..x.width()).step_by(depth) {
        let depth = depth.min(x.width() - start);
        for (output, wide) in outputs.clone().zip(wide.chunks_exact_mut(depth)) {
            widened(weight, output, start, wide);
        }
        let a = Matrix::new(&x.row_and_after(rows.start)[start..], rows.len(), depth, x.stride());
        let b = Matrix::new(&wide, outputs.len(), depth, depth).transposed();
        multiply(&mut tile, tile_outputs, if start == 0 { 0.0 } else { 1.0 }, a, b);
    }
    for (row, products) in rows.zip(tile.chunks_exact(tile_outputs)) {
        each(row, &products[..outputs.len()]);
    }
    TILES.set((wide, tile));
}
