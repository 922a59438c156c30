//! LFM2: a gated short convolution or attention, then a gated MLP or experts, in every layer.

use cacheplan_kernels::Routing;
use cacheplan_transforms::Model;
use cacheplan_transforms::layers::{BlockSpec, FeedForward};
use serde::Deserialize;

use super::layer::{Layer, TensorNames, decoder};
use crate::block::Block;
use crate::decoder::Decoder;
use crate::error::{ConfigError, Result};
use crate::layers::{Activation, Attention, Mixer, Mlp, Moe, RopeConfig, ShortConv, size};
use crate::weights::Weights;

/// The keys of an LFM2 `config.json` that its decoder reads.
#[derive(Debug, Deserialize)]
pub(super) struct Config {
    norm_eps: f64,
    #[serde(default)]
    conv_bias: bool,
    #[serde(default = "super::default_true")]
    tie_word_embeddings: bool,
    /// The same by an older name, which wins where a config states both.
    tie_embedding: Option<bool>,
    num_experts_per_tok: Option<usize>,
    #[serde(default = "super::default_true")]
    norm_topk_prob: bool,
    routed_scaling_factor: Option<f64>,
    #[serde(default = "super::default_true")]
    use_expert_bias: bool,
    #[serde(flatten)]
    rope: RopeConfig,
}

/// Builds an LFM2 decoder.
pub(super) fn load(config: &Config, model: &Model, weights: &Weights) -> Result<Decoder> {
    let tied = config.tie_embedding.unwrap_or(config.tie_word_embeddings);
    let rope = config.rope.with_default_theta(1_000_000.0);
    decoder(
        model,
        weights,
        TensorNames { norm: "embedding_norm", ..TensorNames::new(config.norm_eps, tied) },
        |layer| {
            let known = "attention or a short convolution over all channels, and a gated feed-forward block without shared experts";
            let [
                mixer,
                BlockSpec::FeedForward(sizes @ FeedForward { matrices: 3, shared_size: 0, latent_size: None, .. }),
            ] = layer.blocks
            else {
                return Err(layer.refuse(known));
            };
            let before = layer.norm("operator_norm")?;
            let mixer = match *mixer {
                BlockSpec::ShortConv { channels, d_conv } if size(channels) == layer.hidden => {
                    let (weights, hidden) = (layer.enter("conv"), layer.hidden);
                    Block::new(before, ShortConv::load(&weights, layer.index, hidden, size(d_conv), config.conv_bias)?)
                }
                BlockSpec::Attention(ref dims) => {
                    let (shape, weights) = (layer.attention(dims, false)?, layer.enter("self_attn"));
                    let head_norm = |name: &str| layer.norm_of(&weights.enter(name), shape.head_dim);
                    let (output, rope) = (("out_proj", false), Some(rope.rope(shape.head_dim)?));
                    let attention = Attention::load_with_output(&weights, output, layer.index, shape, rope)?;
                    Block::new(before, attention.with_head_norms(head_norm("q_layernorm")?, head_norm("k_layernorm")?))
                }
                _ => return Err(layer.refuse(known)),
            };
            Ok(vec![mixer, Block::boxed(layer.norm("ffn_norm")?, config.feed_forward(layer, sizes)?)])
        },
    )
}

impl Config {
    fn feed_forward(&self, layer: &Layer<'_>, sizes: &FeedForward) -> Result<Box<dyn Mixer>> {
        let (weights, names) = (layer.enter("feed_forward"), ["w1", "w3", "w2"]);
        let mlp = layer.mlp(sizes.intermediate_size, Activation::Silu);
        if sizes.experts == 0 {
            return Ok(Box::new(Mlp::load_named(&weights, names, mlp)?));
        }
        let per_token = self.num_experts_per_tok.ok_or(ConfigError::Missing { key: "num_experts_per_tok" })?;
        let experts = size(sizes.experts);
        let routing = Routing {
            softmax: false,
            scale: self.routed_scaling_factor.unwrap_or(1.0),
            ..Routing::softmax(experts, per_token, self.norm_topk_prob)
        };
        let correction = if self.use_expert_bias { Some(weights.float("expert_bias", experts)?) } else { None };
        Ok(Box::new(Moe { correction, ..Moe::load(&weights, routing, names, mlp)? }))
    }
}
