//! Granite 4 hybrid: Mamba-2 or attention, then experts beside a shared MLP, in every layer; scaled everywhere.

use cacheplan_kernels::GateOrder;
use serde::Deserialize;

use crate::decoder::{Block, Decoder};
use crate::error::{ConfigError, RuntimeError};
use crate::layers::{
    Activation, Attention, AttentionShape, Linear, Mamba2, Mamba2Config, Mlp, Moe, RmsNorm, RopeConfig, Routing,
    SharedExpert,
};
use crate::weights::{Scope, Weights};

/// The keys of a Granite hybrid `config.json` that its decoder reads.
#[derive(Debug, Deserialize)]
pub(super) struct Config {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    shared_intermediate_size: usize,
    hidden_act: Activation,
    rms_norm_eps: f64,
    #[serde(alias = "layers_block_type")]
    layer_types: Vec<String>,
    num_attention_heads: usize,
    num_key_value_heads: usize,
    #[serde(default)]
    attention_bias: bool,
    position_embedding_type: Option<String>,
    num_local_experts: usize,
    num_experts_per_tok: usize,
    embedding_multiplier: f64,
    attention_multiplier: f64,
    residual_multiplier: f64,
    logits_scaling: f64,
    #[serde(default)]
    tie_word_embeddings: bool,
    #[serde(flatten)]
    mamba: Mamba2Config,
    #[serde(flatten)]
    rope: RopeConfig,
}

/// Builds a Granite hybrid decoder.
pub(super) fn load(config: &Config, weights: &Weights) -> Result<Decoder, RuntimeError> {
    let (hidden, eps) = (config.hidden_size, config.rms_norm_eps);
    let attention = AttentionShape {
        hidden,
        heads: config.num_attention_heads,
        kv_heads: config.num_key_value_heads,
        head_dim: hidden / config.num_attention_heads.max(1),
        bias: config.attention_bias,
    };
    let rope = match config.position_embedding_type.as_deref() {
        Some("rope") => Some(config.rope.rope(attention.head_dim)?),
        _ => None,
    };
    let mamba2 = config.mamba.shape(hidden, config.hidden_act, eps, GateOrder::GateThenNorm);
    let model = weights.scope("model");
    let mut blocks = Vec::new();
    for (layer, kind) in (0..).zip(&config.layer_types) {
        let scope = model.enter("layers").enter(layer);
        let norm = |name: &str| RmsNorm::load(&scope.enter(name), hidden, eps);
        let before = norm("input_layernorm")?;
        let mixer = match kind.as_str() {
            "linear_attention" | "mamba" => Block::new(before, Mamba2::load(&scope.enter("mamba"), layer, mamba2)?),
            "full_attention" | "attention" => {
                let mixer = Attention::load(&scope.enter("self_attn"), layer, attention, rope.clone())?;
                Block::new(before, mixer.with_scale(config.attention_multiplier))
            }
            other => {
                let (found, known) = (other.to_owned(), "linear_attention (mamba) and full_attention (attention)");
                return Err(ConfigError::Unsupported { key: "layer_types", found, known }.into());
            }
        };
        let feed_forward = config.feed_forward(norm("post_attention_layernorm")?, &scope)?;
        blocks.extend([mixer, feed_forward].map(|block| Block { output_scale: config.residual_multiplier, ..block }));
    }
    let embedding = model.enter("embed_tokens").get("weight", (config.vocab_size, hidden))?;
    let norm = RmsNorm::load(&model.enter("norm"), hidden, eps)?;
    Ok(Decoder {
        embedding_scale: config.embedding_multiplier,
        logit_scale: 1.0 / config.logits_scaling,
        ..Decoder::new(embedding, blocks, norm, weights, config.tie_word_embeddings)?
    })
}

impl Config {
    /// The shared MLP, beside experts if the model has any.
    fn feed_forward(&self, norm: RmsNorm, scope: &Scope<'_>) -> Result<Block, RuntimeError> {
        let (hidden, activation) = (self.hidden_size, self.hidden_act);
        let shared = scope.enter("shared_mlp");
        let size = self.shared_intermediate_size;
        let gate_up = Linear::load(&shared.enter("input_linear"), hidden, 2 * size, false)?;
        let down = Linear::load(&shared.enter("output_linear"), size, hidden, false)?;
        let shared = Mlp::fused(gate_up, down, activation);
        let experts = self.num_local_experts;
        if experts == 0 {
            return Ok(Block::new(norm, shared));
        }
        let moe = scope.enter("block_sparse_moe");
        let size = self.intermediate_size;
        let gate_up = moe.enter("input_linear").get("weight", (experts, 2 * size, hidden))?;
        let down = moe.enter("output_linear").get("weight", (experts, hidden, size))?;
        let moe = Moe {
            routing: Routing::softmax(experts, self.num_experts_per_tok, true).checked()?,
            router: Linear::load(&moe.enter("router").enter("layer"), hidden, experts, false)?,
            correction: None,
            experts: (0..experts)
                .map(|i| {
                    let (gate_up, down) = (Linear::new(gate_up.get(i)?, None), Linear::new(down.get(i)?, None));
                    Ok(Mlp::fused(gate_up, down, activation))
                })
                .collect::<candle_core::Result<_>>()?,
            latent: None,
            shared: Some(SharedExpert { mlp: shared, gate: None }),
        };
        Ok(Block::new(norm, moe))
    }
}
