//! The Mamba-2 state space recurrence.

mod chunked;

use crate::batch::StateBatch;
use crate::check;
use crate::error::Result;
use crate::portable;
use crate::simd::{advance_state, axpy, silu, softplus};
use crate::state::{Unit, for_each_unit};
use crate::storage::{Input, Output, Rows};
use crate::view::StateLayerView;
use candle_core::Tensor;

const OP: &str = "mamba2_scan";

/// A layer's parameters and how its time step is made.
#[derive(Clone, Copy, Debug)]
pub struct Mamba2<'a> {
    /// `[heads]` decay rates, negative (`-exp(A_log)`), in f32.
    pub a: &'a Tensor,
    /// `[heads]` direct term.
    pub d: Option<&'a Tensor>,
    /// How `dt` is made from the projection's output.
    pub time_step: TimeStep<'a>,
}

/// How the time step is made: `clamp(softplus(dt + bias), limit)`, the same in prefill and decode.
#[derive(Clone, Copy, Debug)]
pub struct TimeStep<'a> {
    /// Added before softplus, one per head or channel.
    pub bias: Option<&'a Tensor>,
    /// Whether softplus is applied.
    pub softplus: bool,
    /// Bounds after softplus: the config's `time_step_limit`, `(0, inf)` where it has none.
    pub limit: (f32, f32),
}

impl<'a> TimeStep<'a> {
    /// `softplus(dt + bias)` without bounds.
    pub fn new(bias: Option<&'a Tensor>) -> Self {
        Self { bias, softplus: true, limit: (0.0, f32::INFINITY) }
    }

    #[inline(always)]
    pub(crate) fn apply(&self, dt: f32, bias: f32) -> f32 {
        let dt = if self.softplus { softplus(dt + bias) } else { dt + bias };
        // Not `f32::max`, which would turn a NaN into a silent identity step.
        let (low, high) = self.limit;
        if dt < low {
            low
        } else if dt > high {
            high
        } else {
            dt
        }
    }
}

/// The activations of one step.
#[derive(Clone, Copy, Debug)]
pub struct ScanInput<'a> {
    /// `[total_tokens, heads * head_dim]`.
    pub x: &'a Tensor,
    /// `[total_tokens, heads]`.
    pub dt: &'a Tensor,
    /// `[total_tokens, groups * d_state]`.
    pub b: &'a Tensor,
    /// `[total_tokens, groups * d_state]`.
    pub c: &'a Tensor,
    /// `[total_tokens, heads * head_dim]` gate: the output is multiplied by `silu(z)`.
    pub z: Option<&'a Tensor>,
}

/// Steps each sequence's state `[heads, head_dim, d_state]` over its tokens and reads it out.
///
/// Per token and head, with `dt` as [`TimeStep`] makes it:
/// `S = S * exp(a * dt) + dt * x (x) b` and `y = S . c + d * x`, then the gate.
/// Consecutive `heads / groups` heads share a group of `b` and `c`. Prefill and decode are the same call. Returns
/// `[total_tokens, heads * head_dim]` in the dtype of `x`.
pub fn mamba2_scan(
    input: &ScanInput<'_>,
    layer: &Mamba2<'_>,
    pool: &Tensor,
    view: &StateLayerView,
    batch: &StateBatch<'_>,
) -> Result<Tensor> {
    let num_slots = view.check(OP, pool)?;
    let [heads, head_dim, d_state] = view.shape;
    let ScanInput { x, dt, b, c, z } = *input;
    let total_tokens = x.dim(0)?;
    batch.check(OP, total_tokens, num_slots)?;
    let groups = check::pieces(OP, "b", b, d_state)?;
    let heads_per_group = check::shared(OP, heads, "heads", groups, "groups")?;
    check::rows(OP, "x", x, total_tokens, heads * head_dim)?;
    check::rows(OP, "dt", dt, total_tokens, heads)?;
    check::rows(OP, "b", b, total_tokens, groups * d_state)?;
    check::rows(OP, "c", c, total_tokens, groups * d_state)?;
    if let Some(z) = z {
        check::rows(OP, "z", z, total_tokens, heads * head_dim)?;
    }
    check::vector(OP, "a", Some(layer.a), heads)?;
    check::vector(OP, "d", layer.d, heads)?;
    check::vector(OP, "dt bias", layer.time_step.bias, heads)?;
    if !x.device().is_cpu() {
        return portable::mamba2::mamba2_scan(input, layer, pool, view, batch);
    }
    let (x_in, dt_in, b_in, c_in) = (Input::new(x)?, Input::new(dt)?, Input::new(b)?, Input::new(c)?);
    let z_in = z.map(Input::new).transpose()?;
    let a = Input::flat(layer.a)?;
    let d = Input::optional_flat(layer.d)?;
    let dt_bias = Input::optional_flat(layer.time_step.bias)?;
    let out = Output::new(total_tokens * heads * head_dim);
    batch.clear_padding(heads * head_dim, &out);
    let scan = Scan {
        x: x_in.rows(),
        dt: dt_in.rows(),
        b: b_in.rows(),
        c: c_in.rows(),
        z: z_in.as_ref().map(Input::rows),
        a: a.rows().row(0),
        d: d.as_ref().map(|d| d.rows().row(0)),
        dt_bias: dt_bias.as_ref().map(|bias| bias.rows().row(0)),
        time_step: &layer.time_step,
        heads_per_group,
        shape: view.shape,
        out: &out,
    };
    let products = chunked::products(&scan, batch);
    for_each_unit(
        OP,
        pool,
        view,
        batch,
        heads,
        #[inline(always)]
        |unit| scan.run(unit, &products),
    )?;
    // SAFETY: the heads of active sequences and the padding make up all rows.
    unsafe { out.into_tensor((total_tokens, heads * head_dim), x) }
}

/// Channels whose inputs are made at once; real heads have 64 or 128.
const MAX_INPUTS: usize = 128;

struct Scan<'a> {
    x: Rows<'a>,
    dt: Rows<'a>,
    b: Rows<'a>,
    c: Rows<'a>,
    z: Option<Rows<'a>>,
    a: &'a [f32],
    d: Option<&'a [f32]>,
    dt_bias: Option<&'a [f32]>,
    time_step: &'a TimeStep<'a>,
    heads_per_group: usize,
    shape: [usize; 3],
    out: &'a Output,
}

impl Scan<'_> {
    /// Steps one head over all rows of its sequence.
    #[inline(always)]
    fn run(&self, unit: Unit<'_>, products: &[f32]) {
        if unit.rows.len() >= chunked::MIN_TOKENS {
            for chunk in chunked::chunks(unit.rows) {
                chunked::step(self, products, chunk, unit.index, unit.state);
            }
        } else {
            for row in unit.rows {
                self.step(row, unit.index, unit.state);
            }
        }
    }

    /// Steps one head over one row.
    #[inline(always)]
    fn step(&self, row: usize, head: usize, state: &mut [f32]) {
        let [heads, head_dim, d_state] = self.shape;
        let group = head / self.heads_per_group;
        let dt = self.time_step(row, head);
        let decay = (self.a[head] * dt).exp();
        let x = &self.x.row(row)[head * head_dim..][..head_dim];
        let b = &self.b.row(row)[group * d_state..][..d_state];
        let c = &self.c.row(row)[group * d_state..][..d_state];
        let start = (row * heads + head) * head_dim;
        // SAFETY: this task alone has this row and this head.
        let out = unsafe { self.out.piece(start..start + head_dim) };
        let mut input = [0f32; MAX_INPUTS];
        let step = state.chunks_mut(MAX_INPUTS * d_state).zip(x.chunks(MAX_INPUTS)).zip(out.chunks_mut(MAX_INPUTS));
        for ((state, x), out) in step {
            for (input, x) in input.iter_mut().zip(x) {
                *input = dt * x;
            }
            advance_state(state, decay, &input[..x.len()], b, c, out);
        }
        self.add_direct_and_gate(row, head, out);
    }

    #[inline(always)]
    fn time_step(&self, row: usize, head: usize) -> f32 {
        let bias = self.dt_bias.map_or(0.0, |bias| bias[head]);
        self.time_step.apply(self.dt.row(row)[head], bias)
    }

    /// Writes what the state gave to one row and head, with the direct term and the gate.
    #[inline(always)]
    fn finish(&self, row: usize, head: usize, read: &[f32]) {
        let [heads, head_dim, _] = self.shape;
        let start = (row * heads + head) * head_dim;
        // SAFETY: this task alone has this row and this head.
        let out = unsafe { self.out.piece(start..start + head_dim) };
        out.copy_from_slice(read);
        self.add_direct_and_gate(row, head, out);
    }

    #[inline(always)]
    fn add_direct_and_gate(&self, row: usize, head: usize, out: &mut [f32]) {
        let head_dim = out.len();
        let span = head * head_dim..(head + 1) * head_dim;
        if let Some(d) = self.d {
            axpy(out, d[head], &self.x.row(row)[span.clone()]);
        }
        if let Some(z) = &self.z {
            for (out, &z) in out.iter_mut().zip(&z.row(row)[span]) {
                *out *= silu(z);
            }
        }
    }
}
