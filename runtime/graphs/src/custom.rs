//! The ops of TensorRT-Edge-LLM's exports, on our own kernels.

use cacheplan_kernels::{
    Backend, CausalConv1d, LinearAttentionScan, Mamba2Scan, ScanInput, StateBatch, StateDecay, StateLayerView, TimeStep,
};
use cacheplan_transforms::onnx::EdgeScan;
use candle_core::{Device, Tensor};

use crate::tensor::{Operand, Pooled};

type Result<T> = std::result::Result<T, String>;

/// `causal_conv1d`: x `[batch, tokens, channels]`, weight, bias, state `[batch, channels, columns]`, context lengths.
#[derive(Clone, Debug)]
pub(crate) struct Convolution {
    /// `[d_conv, channels]`.
    weight: Tensor,
    bias: Option<Tensor>,
    d_conv: usize,
}

/// `update_ssm_state`: x `[batch, tokens, heads, head_dim]`, a, b, c, d, dt, dt_bias, state, context lengths.
#[derive(Clone, Debug)]
pub(crate) struct Scan {
    a: Tensor,
    d: Option<Tensor>,
    dt_bias: Option<Tensor>,
    stated: EdgeScan,
}

/// ONNX's `LinearAttention`: query, key, value `[batch, tokens, channels]`, state `[batch, heads, key_dim, value_dim]`,
/// then decay and beta where it has them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinearAttention {
    pub(crate) heads: usize,
    /// Whether the decay is one per key channel.
    pub(crate) per_channel: bool,
    pub(crate) has_decay: bool,
    pub(crate) has_beta: bool,
    pub(crate) scale: f32,
}

/// Where the states are that an op renews.
pub(crate) enum States<'a> {
    /// Among its operands; what they become is made.
    Made(&'a mut [f32]),
    /// In the slots of a pool.
    Pooled(&'a Pooled<'a>),
}

impl States<'_> {
    /// The pool that a kernel renews: matrices of this shape, one for each sequence.
    fn matrices(
        &self,
        state: &Operand<'_>,
        batch: usize,
        shape: [usize; 3],
    ) -> Result<(Tensor, StateLayerView, Vec<i32>)> {
        match self {
            Self::Made(_) => {
                let elems = shape.iter().product();
                let pool = tensor(state.gathered()?, (batch, elems))?;
                Ok((pool, StateLayerView::matrix(elems, 0, shape), (0..batch as i32).collect()))
            }
            Self::Pooled(states) => states.checked(batch, shape),
        }
    }

    /// What the kernel left in a pool of its own.
    fn made(self, pool: &Tensor) -> Result<()> {
        match self {
            Self::Made(out) => fill(out, pool),
            Self::Pooled(_) => Ok(()),
        }
    }
}

impl Pooled<'_> {
    fn checked(&self, batch: usize, shape: [usize; 3]) -> Result<(Tensor, StateLayerView, Vec<i32>)> {
        if (self.slots.len(), self.view.shape) != (batch, shape) {
            let (slots, found) = (self.slots.len(), self.view.shape);
            return Err(format!("its state {found:?} lies in {slots} slots, expected {shape:?} in {batch}"));
        }
        Ok((self.pool.clone(), self.view, self.slots.clone()))
    }
}

fn shown(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn tensor(data: Vec<f32>, shape: impl Into<candle_core::Shape>) -> Result<Tensor> {
    Tensor::from_vec(data, shape, &Device::Cpu).map_err(shown)
}

/// The tokens of each sequence that count. A decoding step has one, whatever the length of the context is.
fn valid(lengths: &Operand<'_>, batch: usize, tokens: usize) -> Result<Vec<usize>> {
    let found = lengths.ints()?;
    let layout = lengths.layout;
    if tokens == 1 {
        return Ok(vec![1; batch]);
    }
    let at = |sequence: usize| found[layout.offset + sequence * layout.strides[0]];
    Ok((0..batch).map(|sequence| usize::try_from(at(sequence)).unwrap_or(0).min(tokens)).collect())
}

/// The rows of each sequence that count, in its slot, and behind them those that do not.
fn ragged(valid: &[usize], tokens: usize, slot_of: &[i32]) -> (Vec<u32>, Vec<i32>) {
    let (mut ends, mut slots) = (vec![0u32], Vec::new());
    for (sequence, (&valid, &slot)) in valid.iter().zip(slot_of).enumerate() {
        let first = sequence * tokens;
        ends.extend([(first + valid) as u32, (first + tokens) as u32]);
        slots.extend([slot, -1]);
    }
    (ends, slots)
}

/// An operand as so many rows, each as wide as they are.
fn in_rows(operand: &Operand<'_>, rows: usize) -> Result<Tensor> {
    let values = operand.gathered()?;
    let width = values.len().checked_div(rows).unwrap_or(0);
    tensor(values, (rows, width))
}

fn fill(out: &mut [f32], y: &Tensor) -> Result<()> {
    let values = y.flatten_all().and_then(|y| y.to_vec1::<f32>()).map_err(shown)?;
    if values.len() != out.len() {
        return Err(format!("it made {} numbers, {} were expected", values.len(), out.len()));
    }
    out.copy_from_slice(&values);
    Ok(())
}

impl Convolution {
    /// `weight` `[channels, 1, d_conv]`.
    pub(crate) fn new(weight: &Operand<'_>, bias: Option<&Operand<'_>>) -> Result<Self> {
        let &[channels, 1, d_conv] = weight.layout.shape.as_slice() else {
            return Err(format!("its weight is {:?}, expected [channels, 1, d_conv]", weight.layout.shape));
        };
        if d_conv < 2 {
            return Err("it has one tap, and nothing to keep".to_owned());
        }
        let stored = tensor(weight.gathered()?, (channels, d_conv))?;
        let weight = stored.t().and_then(|weight| weight.contiguous()).map_err(shown)?;
        let bias = bias.map(|bias| tensor(bias.gathered()?, channels)).transpose()?;
        Ok(Self { weight, bias, d_conv })
    }

    /// Tokens that a channel is made of.
    pub(crate) fn taps(&self) -> usize {
        self.d_conv
    }

    pub(crate) fn channels(&self) -> usize {
        self.weight.dims()[1]
    }

    /// Whether a state of so many columns is enough.
    pub(crate) fn takes(&self, columns: usize) -> bool {
        columns + 1 >= self.d_conv
    }

    /// x, state, context lengths.
    pub(crate) fn run(&self, inputs: &[Operand<'_>], out: &mut [f32], states: States<'_>) -> Result<()> {
        let [x, state, lengths] = inputs else { return Err("it takes three inputs here".to_owned()) };
        let (&[batch, tokens, channels], &[_, _, columns]) = (x.layout.shape.as_slice(), state.layout.shape.as_slice())
        else {
            return Err("its input or its state has not three axes".to_owned());
        };
        let valid = valid(lengths, batch, tokens)?;
        let (kept, x) = (self.d_conv - 1, x.gathered()?);
        let (pool, view, slots) = match states {
            States::Pooled(states) => states.checked(batch, [kept, channels, 1])?,
            States::Made(state_out) => {
                let state = state.gathered()?;
                // The last columns of what was and what came.
                for (sequence, &valid) in valid.iter().enumerate() {
                    for channel in 0..channels {
                        let first = (sequence * channels + channel) * columns;
                        for column in 0..columns {
                            let at = column + valid;
                            state_out[first + column] = match at.checked_sub(columns) {
                                None => state[first + at],
                                Some(token) => x[(sequence * tokens + token) * channels + channel],
                            };
                        }
                    }
                }
                let mut pool = vec![0.0; batch * kept * channels];
                for (at, value) in pool.iter_mut().enumerate() {
                    let (sequence, column, channel) = (at / (kept * channels), at / channels % kept, at % channels);
                    *value = state[(sequence * channels + channel) * columns + columns - kept + column];
                }
                let view = StateLayerView::conv(kept * channels, 0, self.d_conv, channels);
                (tensor(pool, (batch, kept * channels))?, view, (0..batch as i32).collect())
            }
        };
        let (ends, slots) = ragged(&valid, tokens, &slots);
        let conv = CausalConv1d { weight: &self.weight, bias: self.bias.as_ref(), silu: false };
        let x = tensor(x, (batch * tokens, channels))?;
        fill(out, &conv.run(&Backend::Cpu.run(), &x, &pool, &view, &StateBatch::new(&ends, &slots)).map_err(shown)?)
    }
}

impl Scan {
    /// The parameters, each `[heads]`.
    pub(crate) fn new([a, d, dt_bias]: [Option<Operand<'_>>; 3], heads: usize, stated: EdgeScan) -> Result<Self> {
        let vector =
            |operand: Option<Operand<'_>>| operand.map(|operand| tensor(operand.gathered()?, heads)).transpose();
        let a = vector(a)?.ok_or("it has no decay rates")?;
        Ok(Self { a, d: vector(d)?, dt_bias: vector(dt_bias)?, stated })
    }

    /// x, b, c, dt, state, context lengths.
    pub(crate) fn run(&self, inputs: &[Operand<'_>], out: &mut [f32], states: States<'_>) -> Result<()> {
        let [x, b, c, dt, state, lengths] = inputs else { return Err("it takes six inputs here".to_owned()) };
        let &[batch, heads, head_dim, d_state] = state.layout.shape.as_slice() else {
            return Err("its state has not four axes".to_owned());
        };
        let rows = (x.layout.len()).checked_div(heads * head_dim).unwrap_or(0);
        let tokens = rows.checked_div(batch).unwrap_or(0);
        let (pool, view, slots) = states.matrices(state, batch, [heads, head_dim, d_state])?;
        let (ends, slots) = ragged(&valid(lengths, batch, tokens)?, tokens, &slots);
        let as_rows = |operand: &Operand<'_>| in_rows(operand, rows);
        let (x, b, c, dt) = (as_rows(x)?, as_rows(b)?, as_rows(c)?, as_rows(dt)?);
        let EdgeScan { dt_softplus: softplus, time_step_limit: limit, .. } = self.stated;
        let time_step = TimeStep { bias: self.dt_bias.as_ref(), softplus, limit };
        let scan = Mamba2Scan { a: &self.a, d: self.d.as_ref(), time_step };
        let input = ScanInput { x: &x, dt: &dt, b: &b, c: &c, z: None };
        let y = scan.run(&Backend::Cpu.run(), &input, &pool, &view, &StateBatch::new(&ends, &slots)).map_err(shown)?;
        states.made(&pool)?;
        fill(out, &y)
    }
}

impl LinearAttention {
    pub(crate) fn run(&self, inputs: &[Operand<'_>], out: &mut [f32], states: States<'_>) -> Result<()> {
        let Self { heads, per_channel, has_decay, has_beta, scale } = *self;
        let [q, k, v, state, rest @ ..] = inputs else { return Err("it takes four inputs or more".to_owned()) };
        let (&[batch, tokens, _], &[_, _, key_dim, value_dim]) =
            (q.layout.shape.as_slice(), state.layout.shape.as_slice())
        else {
            return Err("its query or its state has not three or four axes".to_owned());
        };
        let rows = batch * tokens;
        let as_rows = |operand: &Operand<'_>| in_rows(operand, rows);
        let (q, k, v) = (as_rows(q)?, as_rows(k)?, as_rows(v)?);
        let decay = if has_decay { rest.first().map(as_rows).transpose()? } else { None };
        let beta = if has_beta { rest.last().map(as_rows).transpose()? } else { None };
        let all = vec![0.0; heads];
        let decay = match &decay {
            None => StateDecay::Fixed(&all),
            Some(decay) if per_channel => StateDecay::PerChannel(decay),
            Some(decay) => StateDecay::PerHead(decay),
        };
        let (pool, view, slots) = states.matrices(state, batch, [heads, key_dim, value_dim])?;
        let ends: Vec<u32> = (0..=batch).map(|sequence| (sequence * tokens) as u32).collect();
        let scan = LinearAttentionScan { q: &q, k: &k, v: &v, decay, beta: beta.as_ref(), scale, l2_norm: false };
        let y = scan.run(&Backend::Cpu.run(), &pool, &view, &StateBatch::new(&ends, &slots)).map_err(shown)?;
        states.made(&pool)?;
        fill(out, &y)
    }
}
