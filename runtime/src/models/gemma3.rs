//! Gemma 3 (text): sliding and full attention layers with norms before and after each mixer.

use std::collections::HashMap;

use cacheplan_kernels::{Rope, Window};
use serde::Deserialize;

use crate::decoder::{Block, Decoder};
use crate::error::{ConfigError, RuntimeError};
use crate::layers::{Activation, Attention, AttentionShape, Mlp, MlpShape, RmsNorm, RopeParameters};
use crate::weights::Weights;

/// The keys of a Gemma 3 `config.json` that its decoder reads.
#[derive(Debug, Deserialize)]
pub(super) struct Config {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    hidden_activation: Activation,
    rms_norm_eps: f64,
    num_hidden_layers: u32,
    layer_types: Option<Vec<String>>,
    /// Every so many layers one has full attention, in configs that do not list them.
    #[serde(default = "six")]
    sliding_window_pattern: u32,
    sliding_window: usize,
    num_attention_heads: usize,
    num_key_value_heads: usize,
    head_dim: usize,
    query_pre_attn_scalar: f64,
    #[serde(default)]
    attention_bias: bool,
    use_bidirectional_attention: Option<bool>,
    attn_logit_softcapping: Option<f64>,
    final_logit_softcapping: Option<f64>,
    rope_parameters: Option<HashMap<String, RopeParameters>>,
    /// Of the layers with full attention, in configs of the older spelling.
    rope_scaling: Option<RopeParameters>,
    rope_theta: Option<f32>,
    rope_local_base_freq: Option<f32>,
    max_position_embeddings: Option<usize>,
    #[serde(default = "super::yes")]
    tie_word_embeddings: bool,
}

fn six() -> u32 {
    6
}

/// Builds a Gemma 3 decoder.
pub(super) fn load(config: &Config, weights: &Weights) -> Result<Decoder, RuntimeError> {
    if config.use_bidirectional_attention == Some(true) {
        let (found, known) = ("true".to_owned(), "false only");
        return Err(ConfigError::Unsupported { key: "use_bidirectional_attention", found, known }.into());
    }
    if let Some(cap) = config.attn_logit_softcapping {
        let (found, known) = (cap.to_string(), "null only");
        return Err(ConfigError::Unsupported { key: "attn_logit_softcapping", found, known }.into());
    }
    let (hidden, eps) = (config.hidden_size, config.rms_norm_eps);
    let attention_shape = AttentionShape {
        hidden,
        heads: config.num_attention_heads,
        kv_heads: config.num_key_value_heads,
        head_dim: config.head_dim,
        bias: config.attention_bias,
    };
    let mlp_shape =
        MlpShape { hidden, intermediate: config.intermediate_size, bias: false, activation: config.hidden_activation };
    let full = config.rope("full_attention", &config.rope_scaling, config.rope_theta.unwrap_or(1_000_000.0))?;
    let sliding = config.rope("sliding_attention", &None, config.rope_local_base_freq.unwrap_or(10_000.0))?;
    let model = weights.scope("model");
    let mut blocks = Vec::new();
    for (layer, kind) in (0..).zip(config.layer_types()) {
        let scope = model.enter("layers").enter(layer);
        let norm = |name: &str| RmsNorm::load_from_one(&scope.enter(name), hidden, eps);
        let self_attn = scope.enter("self_attn");
        let (rope, window) = match kind.as_str() {
            "full_attention" => (&full, Window::Full),
            "sliding_attention" => (&sliding, Window::Sliding(config.sliding_window)),
            other => {
                let (found, known) = (other.to_owned(), "full_attention and sliding_attention");
                return Err(ConfigError::Unsupported { key: "layer_types", found, known }.into());
            }
        };
        let head_norm = |name: &str| RmsNorm::load_from_one(&self_attn.enter(name), config.head_dim, eps);
        let attention = Attention::load(&self_attn, layer, attention_shape, Some(rope.clone()))?
            .with_head_norms(head_norm("q_norm")?, head_norm("k_norm")?)
            .with_scale(1.0 / config.query_pre_attn_scalar.sqrt())
            .with_window(window);
        blocks.push(Block {
            post_norm: Some(norm("post_attention_layernorm")?),
            ..Block::new(norm("input_layernorm")?, attention)
        });
        blocks.push(Block {
            post_norm: Some(norm("post_feedforward_layernorm")?),
            ..Block::new(norm("pre_feedforward_layernorm")?, Mlp::load_gated(&scope.enter("mlp"), mlp_shape)?)
        });
    }
    let embedding = model.enter("embed_tokens").get("weight", (config.vocab_size, hidden))?;
    let norm = RmsNorm::load_from_one(&model.enter("norm"), hidden, eps)?;
    Ok(Decoder {
        embedding_scale: (hidden as f64).sqrt(),
        logit_softcap: config.final_logit_softcapping,
        ..Decoder::new(embedding, blocks, norm, weights, config.tie_word_embeddings)?
    })
}

impl Config {
    fn layer_types(&self) -> Vec<String> {
        let is_full = |layer: u32| (layer + 1).checked_rem(self.sliding_window_pattern) == Some(0);
        let name = |layer| if is_full(layer) { "full_attention" } else { "sliding_attention" };
        let derived = || (0..self.num_hidden_layers).map(|layer| name(layer).to_owned()).collect();
        self.layer_types.clone().unwrap_or_else(derived)
    }

    /// The rotation of one layer type; `scaling` and `theta` are what configs of the older spelling say of it.
    fn rope(&self, layer_type: &str, scaling: &Option<RopeParameters>, theta: f32) -> Result<Rope, RuntimeError> {
        let stated = self.rope_parameters.as_ref().and_then(|by_type| by_type.get(layer_type));
        let parameters = stated.or(scaling.as_ref()).cloned().unwrap_or_default().with_default_theta(theta);
        parameters.rope(self.head_dim, self.max_position_embeddings)
    }
}
