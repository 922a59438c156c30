//! LFM2: a gated short convolution or attention, then a gated MLP, in every layer.

use cacheplan_transforms::{
    Model,
    layers::{BlockSpec, FeedForward},
};
use serde::Deserialize;

use super::layer::{TensorNames, decoder};
use crate::block::Block;
use crate::decoder::Decoder;
use crate::error::RuntimeError;
use crate::layers::{Activation, Attention, Mlp, RopeConfig, ShortConv, size};
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
    #[serde(flatten)]
    rope: RopeConfig,
}

/// Builds an LFM2 decoder.
pub(super) fn load(config: &Config, model: &Model, weights: &Weights) -> Result<Decoder, RuntimeError> {
    let tied = config.tie_embedding.unwrap_or(config.tie_word_embeddings);
    let rope = config.rope.with_default_theta(1_000_000.0);
    decoder(
        model,
        weights,
        TensorNames { norm: "embedding_norm", ..TensorNames::new(config.norm_eps, tied) },
        |layer| {
            let known = "attention or a short convolution over all channels, and a gated feed-forward block";
            let [mixer, BlockSpec::FeedForward(sizes @ FeedForward { matrices: 3, experts: 0, .. })] = layer.blocks
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
            let mlp = layer.mlp(sizes.intermediate_size, Activation::Silu);
            let mlp = Mlp::load_named(&layer.enter("feed_forward"), ["w1", "w3", "w2"], mlp)?;
            Ok(vec![mixer, Block::new(layer.norm("ffn_norm")?, mlp)])
        },
    )
}
