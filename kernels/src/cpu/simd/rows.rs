//! Products of a few rows with many, for loops that memory should bound.
//!
//! Each result is summed in one order, whatever the tile that it is computed in, so that it does not depend on the
//! rows beside it.

use pulp::{Simd, WithSimd};
use std::ops::Range;

/// Rows that all products are made of, before others come into the nearest cache.
#[inline(always)]
fn near(rows: usize) -> impl Iterator<Item = Range<usize>> {
    const STEP: usize = 16;
    (0..rows).step_by(STEP).map(move |first| first..rows.min(first + STEP))
}

/// Rows of equal width, a stride apart.
#[derive(Clone, Copy)]
pub(crate) struct StridedRows<'a> {
    data: &'a [f32],
    stride: usize,
    width: usize,
    len: usize,
}

impl<'a> StridedRows<'a> {
    pub(crate) fn new(data: &'a [f32], stride: usize, width: usize, len: usize) -> Self {
        assert!(len == 0 || (len - 1) * stride + width <= data.len());
        Self { data, stride, width, len }
    }

    #[inline(always)]
    fn row(&self, index: usize) -> &'a [f32] {
        &self.data[index * self.stride..][..self.width]
    }
}

/// Rows of memory that are wanted next. A loop asks for a share of them with each piece of its work, so that memory comes
/// while it computes: asked for at once they would wait for each other, and the loop for them.
pub(crate) struct Ahead {
    /// The next line, the lines of its row that are left, and the rows that are left with it.
    line: *const u8,
    lines: usize,
    rows: usize,
    lines_of_row: usize,
    /// From behind a row's last line to the next row.
    gap: usize,
    /// Lines for each so many pieces of work, and what is due of them.
    share: usize,
    pieces: usize,
    due: usize,
}

impl Ahead {
    const LINE: usize = 64;

    /// Nothing is known of what comes next.
    pub(crate) fn nothing() -> Self {
        let line = std::ptr::null();
        Self { line, lines: 0, rows: 0, lines_of_row: 0, gap: 0, share: 0, pieces: 1, due: 0 }
    }

    /// The first `width` of each `stride` elements of `source`.
    pub(crate) fn of<T>(source: &[T], stride: usize, width: usize) -> Self {
        // Rows that touch are one.
        let (stride, width) = if stride > width { (stride, width) } else { (source.len(), source.len()) };
        let rows = source.len().div_ceil(stride.max(1));
        let (stride, width) = (stride * size_of::<T>(), width * size_of::<T>());
        let lines_of_row = width.div_ceil(Self::LINE);
        let line = source.as_ptr().cast();
        let gap = stride.saturating_sub(lines_of_row * Self::LINE);
        Self { line, lines: lines_of_row, rows, lines_of_row, gap, ..Self::nothing() }
    }

    /// To be asked for over `pieces` pieces of work.
    pub(crate) fn over(self, pieces: usize) -> Self {
        Self { share: self.rows * self.lines_of_row, pieces: pieces.max(1), ..self }
    }

    /// Asks for what is due with `pieces` of them.
    #[inline(always)]
    fn ask(&mut self, pieces: usize) {
        self.due += pieces * self.share;
        while self.due >= self.pieces {
            self.due -= self.pieces;
            if self.rows == 0 {
                return;
            }
            super::prefetch_far(self.line);
            self.line = self.line.wrapping_add(Self::LINE);
            self.lines -= 1;
            if self.lines == 0 {
                self.rows -= 1;
                self.lines = self.lines_of_row;
                self.line = self.line.wrapping_add(self.gap);
            }
        }
    }
}

/// `out[i, j] = scale * a_i . b_j`, rows of `out` a stride apart; `ahead` over that many products.
pub(crate) fn row_products(
    a: StridedRows<'_>,
    b: StridedRows<'_>,
    scale: f32,
    out: &mut [f32],
    out_stride: usize,
    ahead: &mut Ahead,
) {
    super::dispatch(RowProducts { a, b, scale, out, out_stride, ahead });
}

/// `out_i += sum_j weights[i, j] * rows_j`, rows of `weights` and `out` a stride apart; `ahead` over that many products of
/// numbers.
pub(crate) fn add_weighted(
    weights: &[f32],
    weight_stride: usize,
    rows: StridedRows<'_>,
    out: &mut [f32],
    out_stride: usize,
    out_rows: usize,
    ahead: &mut Ahead,
) {
    super::dispatch(AddWeighted { weights, weight_stride, rows, out, out_stride, out_rows, ahead });
}

/// One step of a state `[rows, b.len()]`: `state_i = state_i * decay + u_i * b`, and `out_i = state_i . c`.
pub(crate) fn advance_state(state: &mut [f32], decay: f32, u: &[f32], b: &[f32], c: &[f32], out: &mut [f32]) {
    super::dispatch(AdvanceState { state, decay, u, b, c, out });
}

struct RowProducts<'a> {
    a: StridedRows<'a>,
    b: StridedRows<'a>,
    scale: f32,
    out: &'a mut [f32],
    out_stride: usize,
    ahead: &'a mut Ahead,
}

impl WithSimd for RowProducts<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        for rows in near(self.b.len) {
            let mut i = 0;
            while i + 4 <= self.a.len {
                self.against::<S, 4, 2>(simd, i, rows.clone());
                i += 4;
            }
            while i + 2 <= self.a.len {
                self.against::<S, 2, 4>(simd, i, rows.clone());
                i += 2;
            }
            while i < self.a.len {
                self.against::<S, 1, 8>(simd, i, rows.clone());
                i += 1;
            }
        }
    }
}

impl RowProducts<'_> {
    /// `I` rows of `a` from `i` on with some of `b`, `J` at a time.
    #[inline(always)]
    fn against<S: Simd, const I: usize, const J: usize>(&mut self, simd: S, i: usize, rows: Range<usize>) {
        let mut j = rows.start;
        while j + J <= rows.end {
            self.tile::<S, I, J>(simd, i, j);
            j += J;
        }
        while j < rows.end {
            self.tile::<S, I, 1>(simd, i, j);
            j += 1;
        }
    }

    #[inline(always)]
    fn tile<S: Simd, const I: usize, const J: usize>(&mut self, simd: S, i: usize, j: usize) {
        self.ahead.ask(I * J);
        let a: [_; I] = std::array::from_fn(|n| S::as_simd_f32s(self.a.row(i + n)));
        let b: [_; J] = std::array::from_fn(|n| S::as_simd_f32s(self.b.row(j + n)));
        // Lengths that the compiler knows to be equal need no checks inside the loop.
        let vectors = a[0].0.len();
        let (a_vectors, b_vectors) = (a.map(|a| &a.0[..vectors]), b.map(|b| &b.0[..vectors]));
        let mut sums = [[simd.splat_f32s(0.0); J]; I];
        for at in 0..vectors {
            for (sums, a) in sums.iter_mut().zip(&a_vectors) {
                for (sum, b) in sums.iter_mut().zip(&b_vectors) {
                    *sum = simd.mul_add_e_f32s(a[at], b[at], *sum);
                }
            }
        }
        for (n, (sums, a)) in sums.iter().zip(&a).enumerate() {
            for (m, (&sum, b)) in sums.iter().zip(&b).enumerate() {
                let tail: f32 = a.1.iter().zip(b.1).map(|(a, b)| a * b).sum();
                self.out[(i + n) * self.out_stride + j + m] = self.scale * (simd.reduce_sum_f32s(sum) + tail);
            }
        }
    }
}

struct AddWeighted<'a> {
    weights: &'a [f32],
    weight_stride: usize,
    rows: StridedRows<'a>,
    out: &'a mut [f32],
    out_stride: usize,
    out_rows: usize,
    ahead: &'a mut Ahead,
}

impl WithSimd for AddWeighted<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let few_registers = S::REGISTER_COUNT < 32;
        for rows in near(self.rows.len) {
            let mut i = 0;
            while i + 4 <= self.out_rows {
                match few_registers {
                    true => self.across::<S, 4, 2>(simd, i, rows.clone()),
                    false => self.across::<S, 4, 4>(simd, i, rows.clone()),
                }
                i += 4;
            }
            while i + 2 <= self.out_rows {
                match few_registers {
                    true => self.across::<S, 2, 4>(simd, i, rows.clone()),
                    false => self.across::<S, 2, 8>(simd, i, rows.clone()),
                }
                i += 2;
            }
            while i < self.out_rows {
                self.across::<S, 1, 8>(simd, i, rows.clone());
                i += 1;
            }
        }
    }
}

impl AddWeighted<'_> {
    /// `I` rows of `out` from `i` on, `V` vectors of their columns at a time.
    #[inline(always)]
    fn across<S: Simd, const I: usize, const V: usize>(&mut self, simd: S, i: usize, rows: Range<usize>) {
        let lanes = S::F32_LANES;
        let width = self.rows.width;
        let mut column = 0;
        while column + V * lanes <= width {
            self.tile::<S, I, V>(simd, i, column, rows.clone());
            column += V * lanes;
        }
        while column + lanes <= width {
            self.tile::<S, I, 1>(simd, i, column, rows.clone());
            column += lanes;
        }
        for row in i..i + I {
            for column in column..width {
                let mut sum = self.out[row * self.out_stride + column];
                for j in rows.clone() {
                    sum += self.weights[row * self.weight_stride + j] * self.rows.row(j)[column];
                }
                self.out[row * self.out_stride + column] = sum;
            }
        }
    }

    #[inline(always)]
    fn tile<S: Simd, const I: usize, const V: usize>(&mut self, simd: S, i: usize, column: usize, rows: Range<usize>) {
        let span = V * S::F32_LANES;
        let weights: [&[f32]; I] = std::array::from_fn(|n| &self.weights[(i + n) * self.weight_stride..][rows.clone()]);
        let mut sums = [[simd.splat_f32s(0.0); V]; I];
        for (n, sums) in sums.iter_mut().enumerate() {
            let out = S::as_simd_f32s(&self.out[(i + n) * self.out_stride + column..][..span]).0;
            sums.copy_from_slice(&out[..V]);
        }
        // Lengths that the compiler knows to be equal need no checks inside the loop.
        let count = rows.len();
        let weights = weights.map(|weights| &weights[..count]);
        for at in 0..count {
            let j = rows.start + at;
            self.ahead.ask(I * span);
            let row = S::as_simd_f32s(&self.rows.row(j)[column..][..span]).0;
            for (sums, weights) in sums.iter_mut().zip(&weights) {
                let weight = simd.splat_f32s(weights[at]);
                for (sum, &value) in sums.iter_mut().zip(&row[..V]) {
                    *sum = simd.mul_add_e_f32s(weight, value, *sum);
                }
            }
        }
        for (n, sums) in sums.iter().enumerate() {
            let out = S::as_mut_simd_f32s(&mut self.out[(i + n) * self.out_stride + column..][..span]).0;
            out[..V].copy_from_slice(sums);
        }
    }
}

struct AdvanceState<'a> {
    state: &'a mut [f32],
    decay: f32,
    u: &'a [f32],
    b: &'a [f32],
    c: &'a [f32],
    out: &'a mut [f32],
}

impl WithSimd for AdvanceState<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let width = self.b.len();
        let (b, b_tail) = S::as_simd_f32s(self.b);
        let (c, c_tail) = S::as_simd_f32s(&self.c[..width]);
        let decay = simd.splat_f32s(self.decay);
        // Rows are independent, so that the reductions of neighbouring rows overlap.
        for ((row, &u), out) in self.state.chunks_exact_mut(width).zip(self.u).zip(self.out) {
            let (state, tail) = S::as_mut_simd_f32s(row);
            let input = simd.splat_f32s(u);
            let mut even = simd.splat_f32s(0.0);
            let mut odd = even;
            for (at, ((state, &b), &c)) in state.iter_mut().zip(b).zip(c).enumerate() {
                *state = simd.mul_add_e_f32s(*state, decay, simd.mul_f32s(input, b));
                let sum = if at % 2 == 0 { &mut even } else { &mut odd };
                *sum = simd.mul_add_e_f32s(*state, c, *sum);
            }
            let mut sum = simd.reduce_sum_f32s(simd.add_f32s(even, odd));
            for ((state, &b), &c) in tail.iter_mut().zip(b_tail).zip(c_tail) {
                *state = *state * self.decay + u * b;
                sum += *state * c;
            }
            *out = sum;
        }
    }
}

/// Does `rounds` rounds of multiply-adds in registers alone, and returns how many operations that were.
pub(crate) fn multiply_adds(rounds: usize) -> usize {
    super::dispatch(MultiplyAdds { rounds })
}

struct MultiplyAdds {
    rounds: usize,
}

impl WithSimd for MultiplyAdds {
    type Output = usize;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> usize {
        /// Independent sums: more than are under way at once, fewer than there are registers.
        const SUMS: usize = 12;
        let (factor, term) = (simd.splat_f32s(std::hint::black_box(0.5)), simd.splat_f32s(std::hint::black_box(1.0)));
        let mut sums = [term; SUMS];
        for _ in 0..self.rounds {
            for sum in &mut sums {
                *sum = simd.mul_add_e_f32s(*sum, factor, term);
            }
        }
        std::hint::black_box(sums);
        2 * SUMS * S::F32_LANES * self.rounds
    }
}

/// The largest of `start` and all values.
pub(crate) fn largest(start: f32, values: &[f32]) -> f32 {
    super::dispatch(Largest { start, values })
}

struct Largest<'a> {
    start: f32,
    values: &'a [f32],
}

impl WithSimd for Largest<'_> {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f32 {
        let (vectors, tail) = S::as_simd_f32s(self.values);
        let mut largest = simd.splat_f32s(self.start);
        for &vector in vectors {
            largest = simd.max_f32s(vector, largest);
        }
        tail.iter().copied().fold(simd.reduce_max_f32s(largest), f32::max)
    }
}

/// The sum of all values.
pub(crate) fn sum(values: &[f32]) -> f32 {
    super::dispatch(Sum::<false> { values })
}

/// The sum of values that lie in memory, as fast as it gives them.
pub(crate) fn streamed_sum(values: &[f32]) -> f32 {
    super::dispatch(Sum::<true> { values })
}

struct Sum<'a, const STREAMED: bool> {
    values: &'a [f32],
}

impl<const STREAMED: bool> WithSimd for Sum<'_, STREAMED> {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f32 {
        let (vectors, tail) = S::as_simd_f32s(self.values);
        let (eights, rest) = vectors.as_chunks::<8>();
        let mut sums = [simd.splat_f32s(0.0); 8];
        for eight in eights {
            if STREAMED {
                prefetch_stream(eight);
            }
            for (sum, &value) in sums.iter_mut().zip(eight) {
                *sum = simd.add_f32s(*sum, value);
            }
        }
        let mut total = simd.splat_f32s(0.0);
        for &value in sums.iter().chain(rest) {
            total = simd.add_f32s(total, value);
        }
        simd.reduce_sum_f32s(total) + tail.iter().sum::<f32>()
    }
}

/// How far ahead of its use a stream is asked for, in bytes. The hardware stops looking ahead at each page.
const STREAM_AHEAD: usize = 8192;

/// Asks for what comes `STREAM_AHEAD` behind a piece of a stream.
#[inline(always)]
fn prefetch_stream<T>(piece: &[T]) {
    let ahead = piece.as_ptr().cast::<u8>().wrapping_add(STREAM_AHEAD);
    (0..size_of_val(piece)).step_by(64).for_each(|byte| super::prefetch_at(ahead.wrapping_add(byte)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn numbers(len: usize) -> Vec<f32> {
        (0..len).map(|i| ((i * 37 % 19) as f32 - 9.0) / 8.0).collect()
    }

    #[rstest]
    #[case::rows_that_touch(64, 64, 512 * 64 / 16)]
    #[case::rows_apart(64, 256, 512 * 4)]
    fn what_comes_next_is_asked_for_evenly(#[case] width: usize, #[case] stride: usize, #[case] lines: usize) {
        let source = vec![0f32; 512 * stride];
        let mut ahead = Ahead::of(&source, stride, width).over(1000);
        let left = |ahead: &Ahead| ahead.rows.saturating_sub(1) * ahead.lines_of_row + ahead.lines * ahead.rows.min(1);
        assert_eq!(left(&ahead), lines);
        (0..50).for_each(|_| ahead.ask(10));
        assert_eq!(left(&ahead), lines / 2);
        (0..100).for_each(|_| ahead.ask(10));
        assert_eq!(left(&ahead), 0);
    }

    #[rstest]
    fn tiles_of_any_shape_agree_with_plain_sums(
        #[values(1, 2, 3, 7)] rows: usize,
        #[values(1, 9)] others: usize,
        #[values(5, 16, 80, 131)] width: usize,
    ) {
        let (a, b) = (numbers(rows * (width + 3)), numbers(others * (width + 1)));
        let mut products = vec![0.0; rows * others];
        let (a_rows, b_rows) =
            (StridedRows::new(&a, width + 3, width, rows), StridedRows::new(&b, width + 1, width, others));
        row_products(a_rows, b_rows, 0.5, &mut products, others, &mut Ahead::nothing());
        for i in 0..rows {
            for j in 0..others {
                let expected: f32 = (0..width).map(|n| a[i * (width + 3) + n] * b[j * (width + 1) + n]).sum();
                assert!((products[i * others + j] - 0.5 * expected).abs() < 1e-3);
            }
        }
        let mut out = vec![1.0; rows * width];
        add_weighted(&products, others, b_rows, &mut out, width, rows, &mut Ahead::nothing());
        for i in 0..rows {
            for n in 0..width {
                let added: f32 = (0..others).map(|j| products[i * others + j] * b[j * (width + 1) + n]).sum();
                assert!((out[i * width + n] - 1.0 - added).abs() < 1e-3);
            }
        }
    }
}
