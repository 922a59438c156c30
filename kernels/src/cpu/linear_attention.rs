//! Linear attention on the CPU: token by token, or in chunks.

mod chunked;

use super::output::Output;
use super::simd::{axpy, exp, sum_of_squares};
use super::state::{Unit, for_each_unit};
use super::storage::{Input, Rows};
use crate::error::Result;
use crate::ops::linear_attention::{LinearAttentionScan, StateDecay};
use crate::states::States;
use candle_core::Tensor;
use std::cell::RefCell;

const OP: &str = "linear_attention";

pub(crate) fn linear_attention(input: &LinearAttentionScan<'_>, states: &States<'_>) -> Result<Tensor> {
    let States { view, batch, .. } = *states;
    let [heads, key_dim, value_dim] = view.shape;
    let LinearAttentionScan { q, k, v, .. } = *input;
    let total_tokens = v.dim(0)?;
    let key_heads = k.dims()[1..].iter().product::<usize>() / key_dim;
    let heads_per_key = heads / key_heads;
    let (q_in, k_in, v_in) = (Input::new(q)?, Input::new(k)?, Input::new(v)?);
    let beta_in = input.beta.map(Input::new).transpose()?;
    let decay_in = match input.decay {
        StateDecay::Fixed(decay) => DecayInput::Fixed(decay),
        StateDecay::PerHead(decay) => DecayInput::PerHead(Input::new(decay)?),
        StateDecay::PerChannel(decay) => DecayInput::PerChannel(Input::new(decay)?),
    };
    let out = Output::new(total_tokens * heads * value_dim);
    out.clear_padding(batch.padding(), heads * value_dim);
    let step = Step {
        q: q_in.rows(),
        k: k_in.rows(),
        v: v_in.rows(),
        decay: match &decay_in {
            DecayInput::Fixed(decay) => StepDecay::Fixed(decay),
            DecayInput::PerHead(decay) => StepDecay::PerHead(decay.rows()),
            DecayInput::PerChannel(decay) => StepDecay::PerChannel(decay.rows()),
        },
        beta: beta_in.as_ref().map(Input::rows),
        scale: input.scale,
        l2_norm: input.l2_norm,
        heads_per_key,
        shape: view.shape,
        out: &out,
    };
    for_each_unit(
        OP,
        states,
        heads,
        #[inline(always)]
        |unit| step.run(unit),
    )?;
    // SAFETY: the heads of active sequences and the padding make up all rows.
    unsafe { out.into_tensor((total_tokens, heads * value_dim), v) }
}

/// [`StateDecay`] with its tensor opened.
enum DecayInput<'a> {
    Fixed(&'a [f32]),
    PerHead(Input<'a>),
    PerChannel(Input<'a>),
}

/// [`StateDecay`] as rows.
enum StepDecay<'a> {
    Fixed(&'a [f32]),
    PerHead(Rows<'a>),
    PerChannel(Rows<'a>),
}

struct Step<'a> {
    q: Rows<'a>,
    k: Rows<'a>,
    v: Rows<'a>,
    decay: StepDecay<'a>,
    beta: Option<Rows<'a>>,
    scale: f32,
    l2_norm: bool,
    heads_per_key: usize,
    shape: [usize; 3],
    out: &'a Output,
}

/// What one token needs besides the state.
#[derive(Default)]
struct Token {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    decay: Vec<f32>,
}

impl Step<'_> {
    /// Steps one head over all rows of its sequence.
    #[inline(always)]
    fn run(&self, unit: Unit<'_>) {
        thread_local! {
            static TOKEN: RefCell<Token> = RefCell::default();
        }
        if unit.rows.len() >= chunked::MIN_TOKENS {
            return chunked::run(self, unit.rows, unit.index, unit.state);
        }
        let mut token = TOKEN.take();
        for row in unit.rows {
            self.load(row, unit.index, &mut token);
            let beta = self.beta.map(|beta| beta.row(row)[unit.index]);
            advance(unit.state, &mut token, beta, self.out_row(row, unit.index));
        }
        TOKEN.set(token);
    }

    /// The output of one row and head; asked for once.
    #[inline(always)]
    #[allow(clippy::mut_from_ref, reason = "each output is handed out once")]
    fn out_row(&self, row: usize, head: usize) -> &mut [f32] {
        let [heads, _, value_dim] = self.shape;
        let start = (row * heads + head) * value_dim;
        // SAFETY: one task alone has this row and this head.
        unsafe { self.out.piece(start..start + value_dim) }
    }

    #[inline(always)]
    fn load(&self, row: usize, head: usize, token: &mut Token) {
        let [_, key_dim, value_dim] = self.shape;
        token.q.clear();
        token.k.clear();
        token.v.clear();
        token.decay.clear();
        self.load_key(&self.q, row, head, self.scale, &mut token.q);
        self.load_key(&self.k, row, head, 1.0, &mut token.k);
        token.v.extend_from_slice(&self.v.row(row)[head * value_dim..][..value_dim]);
        match &self.decay {
            StepDecay::Fixed(decay) => token.decay.resize(key_dim, decay[head].exp()),
            StepDecay::PerHead(decay) => token.decay.resize(key_dim, decay.row(row)[head].exp()),
            StepDecay::PerChannel(decay) => {
                let decay = &decay.row(row)[head * key_dim..][..key_dim];
                token.decay.extend(decay.iter().map(|&decay| exp(decay)));
            }
        }
    }

    /// Appends a head's query or key times `scale`, of unit length if asked for.
    #[inline(always)]
    fn load_key(&self, rows: &Rows<'_>, row: usize, head: usize, scale: f32, target: &mut Vec<f32>) {
        let [_, key_dim, _] = self.shape;
        let source = &rows.row(row)[head / self.heads_per_key * key_dim..][..key_dim];
        let length = if self.l2_norm { (sum_of_squares(source) + 1e-6).sqrt() } else { 1.0 };
        target.extend(source.iter().map(|value| value * (scale / length)));
    }
}

/// One token of one head.
#[inline(always)]
fn advance(state: &mut [f32], token: &mut Token, beta: Option<f32>, out: &mut [f32]) {
    let value_dim = out.len();
    if let Some(beta) = beta {
        // What the decayed state already holds under this key.
        out.fill(0.0);
        for ((state, &k), &decay) in state.chunks_exact(value_dim).zip(&token.k).zip(&token.decay) {
            axpy(out, k * decay, state);
        }
        for (v, held) in token.v.iter_mut().zip(&*out) {
            *v = beta * (*v - held);
        }
    }
    out.fill(0.0);
    let rows = state.chunks_exact_mut(value_dim).zip(&token.k).zip(&token.q).zip(&token.decay);
    for (((state, &k), &q), &decay) in rows {
        for ((state, &v), out) in state.iter_mut().zip(&token.v).zip(&mut *out) {
            *state = *state * decay + k * v;
            *out += q * *state;
        }
    }
}
