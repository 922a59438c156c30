//! Online softmax of some query rows over a stretch of context.

use super::{QueryTile, Step};
use crate::simd::{axpy, dot, exp};
use crate::storage::Element;
use std::ops::Range;

/// Unnormalised attention output of some query rows, with what is needed to go on or to merge two of them.
pub(super) struct Accumulator {
    max: Vec<f32>,
    sum: Vec<f32>,
    out: Vec<f32>,
    value_dim: usize,
}

impl Accumulator {
    pub(super) fn new(rows: usize, value_dim: usize) -> Self {
        Self { max: vec![f32::NEG_INFINITY; rows], sum: vec![0.0; rows], out: vec![0.0; rows * value_dim], value_dim }
    }

    /// Merges the parts of one split context, in order.
    pub(super) fn combine(parts: Vec<Self>) -> Self {
        let mut parts = parts.into_iter();
        let Some(mut total) = parts.next() else {
            return Self::new(0, 0);
        };
        for part in parts {
            for row in 0..total.max.len() {
                let max = total.max[row].max(part.max[row]);
                if max == f32::NEG_INFINITY {
                    continue;
                }
                let (old, new) = (exp(total.max[row] - max), exp(part.max[row] - max));
                total.max[row] = max;
                total.sum[row] = total.sum[row] * old + part.sum[row] * new;
                let span = row * total.value_dim..(row + 1) * total.value_dim;
                for (out, add) in total.out[span.clone()].iter_mut().zip(&part.out[span]) {
                    *out = *out * old + add * new;
                }
            }
        }
        total
    }

    /// The attention output of one row. A row that saw nothing is 0.
    pub(super) fn finish(&self, row: usize, sink: Option<f32>, target: &mut [f32]) {
        let max = self.max[row];
        if max == f32::NEG_INFINITY {
            return;
        }
        let factor = match sink {
            None => 1.0 / self.sum[row],
            Some(sink) => {
                let top = max.max(sink);
                let scale = exp(max - top);
                scale / (self.sum[row] * scale + exp(sink - top))
            }
        };
        let out = &self.out[row * self.value_dim..][..self.value_dim];
        for (target, out) in target.iter_mut().zip(out) {
            *target = out * factor;
        }
    }
}

/// Buffers that live as long as a task.
#[derive(Default)]
pub(super) struct Scratch {
    scores: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
}

/// Adds `context` to `part`, block by block.
#[inline(always)]
pub(super) fn attend<T: Element>(
    step: &Step<'_, T>,
    tile: &QueryTile,
    kv_head: usize,
    context: Range<usize>,
    part: &mut Accumulator,
    scratch: &mut Scratch,
) {
    let view = step.view;
    let blocks = step.batch.blocks(tile.sequence);
    let mut position = context.start;
    while position < context.end {
        let logical = position / view.tokens_per_block;
        let end = ((logical + 1) * view.tokens_per_block).min(context.end);
        let block = blocks[logical] as usize * view.block_elems;
        let offset = |kv| block + view.row_offset(kv, kv_head, position % view.tokens_per_block);
        let Scratch { scores, keys, values } = scratch;
        let k = Block::load(step, offset(0), end - position, view.head_dim, keys);
        let v = match view.kv_factor {
            1 => k,
            _ => Block::load(step, offset(1), end - position, view.head_dim, values),
        };
        add_block(step, tile, kv_head, position..end, k, v, part, scores);
        position = end;
    }
}

/// Consecutive tokens of one head as f32 rows.
#[derive(Clone, Copy)]
struct Block<'a> {
    data: &'a [f32],
    stride: usize,
}

impl<'a> Block<'a> {
    /// Borrows an f32 pool, widens any other into `buffer`.
    #[inline(always)]
    fn load<T: Element>(
        step: &'a Step<'_, T>,
        offset: usize,
        tokens: usize,
        width: usize,
        buffer: &'a mut Vec<f32>,
    ) -> Self {
        let stride = step.view.token_stride();
        let source = &step.pool[offset..offset + (tokens - 1) * stride + width];
        if let Some(data) = T::as_f32(source) {
            return Self { data, stride };
        }
        buffer.clear();
        for token in 0..tokens {
            let row = &source[token * stride..][..width];
            buffer.extend(row.iter().map(|value| value.load()));
        }
        Self { data: buffer, stride: width }
    }

    #[inline(always)]
    fn row(&self, token: usize, width: usize) -> &'a [f32] {
        &self.data[token * self.stride..][..width]
    }
}

#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "the inner loop's operands, all of them borrowed")]
fn add_block<T: Element>(
    step: &Step<'_, T>,
    tile: &QueryTile,
    kv_head: usize,
    positions: Range<usize>,
    k: Block<'_>,
    v: Block<'_>,
    part: &mut Accumulator,
    scores: &mut Vec<f32>,
) {
    let attention = step.attention;
    let group = step.num_heads / step.view.num_kv_heads;
    let head_dim = step.view.head_dim;
    let value_dim = attention.value_dim;
    for (index, token) in tile.rows.clone().enumerate() {
        let query_position = tile.first_position + index;
        let first = attention.window.first_visible(query_position).max(positions.start);
        let end = (query_position + 1).min(positions.end);
        if first >= end {
            continue;
        }
        for member in 0..group {
            let head = kv_head * group + member;
            let q = &step.q.row(token)[head * head_dim..][..head_dim];
            scores.clear();
            for position in first..end {
                let mut score = dot(q, k.row(position - positions.start, head_dim)) * attention.scale;
                if let Some(cap) = attention.softcap {
                    score = cap * (score / cap).tanh();
                }
                if let Some(slopes) = attention.alibi_slopes {
                    score -= slopes[head] * (query_position - position) as f32;
                }
                scores.push(score);
            }
            let row = index * group + member;
            let top = scores.iter().copied().fold(part.max[row], f32::max);
            let old = exp(part.max[row] - top);
            part.max[row] = top;
            let mut sum = 0.0;
            for score in scores.iter_mut() {
                *score = exp(*score - top);
                sum += *score;
            }
            part.sum[row] = part.sum[row] * old + sum;
            let out = &mut part.out[row * value_dim..][..value_dim];
            for value in out.iter_mut() {
                *value *= old;
            }
            for (position, &weight) in (first..end).zip(scores.iter()) {
                axpy(out, weight, v.row(position - positions.start, value_dim));
            }
        }
    }
}
