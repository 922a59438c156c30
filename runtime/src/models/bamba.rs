//! Bamba: Mamba-2 or attention with rope, then a gated MLP, in every layer.

use cacheplan_kernels::GateOrder;
use serde::Deserialize;

use crate::decoder::{Block, Decoder};
use crate::error::RuntimeError;
use crate::layers::{Activation, Attention, AttentionShape, Mamba2, Mamba2Config, Mlp, MlpShape, RmsNorm, RopeConfig};
use crate::weights::Weights;

/// The keys of a Bamba `config.json` that its decoder reads.
#[derive(Debug, Deserialize)]
pub(super) struct Config {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: u32,
    hidden_act: Activation,
    rms_norm_eps: f64,
    attn_layer_indices: Option<Vec<u32>>,
    num_attention_heads: usize,
    num_key_value_heads: usize,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    #[serde(default)]
    tie_word_embeddings: bool,
    #[serde(flatten)]
    mamba: Mamba2Config,
    #[serde(flatten)]
    rope: RopeConfig,
}

/// Builds a Bamba decoder.
pub(super) fn load(config: &Config, weights: &Weights) -> Result<Decoder, RuntimeError> {
    let (hidden, eps) = (config.hidden_size, config.rms_norm_eps);
    let attention = AttentionShape {
        hidden,
        heads: config.num_attention_heads,
        kv_heads: config.num_key_value_heads,
        head_dim: hidden / config.num_attention_heads.max(1),
        bias: config.attention_bias,
    };
    let mamba2 = config.mamba.shape(hidden, config.hidden_act, eps, GateOrder::GateThenNorm);
    let mlp = MlpShape {
        hidden,
        intermediate: config.intermediate_size,
        bias: config.mlp_bias,
        activation: config.hidden_act,
    };
    let rope = config.rope.with_share(0.5).partial_rope(attention.head_dim)?;
    let model = weights.scope("model");
    let mut blocks = Vec::new();
    for layer in 0..config.num_hidden_layers {
        let scope = model.enter("layers").enter(layer);
        let norm = |name: &str| RmsNorm::load(&scope.enter(name), hidden, eps);
        let before = norm("input_layernorm")?;
        blocks.push(if config.attn_layer_indices.iter().flatten().any(|&index| index == layer) {
            Block::new(before, Attention::load(&scope.enter("self_attn"), layer, attention, Some(rope.clone()))?)
        } else {
            Block::new(before, Mamba2::load(&scope.enter("mamba"), layer, mamba2)?)
        });
        blocks.push(Block::new(norm("pre_ff_layernorm")?, Mlp::load_gated(&scope.enter("feed_forward"), mlp)?));
    }
    let embedding = model.enter("embed_tokens").get("weight", (config.vocab_size, hidden))?;
    let norm = RmsNorm::load(&model.enter("final_layernorm"), hidden, eps)?;
    Decoder::new(embedding, blocks, norm, weights, config.tie_word_embeddings)
}
