//! Causal depthwise convolution on the CPU.

use super::element::Element;
use super::output::{DisjointMut, Output};
use super::simd::{silu, vectorized, weigh_taps};
use super::storage::{Input, Rows, with_float_pool, with_pool_mut};
use super::tasks::for_each;
use crate::batch::StateBatch;
use crate::error::Result;
use crate::ops::conv1d::CausalConv1d;
use crate::states::States;
use crate::view::StateLayerView;
use candle_core::Tensor;
use rayon::prelude::*;
use std::cell::RefCell;
use std::ops::Range;

const OP: &str = "causal_conv1d";

pub(crate) fn causal_conv1d(conv: &CausalConv1d<'_>, x: &Tensor, states: &States<'_>) -> Result<Tensor> {
    let States { pool, view, batch } = *states;
    let (total_tokens, conv_dim) = x.dims2()?;
    let (input, weight) = (Input::new(x)?, Input::new(conv.weight)?);
    let bias = Input::optional_flat(conv.bias)?;
    let out = Output::new(total_tokens * conv_dim);
    let conv = Conv {
        batch,
        x: input.rows(),
        weight: weight.rows(),
        bias: bias.as_ref().map(|bias| bias.rows().row(0)),
        silu: conv.silu,
    };
    with_float_pool!(OP, pool.dtype(), T => with_pool_mut::<T, _>(OP, pool, |pool| {
        conv.run(pool, view, &out);
        Ok(())
    }))?;
    // SAFETY: the tasks and the padding make up all rows.
    unsafe { out.into_tensor((total_tokens, conv_dim), x) }
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
    silu: bool,
}

/// Rows of a task, of a sequence that starts at row `first` and has its state in `slot`.
#[derive(Clone)]
struct Task {
    first: usize,
    slot: usize,
    rows: Range<usize>,
}

impl Conv<'_> {
    fn run<T: Element>(&self, pool: &mut [T], view: &StateLayerView, out: &Output) {
        thread_local! {
            // Kept, so that a decode step allocates nothing.
            static TASKS: RefCell<Vec<Task>> = const { RefCell::new(Vec::new()) };
            static WIDENED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
        }
        let batch = self.batch;
        let width = self.x.width();
        let state_of = |slot: usize| {
            let start = slot * view.slot_elems + view.layer_offset;
            start..start + view.elems()
        };
        out.clear_padding(batch.padding(), width);
        let mut tasks = TASKS.take();
        tasks.clear();
        for (rows, slot) in batch.active() {
            let starts = rows.clone().step_by(ROWS_PER_TASK);
            let end = |start: usize| (start + ROWS_PER_TASK).min(rows.end);
            tasks.extend(starts.map(|start| Task { first: rows.start, slot, rows: start..end(start) }));
        }
        let states = &*pool;
        for_each(tasks.par_iter(), |task| {
            let mut widened = WIDENED.take();
            let state = &states[state_of(task.slot)];
            let state = match T::as_f32(state) {
                Some(state) => state,
                None => {
                    widened.clear();
                    widened.extend(state.iter().map(|value| value.load()));
                    &widened
                }
            };
            vectorized(
                #[inline(always)]
                || self.convolve(task, state, out),
            );
            WIDENED.set(widened);
            Output::settle();
        });
        TASKS.set(tasks);
        // States move only after every task has read them.
        let pool = DisjointMut::new(pool);
        for_each((0..batch.len()).into_par_iter(), |sequence| {
            let Some((rows, slot)) = batch.sequence(sequence) else { return };
            // SAFETY: a slot is written by one sequence, and a task holds one piece at a time but for the copy of
            // an older row to a newer one.
            let row_of = |slot: usize, row: usize| unsafe {
                let start = state_of(slot).start + row * width;
                pool.slice(start..start + width)
            };
            for row in rows.clone() {
                if let Some(snapshot) = batch.snapshot(row) {
                    self.state_after(row, rows.start, |i| row_of(slot, i), |i| row_of(snapshot, i));
                }
            }
            if batch.writes_final() {
                self.state_after(rows.end - 1, rows.start, |i| row_of(slot, i), |i| row_of(slot, i));
            }
        });
    }

    #[inline(always)]
    fn convolve(&self, task: &Task, state: &[f32], out: &Output) {
        match self.weight.len() {
            2 => self.convolve_rows::<2>(task, state, out),
            3 => self.convolve_rows::<3>(task, state, out),
            4 => self.convolve_rows::<4>(task, state, out),
            _ => self.convolve_by_tap(task, state, out),
        }
    }

    /// The input that `tap` meets when it convolves `row`.
    #[inline(always)]
    fn input<'s>(&'s self, first: usize, state: &'s [f32], row: usize, tap: usize) -> &'s [f32] {
        let width = self.x.width();
        match self.batch.behind(first, row, self.weight.len() - 1 - tap) {
            Ok(row) => self.x.row(row),
            Err(back) => &state[state.len() - back * width..][..width],
        }
    }

    /// All taps in one pass, for the widths that models have.
    fn convolve_rows<const TAPS: usize>(&self, task: &Task, state: &[f32], out: &Output) {
        let width = self.x.width();
        let silu = self.silu;
        let no_bias = [0f32; CHANNELS_AT_ONCE];
        let mut buffer = [0f32; CHANNELS_AT_ONCE];
        for start in (0..width).step_by(CHANNELS_AT_ONCE) {
            let channels = start..(start + CHANNELS_AT_ONCE).min(width);
            let convolved = &mut buffer[..channels.len()];
            let weights: [&[f32]; TAPS] = std::array::from_fn(|tap| &self.weight.row(tap)[channels.clone()]);
            let bias = self.bias.map_or(&no_bias[..channels.len()], |bias| &bias[channels.clone()]);
            for row in task.rows.clone() {
                let next = &self.x.row((row + 1).min(task.rows.end - 1))[channels.clone()];
                let inputs: [&[f32]; TAPS] =
                    std::array::from_fn(|tap| &self.input(task.first, state, row, tap)[channels.clone()]);
                weigh_taps(weights, inputs, bias, next, silu, convolved);
                // SAFETY: tasks have distinct rows.
                unsafe { out.write(row * width + start, convolved) };
            }
        }
    }

    #[inline(always)]
    fn convolve_by_tap(&self, task: &Task, state: &[f32], out: &Output) {
        let width = self.x.width();
        for row in task.rows.clone() {
            // SAFETY: tasks have distinct rows.
            let out = unsafe { out.piece(row * width..(row + 1) * width) };
            if let Some(bias) = self.bias {
                out.copy_from_slice(bias);
            }
            for tap in 0..self.weight.len() {
                let input = self.input(task.first, state, row, tap);
                for ((out, weight), x) in out.iter_mut().zip(self.weight.row(tap)).zip(input) {
                    *out += weight * x;
                }
            }
            if self.silu {
                out.iter_mut().for_each(|out| *out = silu(*out));
            }
        }
    }

    /// Writes the last inputs up to `row`, of a sequence that starts at row `first` with the state `old`. The two
    /// may be the same: older rows, which are written first, come from newer ones.
    fn state_after<'p, T: Element>(
        &self,
        row: usize,
        first: usize,
        old: impl Fn(usize) -> &'p mut [T],
        target: impl Fn(usize) -> &'p mut [T],
    ) {
        let keep = self.weight.len() - 1;
        for index in 0..keep {
            match self.batch.behind(first, row, keep - 1 - index) {
                Ok(row) => {
                    for (target, &source) in target(index).iter_mut().zip(self.x.row(row)) {
                        *target = T::store(source);
                    }
                }
                Err(back) => target(index).copy_from_slice(old(keep - back)),
            }
        }
    }
}
