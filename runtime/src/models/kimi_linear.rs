//! Kimi Linear: Kimi delta attention and latent attention without rope, then a gated MLP or experts.

use serde::Deserialize;

use crate::decoder::{Block, Decoder};
use crate::error::{ConfigError, RuntimeError};
use crate::layers::{Activation, Kda, KdaShape, Mla, MlaShape, Mlp, MlpShape, Moe, RmsNorm, Routing, Scoring};
use crate::weights::{Scope, Weights};

/// The keys of a Kimi Linear `config.json` that its decoder reads.
#[derive(Debug, Deserialize)]
pub(super) struct Config {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    hidden_act: Activation,
    rms_norm_eps: f64,
    layer_types: Vec<String>,
    mlp_layer_types: Vec<String>,
    num_attention_heads: usize,
    q_lora_rank: Option<usize>,
    kv_lora_rank: usize,
    qk_nope_head_dim: usize,
    qk_rope_head_dim: usize,
    v_head_dim: usize,
    #[serde(default)]
    attention_bias: bool,
    linear_num_heads: usize,
    linear_head_dim: usize,
    linear_conv_kernel_dim: usize,
    num_experts: usize,
    num_experts_per_token: usize,
    num_shared_experts: usize,
    moe_intermediate_size: usize,
    num_expert_group: usize,
    topk_group: usize,
    moe_renormalize: bool,
    routed_scaling_factor: f64,
    #[serde(default)]
    tie_word_embeddings: bool,
}

/// Builds a Kimi Linear decoder.
pub(super) fn load(config: &Config, weights: &Weights) -> Result<Decoder, RuntimeError> {
    let (hidden, eps) = (config.hidden_size, config.rms_norm_eps);
    let mla = MlaShape {
        hidden,
        heads: config.num_attention_heads,
        q_lora_rank: config.q_lora_rank,
        kv_lora_rank: config.kv_lora_rank,
        nope: config.qk_nope_head_dim,
        rope: config.qk_rope_head_dim,
        value: config.v_head_dim,
        bias: config.attention_bias,
        scale: 1.0 / ((config.qk_nope_head_dim + config.qk_rope_head_dim) as f64).sqrt(),
        interleaved: false,
    };
    let kda = KdaShape {
        hidden,
        heads: config.linear_num_heads,
        head_dim: config.linear_head_dim,
        d_conv: config.linear_conv_kernel_dim,
        activation: config.hidden_act,
        norm_eps: eps,
    };
    let unsupported = |key: &'static str, found: &str, known: &'static str| {
        RuntimeError::from(ConfigError::Unsupported { key, found: found.to_owned(), known })
    };
    let model = weights.scope("model");
    let mut blocks = Vec::new();
    for (layer, (mixer, feed_forward)) in (0..).zip(config.layer_types.iter().zip(&config.mlp_layer_types)) {
        let scope = model.enter("layers").enter(layer);
        let norm = |name: &str| RmsNorm::load(&scope.enter(name), hidden, eps);
        let (before, self_attn) = (norm("input_layernorm")?, scope.enter("self_attn"));
        blocks.push(match mixer.as_str() {
            "linear_attention" => Block::new(before, Kda::load(&self_attn, layer, kda)?),
            "full_attention" => Block::new(before, Mla::load(&self_attn, layer, mla, None)?),
            other => return Err(unsupported("layer_types", other, "linear_attention and full_attention")),
        });
        let (before, mlp) = (norm("post_attention_layernorm")?, scope.enter("block_sparse_moe"));
        blocks.push(match feed_forward.as_str() {
            "dense" => Block::new(before, Mlp::load_gated(&mlp, config.mlp(config.intermediate_size))?),
            "sparse" => Block::new(before, config.moe(&mlp)?),
            other => return Err(unsupported("mlp_layer_types", other, "dense and sparse")),
        });
    }
    let embedding = model.enter("embed_tokens").get("weight", (config.vocab_size, hidden))?;
    let norm = RmsNorm::load(&model.enter("norm"), hidden, eps)?;
    Decoder::new(embedding, blocks, norm, weights, config.tie_word_embeddings)
}

impl Config {
    fn mlp(&self, intermediate: usize) -> MlpShape {
        MlpShape { hidden: self.hidden_size, intermediate, bias: false, activation: self.hidden_act }
    }

    fn moe(&self, weights: &Scope<'_>) -> Result<Moe, RuntimeError> {
        let routing = Routing {
            experts: self.num_experts,
            experts_per_token: self.num_experts_per_token,
            groups: self.num_expert_group,
            top_groups: self.topk_group,
            scoring: Scoring::Sigmoid,
            normalise: self.moe_renormalize,
            scale: self.routed_scaling_factor,
        };
        let expert = self.mlp(self.moe_intermediate_size);
        let shared = self.mlp(self.moe_intermediate_size * self.num_shared_experts);
        let shared = Mlp::load_gated(&weights.enter("shared_experts"), shared)?;
        let expert = |weights: &Scope<'_>| Mlp::load_named(weights, ["w1", "w3", "w2"], expert);
        Moe::load_corrected(weights, self.hidden_size, routing, expert, Some(shared))
    }
}
