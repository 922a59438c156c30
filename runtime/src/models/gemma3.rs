//! Gemma 3 (text): sliding and full attention layers with norms before and after each mixer.

use std::collections::HashMap;

use cacheplan_kernels::Rope;
use cacheplan_transforms::Model;
use cacheplan_transforms::layers::{BlockSpec, FeedForward};
use serde::Deserialize;

use super::layer::{TensorNames, decoder};
use crate::block::Block;
use crate::decoder::Decoder;
use crate::error::{ConfigError, Result};
use crate::layers::{Activation, Attention, Mlp, RmsNorm, RopeParameters, size};
use crate::weights::Weights;

/// The keys of a Gemma 3 `config.json` that its decoder reads.
#[derive(Debug, Deserialize)]
pub(super) struct Config {
    hidden_activation: Activation,
    rms_norm_eps: f64,
    query_pre_attn_scalar: f64,
    #[serde(default)]
    attention_bias: bool,
    attn_logit_softcapping: Option<f64>,
    final_logit_softcapping: Option<f64>,
    rope_parameters: Option<HashMap<String, RopeParameters>>,
    /// Of the layers with full attention, in configs of the older spelling.
    rope_scaling: Option<RopeParameters>,
    rope_theta: Option<f32>,
    rope_local_base_freq: Option<f32>,
    max_position_embeddings: Option<usize>,
    #[serde(default = "super::default_true")]
    tie_word_embeddings: bool,
}

/// Builds a Gemma 3 decoder.
pub(super) fn load(config: &Config, model: &Model, weights: &Weights) -> Result<Decoder> {
    if let Some(cap) = config.attn_logit_softcapping {
        return Err(ConfigError::unsupported("attn_logit_softcapping", cap, "null only").into());
    }
    let frame = TensorNames {
        load_norm: RmsNorm::load_from_one,
        embedding_scale: model.hidden_size.map_or(1.0, |hidden| (size(hidden) as f64).sqrt()),
        logit_softcap: config.final_logit_softcapping,
        ..TensorNames::new(config.rms_norm_eps, config.tie_word_embeddings)
    };
    decoder(model, weights, frame, |layer| {
        let [
            BlockSpec::Attention(attention),
            BlockSpec::FeedForward(sizes @ FeedForward { matrices: 3, experts: 0, .. }),
        ] = layer.blocks
        else {
            return Err(layer.refuse("attention and a gated feed-forward block without experts"));
        };
        let (shape, weights) = (layer.attention(attention, config.attention_bias)?, layer.enter("self_attn"));
        let rope = config.rope(attention.window.is_some(), shape.head_dim)?;
        let head_norm = |name: &str| layer.norm_of(&weights.enter(name), shape.head_dim);
        let attention = Attention::load(&weights, layer.index, shape, Some(rope))?
            .with_head_norms(head_norm("q_norm")?, head_norm("k_norm")?)
            .with_scale(1.0 / config.query_pre_attn_scalar.sqrt());
        let mlp = layer.mlp(sizes.intermediate_size, config.hidden_activation);
        let mlp = Mlp::load_gated(&layer.enter("mlp"), mlp)?;
        Ok(vec![
            Block {
                post_norm: Some(layer.norm("post_attention_layernorm")?),
                ..Block::new(layer.norm("input_layernorm")?, attention)
            },
            Block {
                post_norm: Some(layer.norm("post_feedforward_layernorm")?),
                ..Block::new(layer.norm("pre_feedforward_layernorm")?, mlp)
            },
        ])
    })
}

impl Config {
    /// The rotation of layers with a window, or of those without.
    fn rope(&self, windowed: bool, head_dim: usize) -> Result<Rope> {
        let (layer_type, older, theta) = if windowed {
            ("sliding_attention", None, self.rope_local_base_freq.unwrap_or(10_000.0))
        } else {
            ("full_attention", self.rope_scaling.as_ref(), self.rope_theta.unwrap_or(1_000_000.0))
        };
        let stated = self.rope_parameters.as_ref().and_then(|by_type| by_type.get(layer_type));
        let parameters = stated.or(older).cloned().unwrap_or_default().with_default_theta(theta);
        parameters.rope(head_dim, self.max_position_embeddings)
    }
}
