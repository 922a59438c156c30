//! Several residual streams side by side, of which a mixer reads one mixture and to which its output comes back.

use std::fmt::Debug;

use cacheplan_kernels::Run;
use candle_core::{D, DType, Tensor};
use candle_nn::ops::softmax_last_dim;

use super::{Linear, RmsNorm, sigmoid};
use crate::error::Result;
use crate::weights::Scope;

/// How a block's mixer and the residual streams meet.
pub(crate) trait Streams: Debug + Send + Sync {
    /// What the mixer reads of the streams `x` `[tokens, streams * hidden]`, `[tokens, hidden]`, and where its output goes.
    fn read(&self, on: &Run<'_>, x: &Tensor) -> Result<(Tensor, Return)>;
}

/// The way back of a mixer's output.
#[derive(Debug)]
pub(crate) struct Return {
    /// The streams that go past the mixer, `[tokens, streams * hidden]`.
    past: Tensor,
    /// What the output counts in each stream, `[tokens, streams]`.
    shares: Tensor,
}

impl Return {
    /// The streams with the mixer's output `y` `[tokens, hidden]`.
    pub(crate) fn with(self, y: &Tensor) -> candle_core::Result<Tensor> {
        let shares = self.shares.to_dtype(y.dtype())?.unsqueeze(2)?;
        self.past + y.unsqueeze(1)?.broadcast_mul(&shares)?.flatten_from(1)?
    }
}

/// `x` `[tokens, hidden]` as each of so many streams, `[tokens, streams * hidden]`.
pub(crate) fn widened(x: &Tensor, streams: usize) -> candle_core::Result<Tensor> {
    x.repeat((1, streams))
}

/// The mean of so many streams, `[tokens, hidden]`.
pub(crate) fn mean(x: &Tensor, streams: usize) -> candle_core::Result<Tensor> {
    apart(x, streams)?.mean(1)
}

/// `[tokens, streams, hidden]`.
fn apart(x: &Tensor, streams: usize) -> candle_core::Result<Tensor> {
    x.reshape((x.dim(0)?, streams, x.dim(1)? / streams.max(1)))
}

/// Connections whose mixing matrix is made doubly stochastic (mHC): all weights follow from all streams.
#[derive(Debug)]
pub(crate) struct MixedStreams {
    /// To `streams` shares that are read, `streams` of the output, and `streams * streams` between streams.
    projection: Linear,
    /// In f32, what the three kinds of weights are multiplied by, and what is added to each.
    scale: [f64; 3],
    base: Tensor,
    shape: MixedShape,
}

/// The numbers of [`MixedStreams`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct MixedShape {
    pub(crate) hidden: usize,
    pub(crate) streams: usize,
    /// Of the norm over all streams.
    pub(crate) norm_eps: f64,
    /// What sums are kept from being 0 by.
    pub(crate) eps: f64,
    /// Times that columns are normalised; rows are in between.
    pub(crate) iterations: usize,
}

impl MixedStreams {
    /// Reads `{name}_fn`, `{name}_base` and `{name}_scale`.
    pub(crate) fn load(weights: &Scope<'_>, name: &str, shape: MixedShape) -> Result<Self> {
        let MixedShape { hidden, streams, .. } = shape;
        let outputs = (2 + streams) * streams;
        let weight = weights.float(&format!("{name}_fn"), (outputs, streams * hidden))?;
        let scale: Vec<f32> = weights.float(&format!("{name}_scale"), 3)?.to_vec1()?;
        Ok(Self {
            projection: Linear::new(weight, None),
            scale: std::array::from_fn(|at| f64::from(scale[at])),
            base: weights.float(&format!("{name}_base"), outputs)?,
            shape,
        })
    }

    /// `[tokens, streams, streams]`: rows, then columns, made to add up to one in turns.
    fn balanced(&self, weights: &Tensor) -> candle_core::Result<Tensor> {
        let MixedShape { eps, iterations, .. } = self.shape;
        let over = |x: &Tensor, dim: D| x.broadcast_div(&(x.sum_keepdim(dim)? + eps)?);
        let mut weights = over(&(softmax_last_dim(weights)? + eps)?, D::Minus2)?;
        for _ in 1..iterations {
            weights = over(&over(&weights, D::Minus1)?, D::Minus2)?;
        }
        Ok(weights)
    }
}

impl Streams for MixedStreams {
    fn read(&self, on: &Run<'_>, x: &Tensor) -> Result<(Tensor, Return)> {
        let MixedShape { streams, norm_eps, eps, .. } = self.shape;
        let tokens = x.dim(0)?;
        let wide = x.to_dtype(DType::F32)?;
        let normed = wide.broadcast_div(&(wide.sqr()?.mean_keepdim(D::Minus1)? + norm_eps)?.sqrt()?)?;
        let weights = self.projection.forward(on, &normed)?;
        let part = |start: usize, size: usize, scale: f64| {
            (weights.narrow(1, start, size)? * scale)?.broadcast_add(&self.base.narrow(0, start, size)?)
        };
        let read = (sigmoid(&part(0, streams, self.scale[0])?)? + eps)?;
        let shares = (sigmoid(&part(streams, streams, self.scale[1])?)? * 2.0)?;
        let between = part(2 * streams, streams * streams, self.scale[2])?.reshape((tokens, streams, streams))?;
        let between = self.balanced(&between)?;
        let each = apart(&wide, streams)?;
        let collapsed = each.broadcast_mul(&read.unsqueeze(2)?)?.sum(1)?.to_dtype(x.dtype())?;
        // Row i of the matrix says what stream i gives to each.
        let past = between.transpose(1, 2)?.contiguous()?.matmul(&each)?.flatten_from(1)?.to_dtype(x.dtype())?;
        Ok((collapsed, Return { past, shares }))
    }
}

/// Connections with a gate for each channel of each stream; streams go past unchanged.
#[derive(Debug)]
pub(crate) struct GatedStreams {
    /// Over each stream, with weights of its own.
    norm: StreamNorm,
    /// The gates, through a narrow layer.
    gate: [Linear; 2],
    /// What the output counts in each stream; absent behind the last block.
    inject: Option<Linear>,
    streams: usize,
}

/// The numbers of [`GatedStreams`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct GatedShape {
    pub(crate) hidden: usize,
    pub(crate) streams: usize,
    /// Channels of the narrow layer.
    pub(crate) rank: usize,
    pub(crate) norm_eps: f64,
}

impl GatedStreams {
    /// Reads what stands before a mixer, with `block_inject_weight`, or behind the last block, without.
    pub(crate) fn load(weights: &Scope<'_>, shape: GatedShape, injects: bool) -> Result<Self> {
        let GatedShape { hidden, streams, rank, norm_eps } = shape;
        let wide = streams * hidden;
        let linear = |name: &str, from, to| Linear::load(&weights.enter(name), from, to, false);
        Ok(Self {
            norm: StreamNorm::load(&weights.enter("hc_norm"), streams, hidden, norm_eps)?,
            gate: [linear("input_mix_weight_down", wide, rank)?, linear("input_mix_weight_up", rank, wide)?],
            inject: injects.then(|| linear("block_inject_weight", wide, streams)).transpose()?,
            streams,
        })
    }

    /// One mixture of the streams `x`, `[tokens, hidden]`, and the norm of all.
    pub(crate) fn mixed(&self, on: &Run<'_>, x: &Tensor) -> Result<(Tensor, Tensor)> {
        let normed = self.norm.forward(on, x)?;
        let [down, up] = &self.gate;
        let narrow = (down.forward(on, &normed)? / self.streams as f64)?.silu()?;
        let gates = sigmoid(&up.forward(on, &narrow)?)?;
        Ok((mean(&(gates * &normed)?, self.streams)?, normed))
    }
}

impl Streams for GatedStreams {
    fn read(&self, on: &Run<'_>, x: &Tensor) -> Result<(Tensor, Return)> {
        let (mixed, normed) = self.mixed(on, x)?;
        let shares = match &self.inject {
            Some(inject) => (sigmoid(&(inject.forward(on, &normed)? / self.streams as f64)?)? * 2.0)?,
            None => Tensor::zeros((x.dim(0)?, self.streams), x.dtype(), x.device())?,
        };
        Ok((mixed, Return { past: x.clone(), shares }))
    }
}

/// A norm over each of several streams, whose weights are stored as distances from one.
#[derive(Debug)]
pub(crate) struct StreamNorm {
    /// Over a stream, without weights.
    norm: RmsNorm,
    /// `[streams * hidden]`.
    weight: Tensor,
    streams: usize,
}

impl StreamNorm {
    /// Reads `weight` `[streams * hidden]`.
    pub(crate) fn load(weights: &Scope<'_>, streams: usize, hidden: usize, eps: f64) -> Result<Self> {
        let weight = (weights.get("weight", streams * hidden)? + 1.0)?;
        let norm = RmsNorm::new(Tensor::ones(hidden, weight.dtype(), weight.device())?, eps);
        Ok(Self { norm, weight, streams })
    }

    /// `[tokens, streams * hidden]` of as much.
    pub(crate) fn forward(&self, on: &Run<'_>, x: &Tensor) -> Result<Tensor> {
        let normed = self.norm.forward(on, &apart(x, self.streams)?)?.flatten_from(1)?;
        Ok(normed.broadcast_mul(&self.weight)?)
    }
}

/// How the streams become one behind the last block.
#[derive(Debug)]
pub(crate) enum Ending {
    /// There is one, which a norm follows.
    Norm(RmsNorm),
    /// Their mean, then a norm.
    Mean { streams: usize, norm: RmsNorm },
    /// A gated mixture, which no norm follows.
    Gated(GatedStreams),
}

impl Ending {
    /// Streams of the blocks before.
    pub(crate) fn streams(&self) -> usize {
        match self {
            Self::Norm(_) => 1,
            Self::Mean { streams, .. } => *streams,
            Self::Gated(gated) => gated.streams,
        }
    }

    /// `[rows, hidden]` of rows of all streams.
    pub(crate) fn forward(&self, on: &Run<'_>, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Norm(norm) => Ok(norm.forward(on, x)?),
            Self::Mean { streams, norm } => Ok(norm.forward(on, &mean(x, *streams)?)?),
            Self::Gated(gated) => Ok(gated.mixed(on, x)?.0),
        }
    }
}
