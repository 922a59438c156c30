//! What decoders are made of.

mod attention;
mod conv;
mod expert_mlps;
mod gated_delta;
mod indexer;
mod kda;
mod latents;
mod layer_inputs;
mod lightning;
mod linear;
mod mamba1;
mod mamba2;
mod mla;
mod mla_preprocess;
mod mlp;
mod moe;
mod ngram;
mod norm;
mod rope;
mod short_conv;
mod streams;
mod token_shift;

pub(crate) use attention::{Attention, AttentionShape, Keys};
pub(crate) use conv::CausalConv;
pub(crate) use expert_mlps::ExpertMlps;
pub(crate) use gated_delta::{GatedDelta, GatedDeltaProjections, GatedDeltaRest, GatedDeltaShape, OutputGate};
pub(crate) use indexer::{Choice, Chooser, GatedKeys, GatedKeysShape, Indexer, IndexerShape, MeanKeys, MeanKeysShape};
pub(crate) use kda::{Kda, KdaDecay, KdaShape};
pub(crate) use layer_inputs::{LayerInput, LayerInputs, LayerInputsShape};
pub(crate) use lightning::Lightning;
pub(crate) use linear::Linear;
pub(crate) use mamba1::{Mamba1, Mamba1Shape};
pub(crate) use mamba2::{Mamba2, Mamba2Config, Mamba2Rules, Mamba2Shape, dt_limit};
pub(crate) use mla::{LATENT_NORM_EPS, Mla, MlaShape};
pub(crate) use mla_preprocess::PreprocessedMla;
pub(crate) use mlp::{Activation, ClampedSwiglu, Mlp, MlpShape, SharedExpert};
pub(crate) use moe::{Moe, checked_routing};
pub(crate) use ngram::{HashRules, NGramShape, NGrams};
pub(crate) use norm::RmsNorm;
pub(crate) use rope::{RopeConfig, RopeParameters};
pub(crate) use short_conv::ShortConv;
pub(crate) use streams::{Ending, GatedShape, GatedStreams, MixedShape, MixedStreams, StreamNorm, Streams, widened};
pub(crate) use token_shift::TokenShift;

use cacheplan_kernels::{Rope, Run, StateBatch, StateWrites};
use cacheplan_managers::device::{ReplayLayer, StateLayer};
use candle_core::{DType, Tensor};
use candle_nn::ops::sigmoid;

use crate::cache_use::CacheUse;
use crate::error::{Result, RuntimeError};
use crate::exported::{Writer, refuse};
use crate::step::Step;

/// What stands between a norm and the residual sum.
pub(crate) trait Mixer: std::fmt::Debug + Send + Sync {
    /// `[tokens, hidden]` to `[tokens, hidden]`; whatever a later step needs goes into the pools behind `step`.
    fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor>;

    /// Moves its state on over the accepted candidates, whose inputs it has kept; false where the state is not its own.
    fn replay(&self, _: &Run<'_>, _: &ReplayLayer<'_>) -> Result<bool> {
        Ok(false)
    }

    /// The caches that it keeps, or reads of earlier layers.
    fn caches(&self) -> Vec<CacheUse> {
        Vec::new()
    }

    /// What it makes of positions.
    fn ropes(&self) -> Vec<&Rope> {
        Vec::new()
    }

    /// The same as nodes of a graph, from `x` `[1, tokens, hidden]` to the name of what it makes.
    fn trace(&self, _: &mut Writer, _: &str) -> Result<String> {
        let name = std::any::type_name::<Self>();
        let name = name.rsplit("::").next().unwrap_or(name);
        Err(refuse(name, "a layer of this kind is not exported"))
    }
}

/// A size of a spec as tensors count it.
pub(crate) fn size(size: u64) -> usize {
    usize::try_from(size).unwrap_or(usize::MAX)
}

/// Moves the state of `layer` on over its inputs of those names, which were kept of accepted candidates, as they were
/// computed; false where the state is another layer's.
fn replay<const N: usize, T, E>(
    kept: &ReplayLayer<'_>,
    layer: u32,
    names: [&str; N],
    run: impl FnOnce([&Tensor; N], &StateLayer<'_>, &StateBatch<'_>) -> Result<T, E>,
) -> Result<bool>
where
    RuntimeError: From<E>,
{
    if kept.layer != Some(layer) {
        return Ok(false);
    }
    let read = |name| Ok(kept.input(&format!("replay.{name}"))?.to_dtype(DType::F32)?);
    let inputs = names.into_iter().map(read).collect::<Result<Vec<Tensor>>>()?;
    let tokens = inputs.first().map_or(Ok(0), |input| input.dim(0))?;
    let (rows, slots) = ([0, tokens as u32], [kept.slot.0 as i32]);
    let batch = StateBatch::new(&rows, &slots).with_writes(StateWrites::Replay);
    run(std::array::from_fn(|at| &inputs[at]), &kept.state, &batch)?;
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

/// `output_scale · post_norm(mixer(norm(input_scale · x)))`, one of several beside each other.
#[derive(Debug)]
pub(crate) struct Branch {
    pub(crate) norm: Option<RmsNorm>,
    pub(crate) mixer: Box<dyn Mixer>,
    pub(crate) post_norm: Option<RmsNorm>,
    pub(crate) input_scale: f64,
    pub(crate) output_scale: f64,
}

impl Branch {
    /// `mixer(x)`.
    pub(crate) fn new(mixer: impl Mixer + 'static) -> Self {
        Self { norm: None, mixer: Box::new(mixer), post_norm: None, input_scale: 1.0, output_scale: 1.0 }
    }
}

impl Mixer for Parallel {
    fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        let mut sum = x.zeros_like()?;
        for branch in &self.0 {
            let behind = |norm: &Option<RmsNorm>, x: Tensor| match norm {
                Some(norm) => norm.forward(step.on(), &x),
                None => Ok(x),
            };
            let seen = behind(&branch.norm, (x * branch.input_scale)?)?;
            let y = behind(&branch.post_norm, branch.mixer.forward(&seen, step)?)?;
            sum = (sum + (y * branch.output_scale)?)?;
        }
        Ok(sum)
    }

    fn trace(&self, writer: &mut Writer, x: &str) -> Result<String> {
        let mut sum: Option<String> = None;
        for branch in &self.0 {
            let mut y = writer.scaled(x, branch.input_scale);
            if let Some(norm) = &branch.norm {
                y = norm.trace(writer, &y)?;
            }
            y = branch.mixer.trace(writer, &y)?;
            if let Some(norm) = &branch.post_norm {
                y = norm.trace(writer, &y)?;
            }
            let y = writer.scaled(&y, branch.output_scale);
            sum = Some(sum.map_or(y.clone(), |sum| writer.node("Add", &[&sum, &y])));
        }
        sum.ok_or_else(|| refuse("a layer", "it has no mixers"))
    }

    fn replay(&self, on: &Run<'_>, kept: &ReplayLayer<'_>) -> Result<bool> {
        for branch in &self.0 {
            if branch.mixer.replay(on, kept)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn caches(&self) -> Vec<CacheUse> {
        self.0.iter().flat_map(|branch| branch.mixer.caches()).collect()
    }

    fn ropes(&self) -> Vec<&Rope> {
        self.0.iter().flat_map(|branch| branch.mixer.ropes()).collect()
    }
}

impl Mixer for Mlp {
    fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        Ok(self.forward(step.on(), x)?)
    }

    fn trace(&self, writer: &mut Writer, x: &str) -> Result<String> {
        self.written(writer, x)
    }
}

impl Mixer for Moe {
    fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        Ok(self.forward(step.on(), x)?)
    }

    fn trace(&self, writer: &mut Writer, x: &str) -> Result<String> {
        self.written(writer, x)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[rstest::rstest]
    #[case(DType::F32, 1e-6)]
    #[case(DType::F64, 1e-6)]
    #[case(DType::BF16, 4e-3)]
    fn a_sigmoid_goes_from_0_to_1_in_every_dtype(#[case] dtype: DType, #[case] tolerance: f32) {
        let x = Tensor::new(&[-200f32, -1.0, 0.0, 1.0, 200.0], &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
        let y: Vec<f32> = sigmoid(&x).unwrap().to_dtype(DType::F32).unwrap().to_vec1().unwrap();
        for (y, expected) in y.into_iter().zip([0.0, 0.268_941_4, 0.5, 0.731_058_6, 1.0]) {
            assert!((y - expected).abs() <= tolerance, "{y} is not {expected}");
        }
    }
}
