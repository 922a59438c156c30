//! Causal depthwise convolution over time with a carried state.

use crate::batch::StateBatch;
use crate::error::KernelError;
use crate::portable;
use crate::simd::{prefetch, silu, vectorized};
use crate::storage::{DisjointMut, Element, Input, Rows, with_float_pool, with_pool_mut};
use crate::view::StateLayerView;
use candle_core::Tensor;
use rayon::prelude::*;
use std::ops::Range;

const OP: &str = "causal_conv1d";

/// What follows the convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// Nothing.
    None,
    /// `x * sigmoid(x)`.
    Silu,
}

/// Convolves `x` `[total_tokens, conv_dim]` with `weight` `[d_conv, conv_dim]` and moves the state on.
///
/// `y[t, d] = act(bias[d] + sum_k weight[k, d] * x[t - (d_conv - 1) + k, d])`, where the rows before a sequence's
/// first token are its state. Prefill, chunked prefill and decode are the same call; a new sequence starts from a
/// zeroed slot. Afterwards the state holds the last `d_conv - 1` inputs, the oldest first. `weight` is the
/// checkpoint's `[conv_dim, 1, d_conv]` transposed once at load, so that all operands are contiguous over channels.
pub fn causal_conv1d(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    activation: Activation,
    pool: &Tensor,
    view: &StateLayerView,
    batch: &StateBatch<'_>,
) -> crate::error::Result<Tensor> {
    let num_slots = view.check(OP, pool)?;
    let (total_tokens, conv_dim) = x.dims2()?;
    batch.check(OP, total_tokens, num_slots)?;
    let d_conv = view.shape[0] + 1;
    let expect = |operand, tensor: &Tensor, dims: &[usize]| {
        if tensor.dims() == dims {
            return Ok(());
        }
        Err(KernelError::Shape { op: OP, operand, found: tensor.dims().to_vec(), expected: format!("{dims:?}") })
    };
    expect("x", x, &[total_tokens, view.shape[1] * view.shape[2]])?;
    expect("weight", weight, &[d_conv, conv_dim])?;
    if let Some(bias) = bias {
        expect("bias", bias, &[conv_dim])?;
    }
    if !x.device().is_cpu() {
        return portable::conv1d::causal_conv1d(x, weight, bias, activation, pool, view, batch);
    }
    let (input, weight) = (Input::new(x)?, Input::new(weight)?);
    let bias = Input::optional_flat(bias)?;
    let mut out = vec![0f32; total_tokens * conv_dim];
    let conv = Conv {
        batch,
        x: input.rows(),
        weight: weight.rows(),
        bias: bias.as_ref().map(|bias| bias.rows().row(0)),
        activation,
    };
    with_float_pool!(OP, pool.dtype(), T => with_pool_mut::<T, _>(OP, pool, |pool| {
        conv.run(pool, view, &mut out);
        Ok(())
    }))?;
    Ok(Tensor::from_vec(out, (total_tokens, conv_dim), x.device())?.to_dtype(x.dtype())?)
}

/// Rows that one task convolves.
const ROWS_PER_TASK: usize = 64;
/// Channels that are convolved over all rows of a task before the next ones, so that each input is read from memory
/// once and found near by the following taps.
const CHANNELS_AT_ONCE: usize = 1024;

struct Conv<'a> {
    batch: &'a StateBatch<'a>,
    x: Rows<'a>,
    weight: Rows<'a>,
    bias: Option<&'a [f32]>,
    activation: Activation,
}

impl Conv<'_> {
    fn run<T: Element>(&self, pool: &mut [T], view: &StateLayerView, out: &mut [f32]) {
        let batch = self.batch;
        let state_of = |slot: usize| {
            let start = slot * view.slot_elems + view.layer_offset;
            start..start + view.elems()
        };
        let tasks: Vec<(Range<usize>, usize, Range<usize>)> = batch
            .active()
            .flat_map(|(rows, slot)| {
                rows.clone()
                    .step_by(ROWS_PER_TASK)
                    .map(move |start| (rows.clone(), slot, start..(start + ROWS_PER_TASK).min(rows.end)))
            })
            .collect();
        let target = DisjointMut::new(out);
        let states = &*pool;
        tasks.par_iter().for_each(|(rows, slot, task)| {
            let widened;
            let state = &states[state_of(*slot)];
            let state = match T::as_f32(state) {
                Some(state) => state,
                None => {
                    widened = state.iter().map(|value| value.load()).collect::<Vec<_>>();
                    &widened
                }
            };
            let width = self.x.width();
            // SAFETY: tasks have distinct rows.
            let out = unsafe { target.slice(task.start * width..task.end * width) };
            vectorized(
                #[inline(always)]
                || self.convolve(rows.start, state, task.clone(), out),
            );
        });
        // States move only after every task has read them.
        let mut old = Vec::new();
        for (rows, slot) in batch.active() {
            old.clear();
            old.extend_from_slice(&pool[state_of(slot)]);
            for row in rows.clone() {
                if let Some(snapshot) = batch.snapshot(row) {
                    self.state_after(row, rows.start, &old, &mut pool[state_of(snapshot)]);
                }
            }
            if batch.writes_final() {
                self.state_after(rows.end - 1, rows.start, &old, &mut pool[state_of(slot)]);
            }
        }
    }

    /// Convolves the rows of `task`, which belong to the sequence that starts at row `first`.
    #[inline(always)]
    fn convolve(&self, first: usize, state: &[f32], task: Range<usize>, out: &mut [f32]) {
        match self.weight.len() {
            2 => self.convolve_rows::<2>(first, state, task, out),
            3 => self.convolve_rows::<3>(first, state, task, out),
            4 => self.convolve_rows::<4>(first, state, task, out),
            _ => self.convolve_by_tap(first, state, task, out),
        }
    }

    /// The input that `tap` meets when it convolves `row`.
    #[inline(always)]
    fn input<'s>(&'s self, first: usize, state: &'s [f32], row: usize, tap: usize) -> &'s [f32] {
        let width = self.x.width();
        match behind(self.batch, first, row, self.weight.len() - 1 - tap) {
            Ok(row) => self.x.row(row),
            Err(back) => &state[state.len() - back * width..][..width],
        }
    }

    /// All taps in one pass, for the widths that models have.
    #[inline(always)]
    fn convolve_rows<const TAPS: usize>(&self, first: usize, state: &[f32], task: Range<usize>, out: &mut [f32]) {
        let width = self.x.width();
        for start in (0..width).step_by(CHANNELS_AT_ONCE) {
            let channels = start..(start + CHANNELS_AT_ONCE).min(width);
            let len = channels.len();
            let weights: [&[f32]; TAPS] = std::array::from_fn(|tap| &self.weight.row(tap)[channels.clone()][..len]);
            for (row, out) in task.clone().zip(out.chunks_exact_mut(width)) {
                if row + 1 < task.end {
                    self.x.row(row + 1)[channels.clone()].iter().step_by(16).for_each(prefetch);
                }
                let inputs: [&[f32]; TAPS] =
                    std::array::from_fn(|tap| &self.input(first, state, row, tap)[channels.clone()][..len]);
                let out = &mut out[channels.clone()][..len];
                match self.bias {
                    Some(bias) => out.copy_from_slice(&bias[channels.clone()]),
                    None => out.fill(0.0),
                }
                for channel in 0..len {
                    let mut sum = out[channel];
                    for tap in 0..TAPS {
                        sum += weights[tap][channel] * inputs[tap][channel];
                    }
                    out[channel] = sum;
                }
                self.activate(out);
            }
        }
    }

    #[inline(always)]
    fn convolve_by_tap(&self, first: usize, state: &[f32], task: Range<usize>, out: &mut [f32]) {
        for (row, out) in task.zip(out.chunks_exact_mut(self.x.width())) {
            match self.bias {
                Some(bias) => out.copy_from_slice(bias),
                None => out.fill(0.0),
            }
            for tap in 0..self.weight.len() {
                let input = self.input(first, state, row, tap);
                for ((out, weight), x) in out.iter_mut().zip(self.weight.row(tap)).zip(input) {
                    *out += weight * x;
                }
            }
            self.activate(out);
        }
    }

    #[inline(always)]
    fn activate(&self, out: &mut [f32]) {
        if self.activation == Activation::Silu {
            for out in out.iter_mut() {
                *out = silu(*out);
            }
        }
    }

    /// Writes the last inputs up to `row`, of a sequence that starts at row `first` with the state `old`.
    fn state_after<T: Element>(&self, row: usize, first: usize, old: &[T], target: &mut [T]) {
        let width = self.x.width();
        for (back, target) in target.chunks_exact_mut(width).rev().enumerate() {
            match behind(self.batch, first, row, back) {
                Ok(row) => {
                    for (target, &source) in target.iter_mut().zip(self.x.row(row)) {
                        *target = T::store(source);
                    }
                }
                Err(back) => target.copy_from_slice(&old[old.len() - back * width..][..width]),
            }
        }
    }
}

/// The row `back` tokens before `row`, or how many tokens before the sequence's first that is.
pub(crate) fn behind(batch: &StateBatch<'_>, first: usize, row: usize, back: usize) -> Result<usize, usize> {
    let mut row = row;
    for left in (1..=back).rev() {
        row = batch.parent(first, row).ok_or(left)?;
    }
    Ok(row)
}
