//! Products of rows with a weight, in tiles that stay in registers.
//!
//! An output is summed in one order: a vector of partial sums takes the inputs from the first to the last, one
//! multiply-add each, and its lanes are added at the end. How many rows there are, and which thread has which outputs,
//! decides where partial sums wait, never what is added to them.

use super::weight::{Ahead, LINE, Weight};
use crate::cpu::element::Element;
use crate::cpu::simd::{dispatch, prefetch_at, prefetch_far};
use crate::cpu::storage::Rows;
use crate::cpu::tasks::for_each;
use pulp::bytemuck::{Pod, Zeroable, cast_slice, cast_slice_mut};
use pulp::{Simd, WithSimd};
use rayon::prelude::*;
use std::cell::RefCell;
use std::ops::Range;

/// Rows, and outputs, of a task.
pub(super) const TASK: [usize; 2] = [64, 48];
/// The most rows of a tile and its outputs, where registers are many, and inputs that are multiplied at a time: so many that
/// sums seldom wait in memory and an output is read in long stretches, so few that the rows of a task stay in a near cache.
/// Whole blocks of every format. Half as many of both where registers are few.
const TILE: [usize; 2] = [8, 3];
const SEGMENT: usize = 2048;
/// Inputs that are widened at a time where compilers do it, and how many bytes ahead of its use an output is asked for.
const PIECE: usize = 256;
const AHEAD: usize = 16384;

/// A cache line. Buffers are made of them, so that no vector straddles two.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; LINE]);

// SAFETY: floats without padding, any bits of which will do.
unsafe impl Zeroable for Line {}
// SAFETY: as above.
unsafe impl Pod for Line {}

/// `len` numbers in a buffer that only grows, their values whatever they were.
fn room(lines: &mut Vec<Line>, len: usize) -> &mut [f32] {
    let needed = len.div_ceil(LINE);
    if lines.len() < needed {
        lines.resize(needed, Line::zeroed());
    }
    &mut cast_slice_mut(lines)[..len]
}

thread_local! {
    /// Of the thread that calls for products.
    static INPUTS: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
    /// Partial sums, widened outputs, and finished products.
    static SCRATCH: RefCell<[Vec<Line>; 3]> = const { RefCell::new([const { Vec::new() }; 3]) };
}

/// Rows of a task cut into segments, which lie one after the other and end in zeros. The rows of a tile take turns with every line,
/// so that a tile reads them as one stream: a cache has room for that, wherever rows and outputs lie.
pub(in crate::cpu) struct Inputs {
    lines: Vec<Line>,
    rows: usize,
    width: usize,
    form: Form,
}

impl Inputs {
    /// Lays out some of the rows.
    pub(in crate::cpu) fn new(x: &Rows<'_>, rows: Range<usize>) -> Self {
        Self::in_form(x, rows, dispatch(OfMachine))
    }

    fn in_form(x: &Rows<'_>, of: Range<usize>, mut form: Form) -> Self {
        let (rows, width) = (of.len(), x.width());
        // A narrow row takes no more than it has, and of one alone all inputs stay near.
        let whole = width.max(1).next_multiple_of(PIECE);
        form.segment = if rows == 1 { whole } else { form.segment.min(whole) };
        let mut inputs = Self { lines: INPUTS.take(), rows, width, form };
        let mut lines = std::mem::take(&mut inputs.lines);
        let segment = form.segment;
        let padded = width.next_multiple_of(segment);
        let groups = room(&mut lines, rows * padded).par_chunks_mut((TASK[0] * padded).max(1));
        for_each(groups.enumerate(), |(group, target)| {
            let rows = group * TASK[0]..rows.min((group + 1) * TASK[0]);
            let segments = target.par_chunks_exact_mut(rows.len() * segment).enumerate();
            for_each(segments.with_min_len(16usize.div_ceil(rows.len())), |(nth, target)| {
                let mut rest = target;
                for block in inputs.blocks(rows.clone()) {
                    let of_block;
                    (of_block, rest) = rest.split_at_mut(block.len() * segment);
                    // Line after line, so that what is written is one stream.
                    let lines = of_block.as_chunks_mut::<LINE>().0.chunks_exact_mut(block.len());
                    for (at, lines) in (nth * segment..).step_by(LINE).zip(lines) {
                        for (row, line) in block.clone().zip(lines) {
                            let own = &x.row(of.start + row)[at.min(width)..];
                            if let Some(whole) = own.first_chunk() {
                                *line = *whole;
                            } else {
                                *line = [0.0; LINE];
                                line[..own.len()].copy_from_slice(own);
                            }
                        }
                    }
                }
            });
        });
        inputs.lines = lines;
        inputs
    }

    /// The rows of each tile, of those of a few tasks.
    fn blocks(&self, rows: Range<usize>) -> impl Iterator<Item = Range<usize>> + Clone + use<> {
        let most = self.form.rows;
        rows.clone().step_by(TASK[0]).flat_map(move |first| {
            let rows = TASK[0].min(rows.end - first);
            let blocks = rows.div_ceil(most);
            (0..blocks).map(move |block| first + block * rows / blocks..first + (block + 1) * rows / blocks)
        })
    }

    /// The rows of a tile from `input` on, as far as the segment goes.
    #[inline(always)]
    fn of_block(&self, input: usize, block: Range<usize>) -> &[f32] {
        let segment = self.form.segment;
        let group = block.start / TASK[0] * TASK[0];
        let rows = TASK[0].min(self.rows - group);
        let padded = self.width.next_multiple_of(segment);
        let start = group * padded + (input / segment * rows + block.start - group) * segment;
        let lines: &[f32] = cast_slice(&self.lines);
        &lines[start + input % segment * block.len()..start + segment * block.len()]
    }
}

/// The most rows of a tile, and inputs of a segment.
#[derive(Clone, Copy)]
struct Form {
    rows: usize,
    segment: usize,
}

struct OfMachine;

impl WithSimd for OfMachine {
    type Output = Form;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> Form {
        let part = if S::REGISTER_COUNT < 32 { 2 } else { 1 };
        Form { rows: TILE[0] / part, segment: SEGMENT / part }
    }
}

impl Drop for Inputs {
    fn drop(&mut self) {
        INPUTS.set(std::mem::take(&mut self.lines));
    }
}

/// Some outputs of some rows.
#[derive(Clone)]
pub(in crate::cpu) struct Task<'a> {
    pub(in crate::cpu) inputs: &'a Inputs,
    pub(in crate::cpu) rows: Range<usize>,
    pub(in crate::cpu) outputs: Range<usize>,
}

impl Task<'_> {
    /// Multiplies, and hands over each row's products.
    pub(in crate::cpu) fn multiply(self, weight: impl Weight, mut each: impl FnMut(usize, &[f32])) {
        let mut scratch = SCRATCH.take();
        let (rows, outputs) = (self.rows.clone(), self.outputs.len());
        dispatch(Products { task: self, weight, scratch: &mut scratch });
        let products = room(&mut scratch[2], rows.len() * outputs).chunks_exact(outputs);
        rows.zip(products).for_each(|(row, products)| each(row, products));
        SCRATCH.set(scratch);
    }
}

struct Products<'a, W> {
    task: Task<'a>,
    weight: W,
    scratch: &'a mut [Vec<Line>; 3],
}

impl<W: Weight> WithSimd for Products<'_, W> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { task, weight, scratch: [sums, wide, products] } = self;
        let Task { inputs, rows, outputs } = task.clone();
        let products = room(products, rows.len() * outputs.len());
        // Several outputs at once, so that none waits for its sums: those of a tile, or blocks in registers.
        let (narrow, widens) = (S::REGISTER_COUNT < 32, weight.widens_in_vectors::<S>());
        match (rows.len(), weight.stored(0, 0, 0).is_some()) {
            (1, false) if widens => return in_registers::<_, _, 1, 4>(simd, task, weight, products),
            (2, false) if widens && narrow => return in_registers::<_, _, 2, 2>(simd, task, weight, products),
            (2, false) if widens => return in_registers::<_, _, 2, 4>(simd, task, weight, products),
            (3..=8, false) if widens && !narrow => return many_in_registers(simd, task, weight, products),
            (1, false) => return few_rows::<_, _, 1>(simd, task, weight, products),
            (2, false) => return few_rows::<_, _, 2>(simd, task, weight, products),
            _ => {}
        }
        let (width, across, segment) = (inputs.width, TILE[1], inputs.form.segment.min(SEGMENT));
        let (blocks, count) = (inputs.blocks(rows.clone()), inputs.blocks(rows.clone()).count());
        let panels = outputs.len().div_ceil(across);
        let sums = S::as_mut_simd_f32s(room(sums, panels * rows.len() * across * S::F32_LANES)).0;
        let wide = room(wide, across * SEGMENT);
        // 16 bits become wide in registers sooner than wide numbers are written and read again; 8 bits where it is but once.
        let in_registers = size_of::<W::Stored>() > 1 || count == 1;
        for start in (0..width).step_by(segment) {
            let len = segment.min(width - start);
            let padded = len.next_multiple_of(LINE);
            let share = bytes(weight, len) / count;
            let step = share.div_ceil(padded / LINE);
            let far = (AHEAD / (across * bytes(weight, len))).clamp(1, panels);
            for panel in 0..panels {
                // The last panel may have its last output more than once.
                let output = |n: usize| outputs.start + (panel * across + n).min(outputs.len() - 1);
                let direct = in_registers && len == padded && weight.stored(output(0), start, len).is_some();
                if !direct {
                    widen(simd, weight, [0, 1, 2].map(output), start, len, wide);
                }
                // What comes then: outputs behind these, the next segment, or the task behind this one.
                let after = panel + far;
                let next = |n: usize| match start + segment {
                    _ if after < panels => weight.address(outputs.start + after * across + n, start),
                    next if next < width => weight.address(outputs.start + (after - panels) * across + n, next),
                    _ => weight.address(outputs.end + (after - panels) * across + n, 0),
                };
                let mut next = [0, 1, 2].map(next);
                let sums = &mut sums[panel * rows.len() * across..][..rows.len() * across];
                for block in blocks.clone() {
                    let sums = &mut sums[(block.start - rows.start) * across..(block.end - rows.start) * across];
                    let x = &inputs.of_block(start, block.clone())[..padded * block.len()];
                    let tile = Tile { x, next, step, goes_on: start > 0 };
                    if direct {
                        let w = [0, 1, 2].map(|n| weight.stored(output(n), start, len).unwrap_or_default());
                        tile.multiply(simd, w, sums);
                    } else {
                        tile.multiply(simd, [0, 1, 2].map(|n| &wide[n * SEGMENT..][..padded]), sums);
                    }
                    next = next.map(|next| next.wrapping_add(share));
                }
            }
        }
        for (panel, sums) in sums.chunks_exact(rows.len() * across).enumerate() {
            for (row, sums) in sums.chunks_exact(across).enumerate() {
                let of_row = &mut products[row * outputs.len()..][..outputs.len()];
                for (product, &sum) in of_row[panel * across..].iter_mut().zip(sums) {
                    *product = simd.reduce_sum_f32s(sum);
                }
            }
        }
    }
}

/// A segment of a few rows.
#[derive(Clone, Copy)]
struct Tile<'a> {
    /// Lines of rows in turns.
    x: &'a [f32],
    /// What to ask for meanwhile, so many bytes further with each line.
    next: [*const u8; TILE[1]],
    step: usize,
    /// Whether there are sums of earlier segments.
    goes_on: bool,
}

impl Tile<'_> {
    /// Adds the products with a segment of a few outputs to `sums`, row after row.
    fn multiply<S: Simd, T: Element>(self, simd: S, w: [&[T]; TILE[1]], sums: &mut [S::f32s]) {
        let many = S::REGISTER_COUNT >= 32;
        match sums.len() / TILE[1] {
            1 => multiply::<S, T, 1>(simd, self, w, sums),
            2 => multiply::<S, T, 2>(simd, self, w, sums),
            3 => multiply::<S, T, 3>(simd, self, w, sums),
            4 => multiply::<S, T, 4>(simd, self, w, sums),
            5 if many => multiply::<S, T, 5>(simd, self, w, sums),
            6 if many => multiply::<S, T, 6>(simd, self, w, sums),
            7 if many => multiply::<S, T, 7>(simd, self, w, sums),
            8 if many => multiply::<S, T, 8>(simd, self, w, sums),
            rows => unreachable!("a tile of {rows} rows"),
        }
    }
}

/// A function of its own for each number of rows, so that its sums have the registers for themselves.
#[inline(never)]
fn multiply<S: Simd, T: Element, const R: usize>(simd: S, tile: Tile<'_>, w: [&[T]; TILE[1]], sums: &mut [S::f32s]) {
    simd.vectorize(
        #[inline(always)]
        || {
            let Tile { x, next, step, goes_on } = tile;
            let (of_line, lines) = (LINE / S::F32_LANES, w[0].len() / LINE);
            assert!(x.len() == R * lines * LINE && w.iter().all(|of| of.len() == lines * LINE));
            let sums = &mut sums.as_chunks_mut::<{ TILE[1] }>().0[..R];
            let mut kept = [[simd.splat_f32s(0.0); TILE[1]]; R];
            if goes_on {
                kept.copy_from_slice(sums);
            }
            let (x, w) = (S::as_simd_f32s(x).0.as_ptr(), w.map(<[T]>::as_ptr));
            let ask = |line: usize| next.into_iter().for_each(|next| prefetch_far(next.wrapping_add(line * step)));
            let pairs = if of_line == 1 { lines / 2 } else { 0 };
            for line in (0..2 * pairs).step_by(2) {
                ask(line);
                ask(line + 1);
                // SAFETY: two lines below the length, which is asserted above.
                unsafe { add::<S, T, R, 2>(simd, x.add(line * R), w.map(|w| w.add(line * LINE)), &mut kept) };
            }
            for line in 2 * pairs..lines {
                ask(line);
                for at in 0..of_line {
                    let first = line * LINE + at * S::F32_LANES;
                    // SAFETY: a vector of a line below the length.
                    unsafe {
                        add::<S, T, R, 1>(simd, x.add(line * R * of_line + at), w.map(|w| w.add(first)), &mut kept);
                    }
                }
            }
            sums.copy_from_slice(&kept);
        },
    );
}

/// Adds the products with `L` vectors of a few outputs, each of a line of its own if there are several.
///
/// # Safety
/// As many vectors are at each of `w`, and as many of each of `R` rows at `x`.
#[inline(always)]
unsafe fn add<S: Simd, T: Element, const R: usize, const L: usize>(
    simd: S,
    x: *const S::f32s,
    w: [*const T; TILE[1]],
    kept: &mut [[S::f32s; TILE[1]]; R],
) {
    let mut wide = [[simd.splat_f32s(0.0); L]; TILE[1]];
    for (wide, w) in wide.iter_mut().zip(w) {
        // SAFETY: the caller's promise.
        T::vectors(simd, unsafe { std::slice::from_raw_parts(w, L * S::F32_LANES) }, wide);
    }
    for at in 0..L {
        for (row, kept) in kept.iter_mut().enumerate() {
            // SAFETY: as above.
            let x = unsafe { *x.add((at * R + row) * (LINE / S::F32_LANES)) };
            for (kept, wide) in kept.iter_mut().zip(wide) {
                *kept = simd.mul_add_e_f32s(x, wide[at], *kept);
            }
        }
    }
}

/// One or two rows, where outputs are widened in memory: two side by side, so that one is widened while the sums of the other
/// wait.
#[inline(never)]
fn few_rows<S: Simd, W: Weight, const R: usize>(simd: S, task: Task<'_>, weight: W, products: &mut [f32]) {
    simd.vectorize(
        #[inline(always)]
        || {
            let Task { inputs, rows, outputs } = task;
            let mut wide = [[Line::zeroed(); PIECE / LINE]; 2];
            for first in outputs.clone().step_by(2) {
                let mut sums = [[simd.splat_f32s(0.0); 2]; R];
                for start in (0..inputs.width).step_by(PIECE) {
                    let len = PIECE.min(inputs.width - start);
                    let padded = len.next_multiple_of(LINE);
                    let x = S::as_simd_f32s(&inputs.of_block(start, rows.clone())[..padded * R]).0;
                    let bytes = bytes(weight, len);
                    for (n, wide) in wide.iter_mut().enumerate() {
                        let output = (first + n).min(outputs.end - 1);
                        let ahead = weight.address(output, start).wrapping_add(AHEAD);
                        for line in (0..bytes).step_by(size_of::<Line>()) {
                            prefetch_at(ahead.wrapping_add(line));
                        }
                        let wide: &mut [f32] = cast_slice_mut(wide);
                        weight.widen(simd, output, start, &mut wide[..len]);
                        wide[len..padded].fill(0.0);
                    }
                    let w = [&wide[0], &wide[1]].map(|wide| &S::as_simd_f32s(cast_slice(wide)).0[..x.len() / R]);
                    let of_line = LINE / S::F32_LANES;
                    for at in 0..x.len() / R {
                        for (row, sums) in sums.iter_mut().enumerate() {
                            let x = x[(at / of_line * R + row) * of_line + at % of_line];
                            for (sum, w) in sums.iter_mut().zip(w) {
                                *sum = simd.mul_add_e_f32s(x, w[at], *sum);
                            }
                        }
                    }
                }
                let kept = 2.min(outputs.end - first);
                write(simd, sums, kept, &mut products[first - outputs.start..], outputs.len());
            }
        },
    );
}

/// As many rows as a tile has where there are many registers.
#[inline(always)]
fn many_in_registers<S: Simd, W: Weight>(simd: S, task: Task<'_>, weight: W, products: &mut [f32]) {
    // For others nothing of this is compiled.
    if const { S::REGISTER_COUNT < 32 } {
        return;
    }
    match task.rows.len() {
        3 => in_registers::<_, _, 3, { TILE[1] }>(simd, task, weight, products),
        4 => in_registers::<_, _, 4, { TILE[1] }>(simd, task, weight, products),
        5 => in_registers::<_, _, 5, 2>(simd, task, weight, products),
        6 => in_registers::<_, _, 6, 2>(simd, task, weight, products),
        7 => in_registers::<_, _, 7, 2>(simd, task, weight, products),
        _ => in_registers::<_, _, 8, 2>(simd, task, weight, products),
    }
}

/// A few rows with `N` outputs side by side, so that one is widened in registers while the sums of another wait.
#[inline(never)]
fn in_registers<S: Simd, W: Weight, const R: usize, const N: usize>(
    simd: S,
    task: Task<'_>,
    weight: W,
    products: &mut [f32],
) {
    simd.vectorize(
        #[inline(always)]
        || {
            let Task { inputs, rows, outputs } = task;
            let of_output = bytes(weight, inputs.width);
            for first in outputs.clone().step_by(N) {
                let of: [usize; N] = std::array::from_fn(|n| (first + n).min(outputs.end - 1));
                let mut sums = [[simd.splat_f32s(0.0); N]; R];
                for start in (0..inputs.width).step_by(inputs.form.segment) {
                    let len = inputs.form.segment.min(inputs.width - start);
                    let x = S::as_simd_f32s(&inputs.of_block(start, rows.clone())[..len * R]).0;
                    let stream = Ahead::stream(weight.address(first, 0), of_output);
                    let ahead = stream.filter(|_| inputs.width <= inputs.form.segment).unwrap_or_else(|| {
                        // More of these outputs, or the beginnings of the next.
                        let over = if bytes(weight, start) + AHEAD < of_output { 0 } else { (N - 1) * of_output };
                        Ahead::Each(of.map(|output| weight.address(output, start).wrapping_add(AHEAD + over)))
                    });
                    weight.add_products(simd, of, start, ahead, x, &mut sums);
                }
                let kept = N.min(outputs.end - first);
                write(simd, sums, kept, &mut products[first - outputs.start..], outputs.len());
            }
        },
    );
}

/// Writes the products of rows a stride apart with as many outputs as are kept: what stands behind them is the next row.
#[inline(always)]
fn write<S: Simd, const R: usize, const N: usize>(
    simd: S,
    sums: [[S::f32s; N]; R],
    kept: usize,
    products: &mut [f32],
    stride: usize,
) {
    for (products, sums) in products.chunks_mut(stride).zip(sums) {
        for (product, sum) in products.iter_mut().zip(sums).take(kept) {
            *product = simd.reduce_sum_f32s(sum);
        }
    }
}

/// Bytes of so many numbers of an output.
#[inline(always)]
fn bytes(weight: impl Weight, numbers: usize) -> usize {
    weight.address(0, numbers) as usize - weight.address(0, 0) as usize
}

/// Numbers of the outputs of a tile from `start` on, each a segment behind the other, zeros behind them.
#[inline(never)]
fn widen<S: Simd>(simd: S, weight: impl Weight, outputs: [usize; TILE[1]], start: usize, len: usize, wide: &mut [f32]) {
    simd.vectorize(
        #[inline(always)]
        || {
            let mut own = [Line::zeroed(); PIECE / LINE];
            for (output, wide) in outputs.into_iter().zip(wide.as_chunks_mut::<SEGMENT>().0) {
                if weight.widens_in_vectors::<S>() {
                    weight.widen(simd, output, start, &mut wide[..len]);
                    wide[len..len.next_multiple_of(LINE)].fill(0.0);
                    continue;
                }
                // By a copy, since a compiler that cannot tell whether numbers overlap with blocks makes them one by one.
                for (at, wide) in (0..len).step_by(PIECE).zip(wide.chunks_mut(PIECE)) {
                    let len = PIECE.min(len - at);
                    let own: &mut [f32] = cast_slice_mut(&mut own);
                    weight.widen(simd, output, start + at, &mut own[..len]);
                    own[len..len.next_multiple_of(LINE)].fill(0.0);
                    wide.copy_from_slice(own);
                }
            }
        },
    );
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::super::Numbers;
    use super::*;
    use crate::cpu::storage::{Input, RowShape};
    use half::bf16;
    use rstest::rstest;

    /// On a processor with AVX-512 no other test comes to what AVX2 does.
    #[rstest]
    fn vectors_of_eight_give_the_products(
        #[values(1, 2, 3, 4, 5, 9, 66)] rows: usize,
        #[values(7, 333, 1100)] width: usize,
    ) {
        const OUTPUTS: usize = 10;
        let Some(simd) = pulp::x86::V3::try_new() else { return };
        let numbers = |len: usize| (0..len).map(|at| ((at * 37 % 101) as f32 - 50.0) / 64.0);
        let data: Vec<f32> = numbers(rows * width).collect();
        let stored: Vec<bf16> = numbers(OUTPUTS * width).map(bf16::from_f32).collect();
        let input = Input::Owned { data: data.clone(), shape: RowShape { rows, width, stride: width } };
        let inputs = Inputs::in_form(&input.rows(), 0..rows, OfMachine.with_simd(simd));
        let mut scratch = [const { Vec::new() }; 3];
        let task = Task { inputs: &inputs, rows: 0..rows, outputs: 0..OUTPUTS };
        let weight = Numbers { data: &stored, in_width: width };
        Products { task, weight, scratch: &mut scratch }.with_simd(simd);
        let found = room(&mut scratch[2], rows * OUTPUTS);
        for (at, found) in found.iter().enumerate() {
            let (x, w) = (&data[at / OUTPUTS * width..][..width], &stored[at % OUTPUTS * width..][..width]);
            let expected: f64 = x.iter().zip(w).map(|(x, w)| f64::from(*x) * w.to_f64()).sum();
            assert!((f64::from(*found) - expected).abs() < 1e-3, "{at}: {found} instead of {expected}");
        }
    }
}
