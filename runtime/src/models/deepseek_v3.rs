//! DeepSeek-V3: latent attention, then a gated MLP or a mixture of experts.

use cacheplan_kernels::Routing;
use cacheplan_transforms::{
    Model,
    layers::{BlockSpec, FeedForward},
};
use serde::Deserialize;

use super::layer::{Layer, TensorNames, decoder};
use crate::block::Block;
use crate::decoder::Decoder;
use crate::error::RuntimeError;
use crate::layers::{Activation, Mla, MlaShape, Mlp, Moe, PreprocessedMla, RopeConfig, size};
use crate::prediction::{PredictionNames, PredictionPart};
use crate::weights::{Scope, Weights};

/// The keys of a DeepSeek-V3 `config.json` that its decoder reads.
#[derive(Debug, Deserialize)]
pub(super) struct Config {
    hidden_act: Activation,
    rms_norm_eps: f64,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default = "super::default_true")]
    rope_interleave: bool,
    num_experts_per_tok: usize,
    n_group: usize,
    topk_group: usize,
    norm_topk_prob: bool,
    routed_scaling_factor: f64,
    #[serde(default)]
    tie_word_embeddings: bool,
    #[serde(flatten)]
    rope: RopeConfig,
}

/// Builds a DeepSeek-V3 decoder.
pub(super) fn load(config: &Config, model: &Model, weights: &Weights) -> Result<Decoder, RuntimeError> {
    let names = PredictionNames {
        root: None,
        token_norm: "enorm",
        hidden_norm: "hnorm",
        projection: "eh_proj",
        norm: "shared_head.norm",
        parts: &[PredictionPart::Attention],
        goes_on_normed: false,
    };
    let frame = TensorNames::new(config.rms_norm_eps, config.tie_word_embeddings);
    decoder(model, weights, TensorNames { prediction: Some(names), ..frame }, |layer| {
        let [BlockSpec::Mla(dims), BlockSpec::FeedForward(sizes @ FeedForward { matrices: 3, latent_size: None, .. })] =
            layer.blocks
        else {
            return Err(layer.refuse("mla and a gated feed-forward block"));
        };
        let shape = layer.mla(dims, config.attention_bias)?;
        let scale = config.rope.yarn_score_factor() / ((shape.nope + shape.rope) as f64).sqrt();
        let shape = MlaShape { scale, interleaved: config.rope_interleave, ..shape };
        let rope = config.rope.rope(shape.rope)?;
        let eps = config.rms_norm_eps;
        let attention = match PreprocessedMla::load_if_asked(&layer.weights, layer.index, shape, &rope, eps)? {
            Some(with_norm) => Block::without_norm(with_norm),
            None => {
                let mla = Mla::load(&layer.enter("self_attn"), layer.index, shape, Some(rope))?;
                Block::new(layer.norm("input_layernorm")?, mla)
            }
        };
        let (before, mlp) = (layer.norm("post_attention_layernorm")?, layer.enter("mlp"));
        let feed_forward = if sizes.experts == 0 {
            Block::new(before, Mlp::load_gated(&mlp, layer.mlp(sizes.intermediate_size, config.hidden_act))?)
        } else {
            Block::new(before, config.moe(&mlp, layer, sizes)?)
        };
        Ok(vec![attention, feed_forward])
    })
}

impl Config {
    fn moe(&self, weights: &Scope<'_>, layer: &Layer<'_>, sizes: &FeedForward) -> Result<Moe, RuntimeError> {
        let routing = Routing {
            experts: size(sizes.experts),
            experts_per_token: self.num_experts_per_tok,
            groups: self.n_group,
            top_groups: self.topk_group,
            softmax: false,
            normalise: self.norm_topk_prob,
            scale: self.routed_scaling_factor,
        };
        let gated = |weights: &Scope<'_>, size| Mlp::load_gated(weights, layer.mlp(size, self.hidden_act));
        let expert = |weights: &Scope<'_>| gated(weights, sizes.intermediate_size);
        let shared = match sizes.shared_size {
            0 => None,
            size => Some(gated(&weights.enter("shared_experts"), size)?),
        };
        Moe::load_corrected(weights, layer.hidden, routing, expert, shared)
    }
}
