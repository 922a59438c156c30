//! Falcon-H1: Mamba-2 and attention side by side, then a gated MLP, in every layer; scaled everywhere.

use cacheplan_kernels::GateOrder;
use serde::Deserialize;

use crate::decoder::{Block, Decoder};
use crate::error::RuntimeError;
use crate::layers::{
    Activation, Attention, AttentionShape, Branch, Linear, Mamba2, Mamba2Config, Mamba2Shape, Mlp, Parallel, RmsNorm,
    RopeConfig,
};
use crate::weights::{Scope, Weights};

/// The keys of a Falcon-H1 `config.json` that its decoder reads.
#[derive(Debug, Deserialize)]
pub(super) struct Config {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: u32,
    hidden_act: Activation,
    rms_norm_eps: f64,
    num_attention_heads: usize,
    num_key_value_heads: usize,
    head_dim: Option<usize>,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    mamba_rms_norm: bool,
    mamba_norm_before_gate: bool,
    /// Whether the mixer's outward projection has a bias; the inward one has its own key.
    #[serde(default)]
    projectors_bias: bool,
    embedding_multiplier: f64,
    lm_head_multiplier: f64,
    mlp_multipliers: (f64, f64),
    ssm_in_multiplier: f64,
    ssm_out_multiplier: f64,
    ssm_multipliers: [f64; 5],
    attention_in_multiplier: f64,
    attention_out_multiplier: f64,
    key_multiplier: f64,
    #[serde(default)]
    tie_word_embeddings: bool,
    #[serde(flatten)]
    mamba: Mamba2Config,
    #[serde(flatten)]
    rope: RopeConfig,
}

/// Builds a Falcon-H1 decoder.
pub(super) fn load(config: &Config, weights: &Weights) -> Result<Decoder, RuntimeError> {
    let (hidden, eps) = (config.hidden_size, config.rms_norm_eps);
    let attention_shape = AttentionShape {
        hidden,
        heads: config.num_attention_heads,
        kv_heads: config.num_key_value_heads,
        head_dim: config.head_dim.unwrap_or(hidden / config.num_attention_heads.max(1)),
        bias: config.attention_bias,
    };
    let rope = config.rope.rope(attention_shape.head_dim)?;
    let gate = match (config.mamba_rms_norm, config.mamba_norm_before_gate) {
        (false, _) => GateOrder::GateOnly,
        (true, true) => GateOrder::NormThenGate,
        (true, false) => GateOrder::GateThenNorm,
    };
    let mamba2 =
        Mamba2Shape { out_bias: config.projectors_bias, ..config.mamba.shape(hidden, config.hidden_act, eps, gate) };
    let model = weights.scope("model");
    let mut blocks = Vec::new();
    for layer in 0..config.num_hidden_layers {
        let scope = model.enter("layers").enter(layer);
        let norm = |name: &str| RmsNorm::load(&scope.enter(name), hidden, eps);
        let mamba = Mamba2::load(&scope.enter("mamba"), layer, mamba2)?;
        let attention = Attention::load(&scope.enter("self_attn"), layer, attention_shape, Some(rope.clone()))?;
        let branches = vec![
            Branch {
                mixer: Box::new(mamba.with_projection_scales(config.ssm_multipliers)?),
                input_scale: config.ssm_in_multiplier,
                output_scale: config.ssm_out_multiplier,
            },
            Branch {
                mixer: Box::new(attention.with_key_scale(config.key_multiplier)?),
                input_scale: config.attention_in_multiplier,
                output_scale: config.attention_out_multiplier,
            },
        ];
        blocks.push(Block::new(norm("input_layernorm")?, Parallel(branches)));
        blocks.push(Block::new(norm("pre_ff_layernorm")?, config.mlp(&scope.enter("feed_forward"))?));
    }
    let embedding = model.enter("embed_tokens").get("weight", (config.vocab_size, hidden))?;
    let norm = RmsNorm::load(&model.enter("final_layernorm"), hidden, eps)?;
    Ok(Decoder {
        embedding_scale: config.embedding_multiplier,
        logit_scale: config.lm_head_multiplier,
        ..Decoder::new(embedding, blocks, norm, weights, config.tie_word_embeddings)?
    })
}

impl Config {
    fn mlp(&self, weights: &Scope<'_>) -> Result<Mlp, RuntimeError> {
        let (hidden, size, bias) = (self.hidden_size, self.intermediate_size, self.mlp_bias);
        let (gate_scale, down_scale) = self.mlp_multipliers;
        let gate = Linear::load(&weights.enter("gate_proj"), hidden, size, bias)?.scaled(gate_scale)?;
        let up = Linear::load(&weights.enter("up_proj"), hidden, size, bias)?;
        let down = Linear::load(&weights.enter("down_proj"), size, hidden, bias)?.scaled(down_scale)?;
        Ok(Mlp::gated(gate, up, down, self.hidden_act)?)
    }
}
