//! The Mamba-2 state space recurrence.

use crate::batch::StateBatch;
use crate::error::{KernelError, Result};
use crate::portable;
use crate::simd::{dot, softplus, vectorized};
use crate::storage::{DisjointMut, Element, Input, Rows, with_float_pool, with_pool_mut};
use crate::view::StateLayerView;
use candle_core::Tensor;
use rayon::prelude::*;
use std::ops::Range;

const OP: &str = "mamba2_scan";

/// A layer's parameters and how its time step is made.
#[derive(Clone, Copy, Debug)]
pub struct Mamba2<'a> {
    /// `[heads]` decay rates, negative (`-exp(A_log)`), in f32.
    pub a: &'a Tensor,
    /// `[heads]` direct term.
    pub d: Option<&'a Tensor>,
    /// `[heads]` added to `dt`.
    pub dt_bias: Option<&'a Tensor>,
    /// Whether `dt` goes through softplus.
    pub dt_softplus: bool,
    /// Bounds of `dt` after softplus: the config's `time_step_limit`, `(0, inf)` where it has none.
    pub dt_limit: (f32, f32),
}

/// Steps each sequence's state `[heads, head_dim, d_state]` over its tokens and reads it out.
///
/// With `dt' = clamp(softplus(dt + dt_bias))`, per token and head:
/// `S = S * exp(a * dt') + dt' * x (x) b` and `y = S . c + d * x`.
/// `x` is `[total_tokens, heads * head_dim]`, `dt` `[total_tokens, heads]`, `b` and `c`
/// `[total_tokens, groups * d_state]` (trailing dimensions may be split); consecutive `heads / groups` heads share
/// a group. Prefill and decode are the same call, and the same clamp applies to both. Returns
/// `[total_tokens, heads * head_dim]` in the dtype of `x`.
#[allow(
    clippy::too_many_arguments,
    reason = "five activations and the pool with its two descriptors"
)]
pub fn mamba2_scan(
    x: &Tensor,
    dt: &Tensor,
    b: &Tensor,
    c: &Tensor,
    layer: &Mamba2<'_>,
    pool: &Tensor,
    view: &StateLayerView,
    batch: &StateBatch<'_>,
) -> Result<Tensor> {
    let num_slots = view.check(OP, pool)?;
    let total_tokens = x.dim(0)?;
    batch.check(OP, total_tokens, num_slots)?;
    let [heads, head_dim, d_state] = view.shape;
    let width = |tensor: &Tensor| tensor.elem_count() / total_tokens.max(1);
    let groups = width(b) / d_state;
    if total_tokens > 0 && (groups == 0 || !heads.is_multiple_of(groups)) {
        return Err(KernelError::Argument {
            op: OP,
            reason: format!("{heads} heads cannot share {groups} groups evenly"),
        });
    }
    for (operand, tensor, expected) in [
        ("x", x, heads * head_dim),
        ("dt", dt, heads),
        ("b", b, groups * d_state),
        ("c", c, groups * d_state),
    ] {
        if tensor.dim(0)? != total_tokens || (total_tokens > 0 && width(tensor) != expected) {
            return Err(KernelError::Shape {
                op: OP,
                operand,
                found: tensor.dims().to_vec(),
                expected: format!("[{total_tokens}, {expected}]"),
            });
        }
    }
    for (operand, tensor) in [
        ("a", Some(layer.a)),
        ("d", layer.d),
        ("dt_bias", layer.dt_bias),
    ] {
        if let Some(tensor) = tensor.filter(|tensor| tensor.elem_count() != heads) {
            return Err(KernelError::Shape {
                op: OP,
                operand,
                found: tensor.dims().to_vec(),
                expected: format!("[{heads}]"),
            });
        }
    }
    if !x.device().is_cpu() {
        return portable::mamba2::mamba2_scan(x, dt, b, c, layer, pool, view, batch);
    }
    let (x_in, dt_in) = (Input::new(x)?, Input::new(dt)?);
    let (b_in, c_in) = (Input::new(b)?, Input::new(c)?);
    let a = Input::flat(layer.a)?;
    let d = Input::optional_flat(layer.d)?;
    let dt_bias = Input::optional_flat(layer.dt_bias)?;
    let scan = Scan {
        x: x_in.rows(),
        dt: dt_in.rows(),
        b: b_in.rows(),
        c: c_in.rows(),
        a: a.rows().row(0),
        d: d.as_ref().map(|d| d.rows().row(0)),
        dt_bias: dt_bias.as_ref().map(|bias| bias.rows().row(0)),
        dt_softplus: layer.dt_softplus,
        dt_limit: layer.dt_limit,
        heads_per_group: heads / groups.max(1),
        view,
    };
    let mut out = vec![0f32; total_tokens * heads * head_dim];
    with_float_pool!(OP, pool.dtype(), T => with_pool_mut::<T, _>(OP, pool, |pool| {
        scan.run(pool, batch, &mut out);
        Ok(())
    }))?;
    Ok(Tensor::from_vec(out, (total_tokens, heads * head_dim), x.device())?.to_dtype(x.dtype())?)
}

struct Scan<'a> {
    x: Rows<'a>,
    dt: Rows<'a>,
    b: Rows<'a>,
    c: Rows<'a>,
    a: &'a [f32],
    d: Option<&'a [f32]>,
    dt_bias: Option<&'a [f32]>,
    dt_softplus: bool,
    dt_limit: (f32, f32),
    heads_per_group: usize,
    view: &'a StateLayerView,
}

impl Scan<'_> {
    fn run<T: Element>(&self, pool: &mut [T], batch: &StateBatch<'_>, out: &mut [f32]) {
        let [heads, head_dim, d_state] = self.view.shape;
        let state_elems = head_dim * d_state;
        let active: Vec<_> = batch.active().collect();
        let pool = DisjointMut::new(pool);
        let out = DisjointMut::new(out);
        (0..active.len() * heads).into_par_iter().for_each(|task| {
            let (rows, slot) = &active[task / heads];
            let head = task % heads;
            let start = slot * self.view.slot_elems + self.view.layer_offset + head * state_elems;
            // SAFETY: a slot belongs to one sequence, and this task alone has this head of it.
            let state = unsafe { pool.slice(start..start + state_elems) };
            vectorized(
                #[inline(always)]
                || match T::as_f32_mut(state) {
                    Some(state) => self.steps(rows.clone(), head, state, &out),
                    None => {
                        let mut wide: Vec<f32> = state.iter().map(|value| value.load()).collect();
                        self.steps(rows.clone(), head, &mut wide, &out);
                        for (state, wide) in state.iter_mut().zip(wide) {
                            *state = T::store(wide);
                        }
                    }
                },
            );
        });
    }

    #[inline(always)]
    fn steps(
        &self,
        rows: Range<usize>,
        head: usize,
        state: &mut [f32],
        out: &DisjointMut<'_, f32>,
    ) {
        let [heads, head_dim, d_state] = self.view.shape;
        let group = head / self.heads_per_group;
        for row in rows {
            let dt = self.time_step(row, head);
            let decay = (self.a[head] * dt).exp();
            let x = &self.x.row(row)[head * head_dim..][..head_dim];
            let b = &self.b.row(row)[group * d_state..][..d_state];
            let c = &self.c.row(row)[group * d_state..][..d_state];
            let start = (row * heads + head) * head_dim;
            // SAFETY: this task alone has this row and this head.
            let out = unsafe { out.slice(start..start + head_dim) };
            for ((state, &x), out) in state.chunks_exact_mut(d_state).zip(x).zip(out) {
                let u = dt * x;
                for (state, &b) in state.iter_mut().zip(b) {
                    *state = *state * decay + u * b;
                }
                *out = dot(state, c) + self.d.map_or(0.0, |d| d[head] * x);
            }
        }
    }

    #[inline(always)]
    fn time_step(&self, row: usize, head: usize) -> f32 {
        let dt = self.dt.row(row)[head] + self.dt_bias.map_or(0.0, |bias| bias[head]);
        let dt = if self.dt_softplus { softplus(dt) } else { dt };
        // Not `f32::max`, which would turn a NaN into a silent identity step.
        let (low, high) = self.dt_limit;
        if dt < low {
            low
        } else if dt > high {
            high
        } else {
            dt
        }
    }
}
