//! What recurrent ops share: the walk that all of them make over a state pool, and the time step of the Mambas.

use super::element::Element;
use super::output::DisjointMut;
use super::simd::{softplus, vectorized};
use super::storage::{with_float_pool, with_pool_mut};
use super::tasks::for_each;
use crate::batch::StateWrites;
use crate::error::Result;
use crate::ops::mamba2::TimeStep;
use crate::states::States;
use rayon::prelude::*;
use std::cell::RefCell;
use std::ops::Range;

/// A part of one sequence's state, to be stepped over the sequence's rows by one thread.
pub(super) struct Unit<'a> {
    /// The sequence's rows in the step's activations.
    pub(super) rows: Range<usize>,
    /// Which of the equal parts of the state this is: a head, or a stretch of channels.
    pub(super) index: usize,
    /// The part, in f32 whatever the pool stores.
    pub(super) state: &'a mut [f32],
}

/// Cuts the state of every active sequence into `units` equal parts and runs `body` on each, in parallel.
///
/// `body` must be `#[inline(always)]` to be compiled for the instruction set of this machine.
#[inline(always)]
pub(super) fn for_each_unit(
    op: &'static str,
    states: &States<'_>,
    units: usize,
    body: impl Fn(Unit<'_>) + Sync,
) -> Result<()> {
    with_float_pool!(op, states.pool.dtype(), T => with_pool_mut::<T, _>(op, states.pool, |pool| {
        walk(pool, states, units, &body);
        Ok(())
    }))
}

#[inline(always)]
fn walk<T: Element>(pool: &mut [T], states: &States<'_>, units: usize, body: &(impl Fn(Unit<'_>) + Sync)) {
    let States { view, batch, .. } = *states;
    thread_local! {
        /// The f32 copy of a narrower state; kept, so that a decode step allocates nothing.
        static WIDE: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
        /// The states after the tokens of a tree that leaves none behind.
        static TREE: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
    }
    let elems = view.elems() / units;
    let pool = DisjointMut::new(pool);
    for_each((0..batch.len() * units).into_par_iter(), |task| {
        let index = task % units;
        let Some((rows, slot)) = batch.sequence(task / units) else { return };
        let part = |slot: usize| {
            let start = slot * view.slot_elems + view.layer_offset + index * elems;
            // SAFETY: a slot is written by one sequence, and this task alone has this part of it; it holds no more
            // than one part at a time.
            unsafe { pool.slice(start..start + elems) }
        };
        // An f32 state that moves on and nothing else is stepped where it lies.
        if let (StateWrites::Final | StateWrites::Replay, Some(state)) = (batch.writes, T::as_f32_mut(part(slot))) {
            vectorized(
                #[inline(always)]
                || {
                    for rows in batch.stretches(rows.clone()) {
                        body(Unit { rows, index, state: &mut *state });
                    }
                },
            );
            return;
        }
        // Taken, not borrowed: `body` may run other tasks of this walk on this thread while it waits.
        let (mut wide, mut tree) = (WIDE.take(), TREE.take());
        tree.clear();
        vectorized(
            #[inline(always)]
            || {
                load(part(slot), &mut wide);
                let (first, last) = (rows.start, rows.end - 1);
                for stretch in batch.stretches(rows.clone()) {
                    if let StateWrites::Tree { slots, .. } = batch.writes {
                        match batch.parent(stretch.start, stretch.start) {
                            None => load(part(slot), &mut wide),
                            Some(parent) if slots.is_empty() => {
                                wide.copy_from_slice(&tree[(parent - first) * elems..][..elems]);
                            }
                            Some(parent) => load(part(batch.snapshot(parent).unwrap_or(slot)), &mut wide),
                        }
                    }
                    let end = stretch.end - 1;
                    body(Unit { rows: stretch, index, state: &mut wide });
                    if let Some(snapshot) = batch.snapshot(end) {
                        store(&wide, part(snapshot));
                    }
                    if end == last && batch.writes_final() {
                        store(&wide, part(slot));
                    }
                    if batch.rounds_each_token() {
                        wide.iter_mut().for_each(|value| *value = T::store(*value).load());
                    }
                    if let StateWrites::Tree { slots: [], .. } = batch.writes {
                        tree.extend_from_slice(&wide);
                    }
                }
            },
        );
        TREE.set(tree);
        WIDE.set(wide);
    });
}

#[inline(always)]
fn load<T: Element>(stored: &[T], wide: &mut Vec<f32>) {
    wide.clear();
    wide.extend(stored.iter().map(|value| value.load()));
}

#[inline(always)]
fn store<T: Element>(wide: &[f32], stored: &mut [T]) {
    for (stored, wide) in stored.iter_mut().zip(wide) {
        *stored = T::store(*wide);
    }
}

/// How a time step is made from a projection's output.
#[inline(always)]
pub(super) fn time_step(rule: &TimeStep<'_>, dt: f32, bias: f32) -> f32 {
    let dt = if rule.softplus { softplus(dt + bias) } else { dt + bias };
    // Not `f32::max`, which would turn a NaN into a silent identity step.
    let (low, high) = rule.limit;
    if dt < low {
        low
    } else if dt > high {
        high
    } else {
        dt
    }
}
