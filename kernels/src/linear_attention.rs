//! Linear attention with a matrix state: gated delta nets, Kimi delta attention, lightning attention.

mod chunked;

use crate::batch::StateBatch;
use crate::check;
use crate::error::{KernelError, Result};
use crate::portable;
use crate::simd::{axpy, exp, sum_of_squares};
use crate::state::{Unit, for_each_unit};
use crate::storage::{Input, Output, Rows};
use crate::view::StateLayerView;
use candle_core::Tensor;
use std::cell::RefCell;

const OP: &str = "linear_attention";

/// How much of the state is left before a token is added, as a logarithm (at most 0).
#[derive(Clone, Copy, Debug)]
pub enum Decay<'a> {
    /// `[heads]`, the same at every token: lightning attention's negative slopes.
    Fixed(&'a [f32]),
    /// `[total_tokens, heads]`: gated delta rule.
    PerHead(&'a Tensor),
    /// `[total_tokens, heads * key_dim]`, one per key channel: Kimi delta attention.
    PerChannel(&'a Tensor),
}

/// The activations of one step.
#[derive(Clone, Copy, Debug)]
pub struct LinearAttention<'a> {
    /// `[total_tokens, key_heads * key_dim]`.
    pub q: &'a Tensor,
    /// `[total_tokens, key_heads * key_dim]`.
    pub k: &'a Tensor,
    /// `[total_tokens, heads * value_dim]`; consecutive `heads / key_heads` value heads share a key head.
    pub v: &'a Tensor,
    /// The decay.
    pub decay: Decay<'a>,
    /// `[total_tokens, heads]` write strength of the delta rule. None adds `k (x) v` as it is.
    pub beta: Option<&'a Tensor>,
    /// Factor on `q`.
    pub scale: f32,
    /// Whether each head of `q` and `k` is divided by its length, `sqrt(sum of squares + 1e-6)`, first.
    pub l2_norm: bool,
}

/// Steps each sequence's state `[heads, key_dim, value_dim]` over its tokens and reads it out.
///
/// Per token and head: `S = S * exp(decay)`; with the delta rule `v = beta * (v - k . S)`; `S += k (x) v`;
/// `o = scale * q . S`. Prefill and decode are the same call. Returns `[total_tokens, heads * value_dim]` in the
/// dtype of `v`.
pub fn linear_attention(
    input: &LinearAttention<'_>,
    pool: &Tensor,
    view: &StateLayerView,
    batch: &StateBatch<'_>,
) -> Result<Tensor> {
    let num_slots = view.check(OP, pool)?;
    let [heads, key_dim, value_dim] = view.shape;
    let LinearAttention { q, k, v, .. } = *input;
    let total_tokens = v.dim(0)?;
    batch.check(OP, total_tokens, num_slots)?;
    let key_heads = check::pieces(OP, "k", k, key_dim)?;
    let heads_per_key = check::shared(OP, heads, "value heads", key_heads, "key heads")?;
    check::rows(OP, "q", q, total_tokens, key_heads * key_dim)?;
    check::rows(OP, "k", k, total_tokens, key_heads * key_dim)?;
    check::rows(OP, "v", v, total_tokens, heads * value_dim)?;
    if let Some(beta) = input.beta {
        check::rows(OP, "beta", beta, total_tokens, heads)?;
    }
    match input.decay {
        Decay::Fixed(decay) if decay.len() != heads => {
            let reason = format!("{} decays for {heads} heads", decay.len());
            return Err(KernelError::Argument { op: OP, reason });
        }
        Decay::Fixed(_) => {}
        Decay::PerHead(decay) => check::rows(OP, "decay", decay, total_tokens, heads)?,
        Decay::PerChannel(decay) => check::rows(OP, "decay", decay, total_tokens, heads * key_dim)?,
    }
    if !v.device().is_cpu() {
        return portable::linear_attention::linear_attention(input, pool, view, batch);
    }
    let (q_in, k_in, v_in) = (Input::new(q)?, Input::new(k)?, Input::new(v)?);
    let beta_in = input.beta.map(Input::new).transpose()?;
    let decay_in = match input.decay {
        Decay::Fixed(decay) => DecayInput::Fixed(decay),
        Decay::PerHead(decay) => DecayInput::PerHead(Input::new(decay)?),
        Decay::PerChannel(decay) => DecayInput::PerChannel(Input::new(decay)?),
    };
    let out = Output::new(total_tokens * heads * value_dim);
    batch.clear_padding(heads * value_dim, &out);
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
        pool,
        view,
        batch,
        heads,
        #[inline(always)]
        |unit| step.run(unit),
    )?;
    // SAFETY: the heads of active sequences and the padding make up all rows.
    unsafe { out.into_tensor((total_tokens, heads * value_dim), v) }
}

/// [`Decay`] with its tensor opened.
enum DecayInput<'a> {
    Fixed(&'a [f32]),
    PerHead(Input<'a>),
    PerChannel(Input<'a>),
}

/// [`Decay`] as rows.
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
