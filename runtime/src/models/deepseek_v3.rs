//! DeepSeek-V3: latent attention, then a gated MLP or a mixture of experts.

use serde::Deserialize;

use crate::decoder::{Block, Decoder};
use crate::error::RuntimeError;
use crate::layers::{Activation, Mla, MlaShape, Mlp, MlpShape, Moe, RmsNorm, RopeConfig, Routing, Scoring};
use crate::weights::{Scope, Weights};

/// The keys of a DeepSeek-V3 `config.json` that its decoder reads.
#[derive(Debug, Deserialize)]
pub(super) struct Config {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: u32,
    hidden_act: Activation,
    rms_norm_eps: f64,
    num_attention_heads: usize,
    q_lora_rank: Option<usize>,
    kv_lora_rank: usize,
    qk_nope_head_dim: usize,
    qk_rope_head_dim: usize,
    v_head_dim: usize,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default = "super::yes")]
    rope_interleave: bool,
    first_k_dense_replace: u32,
    n_routed_experts: usize,
    num_experts_per_tok: usize,
    n_shared_experts: usize,
    moe_intermediate_size: usize,
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
pub(super) fn load(config: &Config, weights: &Weights) -> Result<Decoder, RuntimeError> {
    let (hidden, eps) = (config.hidden_size, config.rms_norm_eps);
    let head_dim = config.qk_nope_head_dim + config.qk_rope_head_dim;
    let attention = MlaShape {
        hidden,
        heads: config.num_attention_heads,
        q_lora_rank: config.q_lora_rank,
        kv_lora_rank: config.kv_lora_rank,
        nope: config.qk_nope_head_dim,
        rope: config.qk_rope_head_dim,
        value: config.v_head_dim,
        bias: config.attention_bias,
        scale: config.rope.yarn_score_factor() / (head_dim as f64).sqrt(),
        interleaved: config.rope_interleave,
    };
    let rope = config.rope.rope(config.qk_rope_head_dim)?;
    let model = weights.scope("model");
    let mut blocks = Vec::new();
    for layer in 0..config.num_hidden_layers {
        let scope = model.enter("layers").enter(layer);
        let norm = |name: &str| RmsNorm::load(&scope.enter(name), hidden, eps);
        let mla = Mla::load(&scope.enter("self_attn"), layer, attention, Some(rope.clone()))?;
        blocks.push(Block::new(norm("input_layernorm")?, mla));
        let (norm, mlp) = (norm("post_attention_layernorm")?, scope.enter("mlp"));
        blocks.push(if layer < config.first_k_dense_replace {
            Block::new(norm, Mlp::load_gated(&mlp, config.mlp(config.intermediate_size))?)
        } else {
            Block::new(norm, config.moe(&mlp)?)
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
            experts: self.n_routed_experts,
            experts_per_token: self.num_experts_per_tok,
            groups: self.n_group,
            top_groups: self.topk_group,
            scoring: Scoring::Sigmoid,
            normalise: self.norm_topk_prob,
            scale: self.routed_scaling_factor,
        };
        let expert = self.mlp(self.moe_intermediate_size);
        let shared = self.mlp(self.moe_intermediate_size * self.n_shared_experts);
        let shared = Mlp::load_gated(&weights.enter("shared_experts"), shared)?;
        let expert = |weights: &Scope<'_>| Mlp::load_gated(weights, expert);
        Moe::load_corrected(weights, self.hidden_size, routing, expert, Some(shared))
    }
}
