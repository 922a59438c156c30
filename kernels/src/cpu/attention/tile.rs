//! Online softmax of some query rows over a stretch of context.

use super::{QueryTile, Step};
use crate::cpu::codec::StoredRows;
use crate::cpu::element::Element;
use crate::cpu::matmul::{Matrix, multiply};
use crate::cpu::simd::{Ahead, StridedRows, add_weighted, exp, exp_and_sum, largest, row_products};
use std::cell::RefCell;
use std::ops::Range;

/// Unnormalised attention output of some query rows, with what is needed to go on or to merge two of them.
pub(super) struct Accumulator<'a> {
    max: &'a mut [f32],
    sum: &'a mut [f32],
    out: &'a mut [f32],
    value_dim: usize,
}

impl<'a> Accumulator<'a> {
    /// Elements of memory that `rows` rows take.
    pub(super) fn elems(rows: usize, value_dim: usize) -> usize {
        rows * (value_dim + 2)
    }

    /// Rows that have seen nothing yet.
    pub(super) fn new(memory: &'a mut [f32], rows: usize, value_dim: usize) -> Self {
        let empty = Self::resume(memory, rows, value_dim);
        empty.max.fill(f32::NEG_INFINITY);
        empty.sum.fill(0.0);
        empty.out.fill(0.0);
        empty
    }

    /// Rows as an earlier accumulator left them in `memory`.
    pub(super) fn resume(memory: &'a mut [f32], rows: usize, value_dim: usize) -> Self {
        let (max, rest) = memory.split_at_mut(rows);
        let (sum, rest) = rest.split_at_mut(rows);
        Self { max, sum, out: &mut rest[..rows * value_dim], value_dim }
    }

    /// Adds what the same rows saw in another stretch of context.
    pub(super) fn merge(&mut self, other: &Accumulator<'_>) {
        for row in 0..self.max.len() {
            let max = self.max[row].max(other.max[row]);
            if max == f32::NEG_INFINITY {
                continue;
            }
            let (old, new) = (exp(self.max[row] - max), exp(other.max[row] - max));
            self.max[row] = max;
            self.sum[row] = self.sum[row] * old + other.sum[row] * new;
            let span = row * self.value_dim..(row + 1) * self.value_dim;
            for (out, add) in self.out[span.clone()].iter_mut().zip(&other.out[span]) {
                *out = *out * old + add * new;
            }
        }
    }

    /// The attention output of one row. A row that saw nothing is 0.
    pub(super) fn finish(&self, row: usize, sink: Option<f32>, scale: f32, target: &mut [f32]) {
        let max = self.max[row];
        if max == f32::NEG_INFINITY {
            return;
        }
        let factor = match sink {
            None => 1.0 / self.sum[row],
            Some(sink) => {
                let top = max.max(sink);
                let kept = exp(max - top);
                kept / (self.sum[row] * kept + exp(sink - top))
            }
        };
        let out = &self.out[row * self.value_dim..][..self.value_dim];
        for (target, out) in target.iter_mut().zip(out) {
            *target = out * (factor * scale);
        }
    }

    /// Turns the scores of one row into weights against the row's new maximum, and scales what it has so far.
    fn absorb(&mut self, row: usize, scores: &mut [f32]) {
        let top = largest(self.max[row], scores);
        let old = exp(self.max[row] - top);
        self.max[row] = top;
        self.sum[row] = self.sum[row] * old + exp_and_sum(scores, top);
        if old != 1.0 {
            for value in &mut self.out[row * self.value_dim..][..self.value_dim] {
                *value *= old;
            }
        }
    }
}

/// Buffers of one thread.
#[derive(Default)]
pub(super) struct Scratch {
    memory: Vec<f32>,
    queries: Vec<f32>,
    scores: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Scratch {
    /// Runs `body` with this thread's buffers and `elems` elements of memory.
    pub(super) fn with(elems: usize, body: impl FnOnce(&mut Self, &mut [f32])) {
        thread_local! {
            static SCRATCH: RefCell<Scratch> = RefCell::default();
        }
        let mut scratch = SCRATCH.take();
        let mut memory = std::mem::take(&mut scratch.memory);
        if memory.len() < elems {
            memory.resize(elems, 0.0);
        }
        body(&mut scratch, &mut memory[..elems]);
        scratch.memory = memory;
        SCRATCH.set(scratch);
    }
}

/// From this many query rows on, matrix products pay for copying keys and values together.
const MIN_DENSE_ROWS: usize = 12;
/// Context positions of one product.
const DENSE_POSITIONS: usize = 256;
/// Context positions whose scores few queries turn into weights at once.
const FEW_POSITIONS: usize = 128;

/// Adds `context` to `sum`.
pub(super) fn attend<T: Element>(
    step: &Step<'_, T>,
    tile: &QueryTile,
    kv_head: usize,
    context: Range<usize>,
    sum: &mut Accumulator<'_>,
    scratch: &mut Scratch,
) {
    if step.query_rows(tile) >= MIN_DENSE_ROWS {
        attend_dense(step, tile, kv_head, context, sum, scratch);
        return;
    }
    attend_few(step, tile, kv_head, context, sum, scratch);
}

/// Calls `body` with the parts of `context` between multiples of `size`, so that they depend on positions alone.
fn for_each_cut(context: Range<usize>, size: usize, mut body: impl FnMut(Range<usize>)) {
    let mut start = context.start;
    while start < context.end {
        let end = ((start / size + 1) * size).min(context.end);
        body(start..end);
        start = end;
    }
}

/// Consecutive tokens of one head as f32 rows.
#[derive(Clone, Copy)]
struct Block<'a> {
    data: &'a [f32],
    stride: usize,
}

impl<'a> Block<'a> {
    /// Borrows an f32 pool, widens any other into `buffer`. `positions` lie in one block.
    fn load<T: Element>(
        step: &'a Step<'_, T>,
        sequence: usize,
        kv: usize,
        kv_head: usize,
        positions: Range<usize>,
        buffer: &'a mut Vec<f32>,
    ) -> Self {
        let source = stored(step, sequence, kv, kv_head, &positions);
        if let Some(data) = T::as_f32(source) {
            return Self { data, stride: step.view.token_stride() };
        }
        buffer.clear();
        widen(step, sequence, kv, kv_head, &positions, buffer);
        Self { data: buffer, stride: step.head_dim }
    }

    /// `len` tokens after the first `skip`, the first `width` elements of each.
    fn rows(&self, skip: usize, len: usize, width: usize) -> StridedRows<'a> {
        StridedRows::new(&self.data[skip * self.stride..], self.stride, width, len)
    }
}

/// What the pool holds for `positions`, which lie in one block; rows are a token stride apart.
fn stored<'a, T: Element>(
    step: &'a Step<'_, T>,
    sequence: usize,
    kv: usize,
    kv_head: usize,
    positions: &Range<usize>,
) -> &'a [T] {
    let view = step.view;
    let block = step.batch.blocks(sequence)[positions.start / view.tokens_per_block] as usize;
    let start = block * view.block_elems + view.row_offset(kv, kv_head, positions.start % view.tokens_per_block);
    &step.pool[start..start + (positions.len() - 1) * view.token_stride() + view.head_dim]
}

/// Appends what [`stored`] gives to `target`, as f32 rows behind each other.
fn widen<T: Element>(
    step: &Step<'_, T>,
    sequence: usize,
    kv: usize,
    kv_head: usize,
    positions: &Range<usize>,
    target: &mut Vec<f32>,
) {
    let view = step.view;
    let block = step.batch.blocks(sequence)[positions.start / view.tokens_per_block] as usize;
    let rows = StoredRows {
        stride: view.token_stride(),
        width: view.head_dim,
        len: positions.len(),
        first: block * view.layer_rows() + view.row(kv, kv_head, positions.start % view.tokens_per_block),
        row_stride: view.token_rows(),
    };
    step.codec.widen(stored(step, sequence, kv, kv_head, positions), rows, step.head_dim, target);
}

/// What comes between `scale * q . k` and the softmax.
fn shape_scores<T: Element>(
    step: &Step<'_, T>,
    head: usize,
    query_position: usize,
    first_key: usize,
    scores: &mut [f32],
) {
    if let Some(cap) = step.attention.softcap {
        for score in scores.iter_mut() {
            *score = cap * (*score / cap).tanh();
        }
    }
    if let Some(slopes) = step.attention.alibi_slopes {
        for (position, score) in (first_key..).zip(scores) {
            *score -= slopes[head] * (query_position - position) as f32;
        }
    }
}

/// Few queries: keys and values are read where they lie, and reading them is what takes time.
fn attend_few<T: Element>(
    step: &Step<'_, T>,
    tile: &QueryTile,
    kv_head: usize,
    context: Range<usize>,
    sum: &mut Accumulator<'_>,
    scratch: &mut Scratch,
) {
    let (head_dim, value_dim) = (step.head_dim, sum.value_dim);
    let group = step.group();
    let Scratch { scores, keys, values, .. } = scratch;
    let block = step.view.tokens_per_block;
    let stretch = (FEW_POSITIONS / block).max(1) * block;
    let of_values = step.view.kv_factor - 1;
    scores.resize(tile.rows.len() * group * stretch, 0.0);
    for_each_cut(context.clone(), stretch, |positions| {
        // What a query sees of some of these positions, as a start and a length from theirs.
        let seen = |index: usize, part: &Range<usize>| {
            let query_position = tile.first_position + index;
            let first = step.attention.window.first_visible(query_position).max(part.start);
            let end = (query_position + 1).min(part.end);
            (first < end).then(|| (first - part.start, end - first))
        };
        // What is read after `part`: the next block's, of keys and then of values.
        let behind = |part: &Range<usize>, kv: usize| {
            let (kv, start) = match part.end {
                end if end < positions.end => (kv, end),
                _ if kv < of_values => (of_values, positions.start),
                end => (0, end),
            };
            let end = ((start / block + 1) * block).min(context.end);
            if start >= end {
                return Ahead::nothing();
            }
            let source = stored(step, tile.sequence, kv, kv_head, &(start..end));
            Ahead::of(source, step.view.token_stride(), head_dim)
        };
        let queries = tile.rows.len() * group;
        for_each_cut(positions.clone(), block, |part| {
            let k = Block::load(step, tile.sequence, 0, kv_head, part.clone(), keys);
            let mut ahead = behind(&part, 0).over(queries * part.len());
            for (index, token) in tile.rows.clone().enumerate() {
                let Some((skip, len)) = seen(index, &part) else { continue };
                let q = &step.q.row(token)[kv_head * group * head_dim..];
                let q = StridedRows::new(q, head_dim, head_dim, group);
                let scores = &mut scores[index * group * stretch + part.start - positions.start + skip..];
                row_products(q, k.rows(skip, len, head_dim), step.scale(kv_head), scores, stretch, &mut ahead);
            }
        });
        for index in 0..tile.rows.len() {
            let Some((skip, len)) = seen(index, &positions) else { continue };
            let (query_position, first) = (tile.first_position + index, positions.start + skip);
            for member in 0..group {
                let row = index * group + member;
                let scores = &mut scores[row * stretch + skip..][..len];
                shape_scores(step, kv_head * group + member, query_position, first, scores);
                sum.absorb(row, scores);
            }
        }
        for_each_cut(positions.clone(), block, |part| {
            let v = Block::load(step, tile.sequence, of_values, kv_head, part.clone(), values);
            let mut ahead = behind(&part, of_values).over(queries * part.len() * value_dim);
            for index in 0..tile.rows.len() {
                let Some((skip, len)) = seen(index, &part) else { continue };
                let scores = &scores[index * group * stretch + part.start - positions.start + skip..];
                let out = &mut sum.out[index * group * value_dim..];
                add_weighted(scores, stretch, v.rows(skip, len, value_dim), out, value_dim, group, &mut ahead);
            }
        });
    });
}

/// Many queries: scores and outputs as matrix products over stretches of context copied together.
fn attend_dense<T: Element>(
    step: &Step<'_, T>,
    tile: &QueryTile,
    kv_head: usize,
    context: Range<usize>,
    sum: &mut Accumulator<'_>,
    scratch: &mut Scratch,
) {
    let (head_dim, value_dim) = (step.head_dim, sum.value_dim);
    let group = step.group();
    let rows = step.query_rows(tile);
    let Scratch { queries, scores, keys, values, .. } = scratch;

    let scale = step.scale(kv_head);
    queries.clear();
    for token in tile.rows.clone() {
        let heads = &step.q.row(token)[kv_head * group * head_dim..][..group * head_dim];
        queries.extend(heads.iter().map(|q| q * scale));
    }
    let queries = Matrix::new(queries, rows, head_dim, head_dim);

    let mut start = context.start;
    while start < context.end {
        let end = (start + DENSE_POSITIONS).min(context.end);
        let positions = end - start;
        copy_together(step, tile.sequence, 0, kv_head, start..end, keys);
        let k = Matrix::new(keys, positions, head_dim, head_dim);
        let v = match step.view.kv_factor {
            1 => Matrix::new(keys, positions, value_dim, head_dim),
            _ => {
                copy_together(step, tile.sequence, 1, kv_head, start..end, values);
                Matrix::new(values, positions, value_dim, head_dim)
            }
        };
        scores.resize(rows * DENSE_POSITIONS, 0.0);
        multiply(scores, positions, 0.0, queries, k.transposed());
        for (row, scores) in scores.chunks_exact_mut(positions).take(rows).enumerate() {
            let query_position = tile.first_position + row / group;
            let first = step.attention.window.first_visible(query_position).clamp(start, end) - start;
            let last = (query_position + 1).clamp(start, end) - start;
            if first >= last {
                scores.fill(0.0);
                continue;
            }
            scores[..first].fill(0.0);
            scores[last..].fill(0.0);
            let scores = &mut scores[first..last];
            shape_scores(step, kv_head * group + row % group, query_position, start + first, scores);
            sum.absorb(row, scores);
        }
        multiply(sum.out, value_dim, 1.0, Matrix::new(scores, rows, positions, positions), v);
        start = end;
    }
}

/// Copies the rows of `positions`, which lie in several blocks, behind each other as f32.
fn copy_together<T: Element>(
    step: &Step<'_, T>,
    sequence: usize,
    kv: usize,
    kv_head: usize,
    positions: Range<usize>,
    buffer: &mut Vec<f32>,
) {
    buffer.clear();
    for_each_cut(positions, step.view.tokens_per_block, |positions| {
        let source = stored(step, sequence, kv, kv_head, &positions);
        match T::as_f32(source) {
            Some(source) => {
                let rows = source.chunks(step.view.token_stride());
                rows.for_each(|row| buffer.extend_from_slice(&row[..step.head_dim]));
            }
            None => widen(step, sequence, kv, kv_head, &positions, buffer),
        }
    });
}
