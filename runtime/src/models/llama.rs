//! Llama and its relatives: attention with rope, then a gated MLP or experts, in every layer.

use cacheplan_transforms::Model;
use cacheplan_transforms::layers::{BlockSpec, FeedForward};
use candle_core::DType;
use serde::Deserialize;

use super::experts::Experts;
use super::layer::{Layer, decoder};
use super::usual::usual;
use crate::block::Block;
use crate::decoder::Decoder;
use crate::error::Result;
use crate::layers::{Attention, Mixer, Mlp, MlpShape, Moe, RopeConfig, size};
use crate::weights::Weights;

/// What sets one of the family apart.
pub(super) struct LlamaVariant {
    /// Whether the projections to queries, keys and values have biases, and whether the one back has.
    biases: fn(&Config) -> [bool; 2],
    /// Whether each head of queries and keys is normalised.
    head_norms: bool,
    /// The base of the rotation where the config states none.
    rope_theta: f32,
    /// What follows the attention of a layer.
    feed_forward: LoadFeedForward,
}

type LoadFeedForward = fn(&Config, &Layer<'_>, &FeedForward) -> Result<Box<dyn Mixer>>;

pub(super) const LLAMA: LlamaVariant = LlamaVariant {
    biases: |config| [config.attention_bias; 2],
    head_norms: false,
    rope_theta: 10_000.0,
    // GGUF files call Mixtral a Llama too.
    feed_forward: Config::mlp_or_experts,
};
pub(super) const MISTRAL: LlamaVariant = LlamaVariant { biases: |_| [false; 2], feed_forward: Config::mlp, ..LLAMA };
pub(super) const MIXTRAL: LlamaVariant =
    LlamaVariant { rope_theta: 1_000_000.0, feed_forward: Config::mixtral_experts, ..MISTRAL };
pub(super) const QWEN2: LlamaVariant = LlamaVariant { biases: |_| [true, false], feed_forward: Config::mlp, ..LLAMA };
pub(super) const QWEN3: LlamaVariant = LlamaVariant { head_norms: true, feed_forward: Config::mlp, ..LLAMA };
pub(super) const QWEN3_MOE: LlamaVariant = LlamaVariant { feed_forward: Config::mlp_or_experts, ..QWEN3 };

usual! {
    /// The keys of a `config.json` of this family that its decoder reads.
    pub(super) struct Config {
        #[serde(default)]
        mlp_bias: bool,
        #[serde(flatten)]
        experts: Experts,
        #[serde(flatten)]
        rope: RopeConfig,
    }
}

/// Builds a decoder of this family.
pub(super) fn load(relative: &LlamaVariant, config: &Config, model: &Model, weights: &Weights) -> Result<Decoder> {
    let [bias, output_bias] = (relative.biases)(config);
    let rope = config.rope.with_default_theta(relative.rope_theta).with_divisors(divisors(model, weights)?);
    decoder(model, weights, config.names(), |layer| {
        let [
            BlockSpec::Attention(attention),
            BlockSpec::FeedForward(sizes @ FeedForward { matrices: 3, shared_size: 0, latent_size: None, .. }),
        ] = layer.blocks
        else {
            return Err(layer.refuse("attention and a gated feed-forward block without shared experts"));
        };
        let (shape, weights) = (layer.attention(attention, bias)?, layer.enter("self_attn"));
        let rope = Some(rope.rope(shape.head_dim)?);
        let mut attention = Attention::load_with_output(&weights, ("o_proj", output_bias), layer.index, shape, rope)?;
        if relative.head_norms {
            let norm = |name: &str| layer.norm_of(&weights.enter(name), shape.head_dim);
            attention = attention.with_head_norms(norm("q_norm")?, norm("k_norm")?);
        }
        let feed_forward = (relative.feed_forward)(config, layer, sizes)?;
        Ok(vec![
            Block::new(layer.norm("input_layernorm")?, attention),
            Block::boxed(layer.norm("post_attention_layernorm")?, feed_forward),
        ])
    })
}

/// What each frequency of the rotation is divided by; GGUF files of Llama 3 and later have it in place of a rule.
fn divisors(model: &Model, weights: &Weights) -> Result<Option<Vec<f32>>> {
    let head_dim = model.layers.iter().flat_map(|layer| &layer.blocks).find_map(|block| match block {
        BlockSpec::Attention(attention) => Some(size(attention.head_dim)),
        _ => None,
    });
    let stored = weights.scope("rope_freqs");
    match head_dim.filter(|_| stored.stores("weight")) {
        Some(head_dim) => Ok(Some(stored.get("weight", head_dim / 2)?.to_dtype(DType::F32)?.to_vec1()?)),
        None => Ok(None),
    }
}

impl Config {
    fn mlp(&self, layer: &Layer<'_>, sizes: &FeedForward) -> Result<Box<dyn Mixer>> {
        if sizes.experts > 0 {
            return Err(layer.refuse("one feed-forward block without experts in every layer"));
        }
        let shape = MlpShape { bias: self.mlp_bias, ..layer.mlp(sizes.intermediate_size, self.hidden_act) };
        Ok(Box::new(Mlp::load_gated(&layer.enter("mlp"), shape)?))
    }

    fn mlp_or_experts(&self, layer: &Layer<'_>, sizes: &FeedForward) -> Result<Box<dyn Mixer>> {
        if sizes.experts == 0 {
            return self.mlp(layer, sizes);
        }
        Ok(Box::new(self.experts.load(&layer.enter("mlp"), layer, sizes, self.hidden_act)?))
    }

    /// Published checkpoints have the experts under a name that later ones gave up.
    fn mixtral_experts(&self, layer: &Layer<'_>, sizes: &FeedForward) -> Result<Box<dyn Mixer>> {
        if sizes.experts == 0 {
            return Err(layer.refuse("experts in every layer, as many as `num_local_experts` says"));
        }
        let published = layer.enter("block_sparse_moe");
        let weights = if published.enter("gate").stores("weight") { published } else { layer.enter("mlp") };
        let expert = layer.mlp(sizes.intermediate_size, self.hidden_act);
        Ok(Box::new(Moe::load(&weights, self.experts.routing(sizes, true)?, ["w1", "w3", "w2"], expert)?))
    }
}
