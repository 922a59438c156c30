//! MiniMax: lightning attention and full attention, then experts; residuals start from the normalised input.

use cacheplan_kernels::Window;
use serde::Deserialize;

use crate::decoder::{Block, Decoder};
use crate::error::{ConfigError, RuntimeError};
use crate::layers::{Activation, Attention, AttentionShape, Lightning, MlpShape, Moe, RmsNorm, RopeConfig, Routing};
use crate::weights::{Scope, Weights};

/// The keys of a MiniMax `config.json` that its decoder reads.
#[derive(Debug, Deserialize)]
pub(super) struct Config {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    hidden_act: Activation,
    rms_norm_eps: f64,
    layer_types: Vec<String>,
    num_attention_heads: usize,
    num_key_value_heads: usize,
    head_dim: Option<usize>,
    /// Elements of a head that are rotated; all of them where it is absent.
    rotary_dim: Option<usize>,
    /// Of the layers with full attention.
    sliding_window: Option<usize>,
    num_local_experts: usize,
    num_experts_per_tok: usize,
    full_attn_alpha_factor: f64,
    full_attn_beta_factor: f64,
    linear_attn_alpha_factor: f64,
    linear_attn_beta_factor: f64,
    mlp_alpha_factor: f64,
    mlp_beta_factor: f64,
    #[serde(default)]
    tie_word_embeddings: bool,
    #[serde(flatten)]
    rope: RopeConfig,
}

/// Builds a MiniMax decoder.
pub(super) fn load(config: &Config, weights: &Weights) -> Result<Decoder, RuntimeError> {
    let (hidden, eps) = (config.hidden_size, config.rms_norm_eps);
    let attention = AttentionShape {
        hidden,
        heads: config.num_attention_heads,
        kv_heads: config.num_key_value_heads,
        head_dim: config.head_dim.unwrap_or(hidden / config.num_attention_heads.max(1)),
        bias: false,
    };
    let rope = config.rope.with_default_theta(1_000_000.0);
    let rope = match config.rotary_dim {
        // Half an element more, so that rounding down loses none.
        Some(rotated) => {
            let share = (rotated as f64 + 0.5) / attention.head_dim as f64;
            rope.with_default_share(share).partial_rope(attention.head_dim)?
        }
        None => rope.rope(attention.head_dim)?,
    };
    let window = config.sliding_window.map_or(Window::Full, Window::Sliding);
    let layers = config.layer_types.len() as u32;
    let model = weights.scope("model");
    let mut blocks = Vec::new();
    for (layer, kind) in (0..).zip(&config.layer_types) {
        let scope = model.enter("layers").enter(layer);
        let norm = |name: &str| RmsNorm::load(&scope.enter(name), hidden, eps);
        let (before, mixer) = (norm("input_layernorm")?, scope.enter("self_attn"));
        blocks.push(match kind.as_str() {
            "linear_attention" => {
                let heads = (attention.heads, attention.head_dim);
                let lightning = Lightning::load(&mixer, layer, layers, hidden, heads, config.hidden_act)?;
                Block {
                    residual_scale: config.linear_attn_alpha_factor,
                    output_scale: config.linear_attn_beta_factor,
                    residual_is_normed: true,
                    ..Block::new(before, lightning)
                }
            }
            "full_attention" => Block {
                residual_scale: config.full_attn_alpha_factor,
                output_scale: config.full_attn_beta_factor,
                residual_is_normed: true,
                ..Block::new(before, Attention::load(&mixer, layer, attention, Some(rope.clone()))?.with_window(window))
            },
            other => {
                let (found, known) = (other.to_owned(), "linear_attention and full_attention");
                return Err(ConfigError::Unsupported { key: "layer_types", found, known }.into());
            }
        });
        blocks.push(Block {
            residual_scale: config.mlp_alpha_factor,
            output_scale: config.mlp_beta_factor,
            residual_is_normed: true,
            ..Block::new(norm("post_attention_layernorm")?, config.moe(&scope.enter("block_sparse_moe"))?)
        });
    }
    let embedding = model.enter("embed_tokens").get("weight", (config.vocab_size, hidden))?;
    let norm = RmsNorm::load(&model.enter("norm"), hidden, eps)?;
    Decoder::new(embedding, blocks, norm, weights, config.tie_word_embeddings)
}

impl Config {
    fn moe(&self, weights: &Scope<'_>) -> Result<Moe, RuntimeError> {
        let (hidden, count) = (self.hidden_size, self.num_local_experts);
        let expert =
            MlpShape { hidden, intermediate: self.intermediate_size, bias: false, activation: self.hidden_act };
        let routing = Routing::softmax(count, self.num_experts_per_tok, true);
        Moe::load(weights, routing, ["w1", "w3", "w2"], expert)
    }
}
