//! What decoders are made of.

mod attention;
mod conv;
mod gated_delta;
mod kda;
mod latents;
mod lightning;
mod linear;
mod mamba1;
mod mamba2;
mod mla;
mod mla_preprocess;
mod mlp;
mod moe;
mod norm;
mod rope;
mod short_conv;
mod token_shift;

pub(crate) use attention::{Attention, AttentionShape};
pub(crate) use conv::CausalConv;
pub(crate) use gated_delta::{GatedDelta, GatedDeltaProjections, GatedDeltaShape};
pub(crate) use kda::{Kda, KdaShape};
pub(crate) use lightning::Lightning;
pub(crate) use linear::Linear;
pub(crate) use mamba1::{Mamba1, Mamba1Shape};
pub(crate) use mamba2::{Mamba2, Mamba2Config, Mamba2Rules, Mamba2Shape, dt_limit};
pub(crate) use mla::{Mla, MlaShape};
pub(crate) use mla_preprocess::PreprocessedMla;
pub(crate) use mlp::{Activation, Mlp, MlpShape, SharedExpert};
pub(crate) use moe::{Moe, Routing, Scoring};
pub(crate) use norm::RmsNorm;
pub(crate) use rope::{RopeConfig, RopeParameters};
pub(crate) use short_conv::ShortConv;
pub(crate) use token_shift::TokenShift;

use cacheplan_kernels::{StateBatch, StateWrites};
use cacheplan_managers::device::ReplayLayer;
use candle_core::{DType, Tensor};

use crate::error::RuntimeError;
use crate::exported::{Writer, refuse};
use crate::step::{CacheUse, Step};

/// What stands between a norm and the residual sum.
pub(crate) trait Mixer: std::fmt::Debug + Send + Sync {
    /// `[tokens, hidden]` to `[tokens, hidden]`; whatever a later step needs goes into the pools behind `step`.
    fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor, RuntimeError>;

    /// Moves its state on over the accepted candidates, whose inputs it has kept; false where the state is not its own.
    fn replay(&self, _: &ReplayLayer<'_>) -> Result<bool, RuntimeError> {
        Ok(false)
    }

    /// The caches that it keeps.
    fn caches(&self) -> Vec<CacheUse> {
        Vec::new()
    }

    /// The same as nodes of a graph, from `x` `[1, tokens, hidden]` to the name of what it makes.
    fn trace(&self, _: &mut Writer, _: &str) -> Result<String, RuntimeError> {
        let name = std::any::type_name::<Self>();
        let name = name.rsplit("::").next().unwrap_or(name);
        Err(refuse(name, "a layer of this kind is not exported; attention, Mamba-2 and plain feed-forward blocks are"))
    }
}

/// A size of a spec as tensors count it.
pub(crate) fn size(size: u64) -> usize {
    usize::try_from(size).unwrap_or(usize::MAX)
}

/// The inputs of those names that were kept of accepted candidates, as they were computed.
fn kept_inputs<const N: usize>(kept: &ReplayLayer<'_>, names: [&str; N]) -> Result<[Tensor; N], RuntimeError> {
    let mut inputs = Vec::with_capacity(N);
    for name in names {
        inputs.push(kept.input(&format!("replay.{name}"))?.to_dtype(DType::F32)?);
    }
    inputs.try_into().map_err(|_| candle_core::Error::Msg("as many inputs as names".into()).into())
}

/// Runs a recurrence over so many tokens that were kept for the state of a layer.
fn replayed<T, E>(
    kept: &ReplayLayer<'_>,
    tokens: usize,
    run: impl FnOnce(&StateBatch<'_>) -> Result<T, E>,
) -> Result<bool, RuntimeError>
where
    RuntimeError: From<E>,
{
    let (rows, slots) = ([0, tokens as u32], [kept.slot.0 as i32]);
    run(&StateBatch { cu_seqlens: &rows, slots: &slots, writes: StateWrites::Replay })?;
    Ok(true)
}

/// `log(1 + exp(x))` without overflow.
fn softplus(x: &Tensor) -> candle_core::Result<Tensor> {
    let tail = (x.abs()?.neg()?.exp()? + 1.0)?.log()?;
    x.relu()? + tail
}

/// Mixers over the same input, their outputs summed.
#[derive(Debug)]
pub(crate) struct Parallel(pub(crate) Vec<Branch>);

/// One of several mixers, with factors on its input and output.
#[derive(Debug)]
pub(crate) struct Branch {
    pub(crate) mixer: Box<dyn Mixer>,
    pub(crate) input_scale: f64,
    pub(crate) output_scale: f64,
}

impl Mixer for Parallel {
    fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor, RuntimeError> {
        let mut sum = x.zeros_like()?;
        for branch in &self.0 {
            let y = branch.mixer.forward(&(x * branch.input_scale)?, step)?;
            sum = (sum + (y * branch.output_scale)?)?;
        }
        Ok(sum)
    }

    fn replay(&self, kept: &ReplayLayer<'_>) -> Result<bool, RuntimeError> {
        for branch in &self.0 {
            if branch.mixer.replay(kept)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn caches(&self) -> Vec<CacheUse> {
        self.0.iter().flat_map(|branch| branch.mixer.caches()).collect()
    }
}

impl Mixer for Mlp {
    fn forward(&self, x: &Tensor, _: &Step<'_>) -> Result<Tensor, RuntimeError> {
        Ok(self.forward(x)?)
    }

    fn trace(&self, writer: &mut Writer, x: &str) -> Result<String, RuntimeError> {
        self.written(writer, x)
    }
}

impl Mixer for Moe {
    fn forward(&self, x: &Tensor, _: &Step<'_>) -> Result<Tensor, RuntimeError> {
        Ok(self.forward(x)?)
    }
}
