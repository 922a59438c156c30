//! gpt-oss: attention with sinks, every other layer with a sliding window, then biased experts.

use cacheplan_kernels::Routing;
use cacheplan_transforms::Model;
use cacheplan_transforms::layers::{BlockSpec, FeedForward};
use candle_core::Tensor;
use serde::Deserialize;

use super::layer::{Layer, TensorNames, decoder};
use crate::block::Block;
use crate::decoder::Decoder;
use crate::error::{ConfigError, Result};
use crate::layers::{
    Activation, Attention, ClampedSwiglu, ExpertMlps, Linear, Mlp, Moe, RopeConfig, checked_routing, size,
};
use crate::weights::{Scope, Weights};

/// The keys of a gpt-oss `config.json` that its decoder reads.
#[derive(Debug, Deserialize)]
pub(super) struct Config {
    rms_norm_eps: f64,
    #[serde(default = "super::default_true")]
    attention_bias: bool,
    num_experts_per_tok: usize,
    #[serde(default = "swiglu_alpha")]
    swiglu_alpha: f64,
    #[serde(default = "swiglu_limit")]
    swiglu_limit: f64,
    #[serde(default)]
    tie_word_embeddings: bool,
    #[serde(flatten)]
    rope: RopeConfig,
}

fn swiglu_alpha() -> f64 {
    1.702
}

fn swiglu_limit() -> f64 {
    7.0
}

/// Builds a gpt-oss decoder.
pub(super) fn load(config: &Config, model: &Model, weights: &Weights) -> Result<Decoder> {
    if !config.rope.has_parameters() {
        // Hugging Face would take yarn, as the published models have it.
        return Err(ConfigError::Missing { key: "rope_parameters" }.into());
    }
    let rope = config.rope.with_default_theta(150_000.0);
    decoder(model, weights, TensorNames::new(config.rms_norm_eps, config.tie_word_embeddings), |layer| {
        let [
            BlockSpec::Attention(attention),
            BlockSpec::FeedForward(sizes @ FeedForward { experts: 1.., shared_size: 0, latent_size: None, .. }),
        ] = layer.blocks
        else {
            return Err(layer.refuse("attention and experts, none of them shared"));
        };
        let (shape, weights) = (layer.attention(attention, config.attention_bias)?, layer.enter("self_attn"));
        let sinks = weights.float("sinks", shape.heads)?.to_vec1()?;
        let rope = Some(rope.rope(shape.head_dim)?);
        let attention = Attention::load(&weights, layer.index, shape, rope)?.with_sinks(sinks);
        Ok(vec![
            Block::new(layer.norm("input_layernorm")?, attention),
            Block::new(layer.norm("post_attention_layernorm")?, config.moe(layer, sizes)?),
        ])
    })
}

impl Config {
    fn swiglu(&self) -> ClampedSwiglu {
        ClampedSwiglu { alpha: self.swiglu_alpha, limit: self.swiglu_limit, lift: 1.0 }
    }

    fn moe(&self, layer: &Layer<'_>, sizes: &FeedForward) -> Result<Moe> {
        let (hidden, size, count) = (layer.hidden, size(sizes.intermediate_size), size(sizes.experts));
        let weights = layer.enter("mlp");
        let experts = weights.enter("experts");
        let experts = if experts.enter("0.gate_proj").stores("weight") {
            ExpertMlps::load(weights.backend(), count, |i| self.expert(&experts.enter(i), hidden, size))?
        } else {
            self.experts_of_all(&experts, count, hidden, size)?
        };
        let routing = checked_routing(Routing::softmax(count, self.num_experts_per_tok, true))?;
        Ok(Moe::new(routing, Linear::load(&weights.enter("router"), hidden, count, true)?, experts))
    }

    /// An expert of a GGUF file, which has gate and up apart.
    fn expert(&self, weights: &Scope<'_>, hidden: usize, size: usize) -> Result<Mlp> {
        let linear = |name: &str, from, to| Linear::load(&weights.enter(name), from, to, true);
        let gate_up = Linear::stacked(&[linear("gate_proj", hidden, size)?, linear("up_proj", hidden, size)?])?;
        Ok(Mlp::fused(gate_up, linear("down_proj", size, hidden)?, Activation::Silu).clamped(self.swiglu()))
    }

    /// The experts of a checkpoint, which has all of them in a few tensors.
    fn experts_of_all(&self, experts: &Scope<'_>, count: usize, hidden: usize, size: usize) -> Result<ExpertMlps> {
        let gate_up = experts.matrix("gate_up_proj", (count, hidden, 2 * size))?;
        let gate_up_bias = experts.get("gate_up_proj_bias", (count, 2 * size))?;
        let down = experts.matrix("down_proj", (count, size, hidden))?;
        let down_bias = experts.get("down_proj_bias", (count, hidden))?;
        let expert = |i: usize| -> candle_core::Result<Mlp> {
            let gate_up = taken_apart(&gate_up.get(i)?, &gate_up_bias.get(i)?)?;
            let down = Linear::new(down.get(i)?.t()?.contiguous()?, Some(down_bias.get(i)?));
            Ok(Mlp::fused(gate_up, down, Activation::Silu).clamped(self.swiglu()))
        };
        Ok(ExpertMlps::load(experts.backend(), count, expert)?)
    }
}

/// The projection to gate and then up whose columns take turns in `weight` `[hidden, 2 · size]`.
fn taken_apart(weight: &Tensor, bias: &Tensor) -> candle_core::Result<Linear> {
    let (hidden, columns) = weight.dims2()?;
    let weight = weight.t()?.reshape((columns / 2, 2, hidden))?.transpose(0, 1)?.reshape((columns, hidden))?;
    let bias = bias.reshape((columns / 2, 2))?.t()?.flatten_all()?;
    Ok(Linear::new(weight, Some(bias)))
}
