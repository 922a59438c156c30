//! The Mamba-2 recurrence on the CPU: token by token, or in chunks.

mod chunked;

use super::output::Output;
use super::simd::{advance_state, axpy, silu};
use super::state::{Unit, for_each_unit, time_step};
use super::storage::{Input, Rows};
use crate::error::Result;
use crate::ops::mamba2::{Mamba2Scan, ScanInput, TimeStep};
use crate::states::States;
use candle_core::Tensor;

const OP: &str = "mamba2_scan";

pub(crate) fn mamba2_scan(input: &ScanInput<'_>, layer: &Mamba2Scan<'_>, states: &States<'_>) -> Result<Tensor> {
    let States { view, batch, .. } = *states;
    let [heads, head_dim, d_state] = view.shape;
    let ScanInput { x, dt, b, c, z } = *input;
    let total_tokens = x.dim(0)?;
    let groups = b.dims()[1..].iter().product::<usize>() / d_state;
    let heads_per_group = heads / groups;
    let (x_in, dt_in, b_in, c_in) = (Input::new(x)?, Input::new(dt)?, Input::new(b)?, Input::new(c)?);
    let z_in = z.map(Input::new).transpose()?;
    let a = Input::flat(layer.a)?;
    let d = Input::optional_flat(layer.d)?;
    let dt_bias = Input::optional_flat(layer.time_step.bias)?;
    let out = Output::new(total_tokens * heads * head_dim);
    out.clear_padding(batch.padding(), heads * head_dim);
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
        states,
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
        time_step(self.time_step, self.dt.row(row)[head], bias)
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
