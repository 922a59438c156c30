//! The recurrence over a chunk of tokens at once, as matrix products (Yang et al., 2024).
//!
//! With `cum` the running sum of the log decays inside a chunk and `D(t, s) = exp(cum_t - cum_s)`, what token `t` writes
//! is `u_t = beta_t (v_t - D(t, 0) k_t . S - sum_{s < t} D(t, s) (k_t . k_s) u_s)`, a triangular system; its output is
//! `o_t = D(t, 0) q_t . S + sum_{s <= t} D(t, s) (q_t . k_s) u_s`, and the state behind the chunk
//! `D(last, 0) S + sum_s D(last, s) k_s (x) u_s`. A decay per channel weighs the products channel by channel.
//! All exponents are at most 0; sums of them are in f64, since small differences of large ones matter.

use super::{Step, StepDecay};
use crate::cpu::matmul::{Matrix, multiply};
use crate::cpu::simd::{axpy, dot, exp, vectorized};
use std::cell::RefCell;
use std::ops::Range;

/// Tokens of a chunk.
const CHUNK: usize = 64;
/// Rows of the triangular system that are solved one by one; those before them are taken off as a product.
const BLOCK: usize = 16;
/// Shorter stretches are stepped token by token.
pub(super) const MIN_TOKENS: usize = 16;

/// Buffers of one thread. Rows are those of the chunk.
#[derive(Default)]
pub(super) struct Scratch {
    /// `[len, key_dim]`, scaled and, if asked for, of unit length.
    q: Vec<f32>,
    /// `[len, key_dim]`.
    k: Vec<f32>,
    /// `[len, value_dim]`: what each token adds to the state.
    u: Vec<f32>,
    /// `[len, width]` running sums of log decays, of width 1 or `key_dim`.
    cum: Vec<f64>,
    /// `[len, CHUNK]` what each token reads of what each up to it wrote.
    reads: Vec<f32>,
    /// `[len, CHUNK]` what each token takes off for what each before it wrote, negative.
    corrections: Vec<f32>,
    /// `[len, key_dim]` decayed rows of `q` or `k`.
    decayed: Vec<f32>,
    /// `[BLOCK, key_dim]` as above.
    block: Vec<f32>,
    /// `[len, value_dim]`.
    out: Vec<f32>,
}

/// Steps one head over `rows`.
pub(super) fn run(step: &Step<'_>, rows: Range<usize>, head: usize, state: &mut [f32]) {
    thread_local! {
        static SCRATCH: RefCell<Scratch> = RefCell::default();
    }
    SCRATCH.with_borrow_mut(|scratch| {
        for start in rows.clone().step_by(CHUNK) {
            let chunk = start..(start + CHUNK).min(rows.end);
            vectorized(
                #[inline(always)]
                || advance(step, chunk.clone(), head, state, scratch),
            );
        }
    });
}

#[inline(always)]
fn advance(step: &Step<'_>, chunk: Range<usize>, head: usize, state: &mut [f32], scratch: &mut Scratch) {
    let [_, key_dim, value_dim] = step.shape;
    let len = chunk.len();
    load(step, &chunk, head, scratch);
    let Scratch { q, k, u, cum, reads, corrections, decayed, block, out } = scratch;
    let pairs = Pairs { q, k, cum, key_dim, len };
    let beta = step.beta.map(|beta| move |row: usize| beta.row(chunk.start + row)[head]);
    reads.resize(CHUNK * CHUNK, 0.0);
    corrections.resize(CHUNK * CHUNK, 0.0);
    if pairs.per_channel() {
        pairs.weigh_by_channel(reads, corrections, decayed, block);
    } else {
        pairs.weigh(reads, corrections);
    }

    let carried = Matrix::new(state, key_dim, value_dim, value_dim);
    if let Some(beta) = &beta {
        pairs.decay_from_start(k, decayed);
        multiply(u, value_dim, -1.0, Matrix::new(decayed, len, key_dim, key_dim), carried);
        for row in 0..len {
            let beta = -beta(row);
            u[row * value_dim..][..value_dim].iter_mut().for_each(|u| *u *= beta);
            corrections[row * CHUNK..][..len].iter_mut().for_each(|value| *value *= beta);
        }
        solve(corrections, u, len, value_dim);
    }

    out.resize(CHUNK * value_dim, 0.0);
    pairs.decay_from_start(q, decayed);
    multiply(out, value_dim, 0.0, Matrix::new(decayed, len, key_dim, key_dim), carried);
    let written = Matrix::new(u, len, value_dim, value_dim);
    multiply(out, value_dim, 1.0, Matrix::new(reads, len, len, CHUNK), written);
    for (row, out) in chunk.zip(out.chunks_exact(value_dim)) {
        step.out_row(row, head).copy_from_slice(out);
    }

    pairs.decay_to_end(decayed);
    let keep = pairs.decay_state(state, value_dim);
    multiply(state, value_dim, keep, Matrix::new(decayed, len, key_dim, key_dim).transposed(), written);
}

#[inline(always)]
fn load(step: &Step<'_>, chunk: &Range<usize>, head: usize, scratch: &mut Scratch) {
    let [_, key_dim, value_dim] = step.shape;
    let Scratch { q, k, u, cum, .. } = scratch;
    q.clear();
    k.clear();
    u.clear();
    cum.clear();
    for row in chunk.clone() {
        step.load_key(&step.q, row, head, step.scale, q);
        step.load_key(&step.k, row, head, 1.0, k);
        u.extend_from_slice(&step.v.row(row)[head * value_dim..][..value_dim]);
        let width = match &step.decay {
            StepDecay::Fixed(_) | StepDecay::PerHead(_) => 1,
            StepDecay::PerChannel(_) => key_dim,
        };
        for channel in 0..width {
            let decay = f64::from(match &step.decay {
                StepDecay::Fixed(decay) => decay[head],
                StepDecay::PerHead(decay) => decay.row(row)[head],
                StepDecay::PerChannel(decay) => decay.row(row)[head * key_dim + channel],
            });
            let before = cum.len().checked_sub(width).map_or(0.0, |at| cum[at]);
            // An infinite one would leave differences undefined; this one leaves nothing either. A NaN stays.
            cum.push(before + if decay < -1e6 { -1e6 } else { decay });
        }
    }
}

/// The keys and queries of a chunk, and how they decay.
struct Pairs<'a> {
    q: &'a [f32],
    k: &'a [f32],
    cum: &'a [f64],
    key_dim: usize,
    len: usize,
}

impl<'a> Pairs<'a> {
    fn per_channel(&self) -> bool {
        self.cum.len() != self.len
    }

    #[inline(always)]
    fn row(&self, rows: &'a [f32], row: usize) -> &'a [f32] {
        &rows[row * self.key_dim..][..self.key_dim]
    }

    /// The running sums of one row, per channel.
    #[inline(always)]
    fn sums(&self, row: usize) -> &'a [f64] {
        &self.cum[row * self.key_dim..][..self.key_dim]
    }

    /// `reads[t, s] = D(t, s) q_t . k_s` for `s <= t` and `corrections[t, s] = D(t, s) k_t . k_s` for `s < t`, 0 elsewhere.
    #[inline(always)]
    fn weigh(&self, reads: &mut [f32], corrections: &mut [f32]) {
        let rows = |rows| Matrix::new(rows, self.len, self.key_dim, self.key_dim);
        multiply(reads, CHUNK, 0.0, rows(self.q), rows(self.k).transposed());
        multiply(corrections, CHUNK, 0.0, rows(self.k), rows(self.k).transposed());
        for t in 0..self.len {
            let reads = &mut reads[t * CHUNK..][..self.len];
            let corrections = &mut corrections[t * CHUNK..][..self.len];
            let cum = &self.cum[..self.len];
            for s in 0..self.len {
                let decay = exp((cum[t] - cum[s]) as f32);
                reads[s] = if s <= t { reads[s] * decay } else { 0.0 };
                corrections[s] = if s < t { corrections[s] * decay } else { 0.0 };
            }
        }
    }

    /// As [`weigh`](Self::weigh) with a decay per channel: pairs in one block each for itself, pairs of different
    /// blocks as products of what decays since the later block's start and what decays until then.
    #[inline(always)]
    fn weigh_by_channel(&self, reads: &mut [f32], corrections: &mut [f32], until: &mut Vec<f32>, since: &mut Vec<f32>) {
        let width = self.key_dim;
        for start in (0..self.len).step_by(BLOCK) {
            let end = (start + BLOCK).min(self.len);
            if let Some(last) = start.checked_sub(1) {
                let anchor = self.sums(last);
                until.clear();
                for s in 0..start {
                    let key = self.row(self.k, s).iter().zip(anchor).zip(self.sums(s));
                    until.extend(key.map(|((k, anchor), cum)| k * exp((anchor - cum) as f32)));
                }
                for (rows, target) in [(self.q, &mut *reads), (self.k, &mut *corrections)] {
                    since.clear();
                    for t in start..end {
                        let row = self.row(rows, t).iter().zip(anchor).zip(self.sums(t));
                        since.extend(row.map(|((x, anchor), cum)| x * exp((cum - anchor) as f32)));
                    }
                    let (since, until) =
                        (Matrix::new(since, end - start, width, width), Matrix::new(until, start, width, width));
                    multiply(&mut target[start * CHUNK..], CHUNK, 0.0, since, until.transposed());
                }
            }
            for t in start..end {
                reads[t * CHUNK + start..t * CHUNK + self.len].fill(0.0);
                corrections[t * CHUNK + start..t * CHUNK + self.len].fill(0.0);
                for s in start..=t {
                    since.clear();
                    let key = self.row(self.k, s).iter().zip(self.sums(t)).zip(self.sums(s));
                    since.extend(key.map(|((k, later), earlier)| k * exp((later - earlier) as f32)));
                    reads[t * CHUNK + s] = dot(self.row(self.q, t), since);
                    if s < t {
                        corrections[t * CHUNK + s] = dot(self.row(self.k, t), since);
                    }
                }
            }
        }
    }

    /// Each of `rows` times what has decayed since the chunk's start.
    #[inline(always)]
    fn decay_from_start(&self, rows: &[f32], target: &mut Vec<f32>) {
        target.clear();
        for (index, row) in rows.chunks_exact(self.key_dim).enumerate() {
            if self.per_channel() {
                target.extend(row.iter().zip(self.sums(index)).map(|(x, cum)| x * exp(*cum as f32)));
            } else {
                let decay = exp(self.cum[index] as f32);
                target.extend(row.iter().map(|x| x * decay));
            }
        }
    }

    /// Each key times what decays until the chunk's end.
    #[inline(always)]
    fn decay_to_end(&self, target: &mut Vec<f32>) {
        target.clear();
        for (index, row) in self.k.chunks_exact(self.key_dim).enumerate() {
            if self.per_channel() {
                let sums = self.sums(self.len - 1).iter().zip(self.sums(index));
                target.extend(row.iter().zip(sums).map(|(k, (last, cum))| k * exp((last - cum) as f32)));
            } else {
                let decay = exp((self.cum[self.len - 1] - self.cum[index]) as f32);
                target.extend(row.iter().map(|k| k * decay));
            }
        }
    }

    /// Decays the state over the whole chunk, or returns the factor that still has to.
    #[inline(always)]
    fn decay_state(&self, state: &mut [f32], value_dim: usize) -> f32 {
        if !self.per_channel() {
            return exp(self.cum[self.len - 1] as f32);
        }
        for (row, cum) in state.chunks_exact_mut(value_dim).zip(self.sums(self.len - 1)) {
            let decay = exp(*cum as f32);
            row.iter_mut().for_each(|value| *value *= decay);
        }
        1.0
    }
}

/// `u_t += sum_{s < t} corrections[t, s] u_s`, from the first row to the last.
#[inline(always)]
fn solve(corrections: &[f32], u: &mut [f32], len: usize, value_dim: usize) {
    for start in (0..len).step_by(BLOCK) {
        let end = (start + BLOCK).min(len);
        let (solved, rest) = u.split_at_mut(start * value_dim);
        let block = &mut rest[..(end - start) * value_dim];
        let before = Matrix::new(&corrections[start * CHUNK..], end - start, start, CHUNK);
        multiply(block, value_dim, 1.0, before, Matrix::new(solved, start, value_dim, value_dim));
        for t in start + 1..end {
            let (solved, rest) = block.split_at_mut((t - start) * value_dim);
            for (s, row) in (start..t).zip(solved.chunks_exact(value_dim)) {
                axpy(&mut rest[..value_dim], corrections[t * CHUNK + s], row);
            }
        }
    }
}
