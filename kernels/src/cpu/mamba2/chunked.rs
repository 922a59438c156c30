//! The state space dual form: a stretch of tokens at once, as matrix products.
//!
//! With `cum` the running sum of `a * dt` inside a chunk, its outputs are
//! `y_l = exp(cum_l) c_l . S + sum_{s <= l} (c_l . b_s) exp(cum_l - cum_s) dt_s x_s`, and the state behind it
//! `exp(cum_last) S + sum_s exp(cum_last - cum_s) dt_s x_s (x) b_s` (Dao and Gu, 2024).
//! All exponents are at most 0, since `a` is negative; sums of them are in f64, since small differences of large ones
//! matter.

use super::Scan;
use crate::batch::StateBatch;
use crate::cpu::matmul::{Matrix, multiply};
use crate::cpu::output::DisjointMut;
use crate::cpu::simd::{exp, vectorized};
use crate::cpu::storage::Rows;
use crate::cpu::tasks::for_each;
use rayon::prelude::*;
use std::cell::RefCell;
use std::ops::Range;

/// Tokens of a chunk. A longer one does more work off the diagonal, a shorter one more state products.
pub(super) const CHUNK: usize = 64;
/// Shorter stretches are stepped token by token.
pub(super) const MIN_TOKENS: usize = 16;

/// Where a stretch of tokens is cut: always at the same distances from the sequence's first token.
pub(super) fn chunks(rows: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    rows.clone().step_by(CHUNK).map(move |start| start..(start + CHUNK).min(rows.end))
}

/// `c_l . b_s` of all pairs in a chunk, once for each group of heads: `[total_tokens, groups, CHUNK]`.
pub(super) fn products(scan: &Scan<'_>, batch: &StateBatch<'_>) -> Vec<f32> {
    let [heads, _, d_state] = scan.shape;
    let groups = heads / scan.heads_per_group;
    let tasks: Vec<(Range<usize>, usize)> = batch
        .active()
        .flat_map(|(rows, _)| batch.stretches(rows))
        .filter(|rows| rows.len() >= MIN_TOKENS)
        .flat_map(chunks)
        .flat_map(|chunk| (0..groups).map(move |group| (chunk.clone(), group)))
        .collect();
    let Some(end) = tasks.iter().map(|(chunk, _)| chunk.end).max() else {
        return Vec::new();
    };
    let stride = groups * CHUNK;
    let mut products = vec![0f32; end * stride];
    let target = DisjointMut::new(&mut products);
    for_each(tasks.par_iter(), |(chunk, group)| {
        // A chunk's rows interleave those of the other groups, so the product is made apart and copied.
        let mut product = [0f32; CHUNK * CHUNK];
        let (c, b) =
            (columns(&scan.c, chunk, group * d_state, d_state), columns(&scan.b, chunk, group * d_state, d_state));
        multiply(&mut product, CHUNK, 0.0, c, b.transposed());
        for (row, product) in chunk.clone().zip(product.chunks_exact(CHUNK)) {
            let start = row * stride + group * CHUNK;
            // SAFETY: this task alone has these rows of this group.
            unsafe { target.slice(start..start + CHUNK) }.copy_from_slice(product);
        }
    });
    products
}

/// `width` columns of some rows, from column `first`.
fn columns<'a>(source: &Rows<'a>, rows: &Range<usize>, first: usize, width: usize) -> Matrix<'a> {
    Matrix::new(&source.row_and_after(rows.start)[first..], rows.len(), width, source.stride())
}

/// Buffers of one thread.
#[derive(Default)]
struct Scratch {
    /// `[CHUNK]` time steps.
    dt: Vec<f32>,
    /// `[CHUNK]` running sums of `a * dt`.
    cum: Vec<f64>,
    /// `[CHUNK]` factors of rows.
    factors: Vec<f32>,
    /// `[CHUNK, CHUNK]` what each token gives to each later one.
    mixing: Vec<f32>,
    /// `[CHUNK, d_state]` rows of `b` or `c`, scaled.
    scaled: Vec<f32>,
    /// `[CHUNK, head_dim]`.
    out: Vec<f32>,
}

/// Steps one head over one chunk.
pub(super) fn step(scan: &Scan<'_>, products: &[f32], chunk: Range<usize>, head: usize, state: &mut [f32]) {
    thread_local! {
        static SCRATCH: RefCell<Scratch> = RefCell::default();
    }
    SCRATCH.with_borrow_mut(|scratch| {
        vectorized(
            #[inline(always)]
            || step_with(scan, products, chunk.clone(), head, state, scratch),
        );
    });
}

#[inline(always)]
fn step_with(
    scan: &Scan<'_>,
    products: &[f32],
    chunk: Range<usize>,
    head: usize,
    state: &mut [f32],
    scratch: &mut Scratch,
) {
    let [heads, head_dim, d_state] = scan.shape;
    let group = head / scan.heads_per_group;
    let groups = heads / scan.heads_per_group;
    let len = chunk.len();
    let Scratch { dt, cum, factors, mixing, scaled, out } = scratch;

    dt.clear();
    cum.clear();
    let mut sum = 0.0;
    for row in chunk.clone() {
        let step = scan.time_step(row, head);
        let decay = f64::from(scan.a[head]) * f64::from(step);
        // An infinite one would leave differences undefined; this one leaves nothing either. A NaN stays.
        sum += if decay < -1e6 { -1e6 } else { decay };
        dt.push(step);
        cum.push(sum);
    }

    mixing.resize(CHUNK * CHUNK, 0.0);
    scaled.resize(CHUNK * d_state, 0.0);
    // Whole vectors, past the diagonal and the chunk's end: what stands there is computed and thrown away.
    cum.resize(CHUNK, 0.0);
    dt.resize(CHUNK, 0.0);
    for (l, row) in chunk.clone().enumerate() {
        let products = &products[(row * groups + group) * CHUNK..];
        mix(l, &mut mixing[l * CHUNK..], products, cum, dt);
    }

    let x = columns(&scan.x, &chunk, head * head_dim, head_dim);

    out.resize(CHUNK * head_dim, 0.0);
    let columns_of_group = group * d_state;
    factors.clear();
    factors.extend(cum[..len].iter().map(|&cum| exp(cum as f32)));
    scale_rows(&scan.c, &chunk, columns_of_group, factors, scaled);
    let carried = Matrix::new(state, head_dim, d_state, d_state).transposed();
    multiply(out, head_dim, 0.0, Matrix::new(scaled, len, d_state, d_state), carried);
    multiply(out, head_dim, 1.0, Matrix::new(mixing, len, len, CHUNK), x);

    factors.clear();
    factors.extend(cum[..len].iter().zip(&*dt).map(|(&cum, dt)| exp((sum - cum) as f32) * dt));
    scale_rows(&scan.b, &chunk, columns_of_group, factors, scaled);
    multiply(state, d_state, sum.exp() as f32, x.transposed(), Matrix::new(scaled, len, d_state, d_state));

    for (row, out) in chunk.zip(out.chunks_exact(head_dim)) {
        scan.finish(row, head, out);
    }
}

/// Rows of the columns from `first` on, each times its factor.
#[inline(always)]
fn scale_rows(source: &Rows<'_>, rows: &Range<usize>, first: usize, factors: &[f32], target: &mut [f32]) {
    let width = target.len() / CHUNK;
    for ((row, &factor), target) in rows.clone().zip(factors).zip(target.chunks_exact_mut(width)) {
        for (target, value) in target.iter_mut().zip(&source.row(row)[first..][..width]) {
            *target = value * factor;
        }
    }
}

/// What the tokens of a chunk up to `l` give to token `l`; zero for those after it.
#[inline(always)]
fn mix(l: usize, mixing: &mut [f32], products: &[f32], cum: &[f64], dt: &[f32]) {
    // Known lengths: the loop would not vectorise otherwise.
    let (mixing, products) = (&mut mixing[..CHUNK], &products[..CHUNK]);
    let (cum, dt) = (&cum[..CHUNK], &dt[..CHUNK]);
    let at = cum[l];
    for s in 0..CHUNK {
        let mixed = products[s] * exp((at - cum[s]) as f32) * dt[s];
        mixing[s] = if s <= l { mixed } else { 0.0 };
    }
}
