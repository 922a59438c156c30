//! Jamba: Mamba-1 or attention without rope, then a gated MLP or experts, each at its own period.

use serde::Deserialize;

use crate::decoder::{Block, Decoder};
use crate::error::RuntimeError;
use crate::layers::{
    Activation, Attention, AttentionShape, Linear, Mamba1, Mamba1Shape, Mlp, MlpShape, Moe, RmsNorm, Routing,
};
use crate::weights::Weights;

/// The keys of a Jamba `config.json` that its decoder reads.
#[derive(Debug, Deserialize)]
pub(super) struct Config {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: u32,
    hidden_act: Activation,
    rms_norm_eps: f64,
    attn_layer_offset: u32,
    attn_layer_period: u32,
    expert_layer_offset: u32,
    expert_layer_period: u32,
    num_attention_heads: usize,
    num_key_value_heads: usize,
    num_experts: usize,
    num_experts_per_tok: usize,
    mamba_d_conv: usize,
    mamba_d_state: usize,
    mamba_dt_rank: usize,
    mamba_expand: usize,
    mamba_conv_bias: bool,
    mamba_proj_bias: bool,
    #[serde(default)]
    tie_word_embeddings: bool,
}

/// Builds a Jamba decoder.
pub(super) fn load(config: &Config, weights: &Weights) -> Result<Decoder, RuntimeError> {
    let (hidden, eps) = (config.hidden_size, config.rms_norm_eps);
    let attention = AttentionShape {
        hidden,
        heads: config.num_attention_heads,
        kv_heads: config.num_key_value_heads,
        head_dim: hidden / config.num_attention_heads.max(1),
        bias: false,
    };
    let mamba = Mamba1Shape {
        hidden,
        d_inner: config.mamba_expand * hidden,
        d_state: config.mamba_d_state,
        d_conv: config.mamba_d_conv,
        dt_rank: config.mamba_dt_rank,
        conv_bias: config.mamba_conv_bias,
        proj_bias: config.mamba_proj_bias,
        activation: config.hidden_act,
    };
    let mlp = MlpShape { hidden, intermediate: config.intermediate_size, bias: false, activation: config.hidden_act };
    let model = weights.scope("model");
    let mut blocks = Vec::new();
    for layer in 0..config.num_hidden_layers {
        let scope = model.enter("layers").enter(layer);
        let norm = |name: &str| RmsNorm::load(&scope.enter(name), hidden, eps);
        let before = norm("input_layernorm")?;
        blocks.push(if recurs(layer, config.attn_layer_offset, config.attn_layer_period) {
            Block::new(before, Attention::load(&scope.enter("self_attn"), layer, attention, None)?)
        } else {
            let mixer = scope.enter("mamba");
            let norm = |name: &str, size: usize| RmsNorm::load(&mixer.enter(name), size, eps);
            let selection_norms = [
                norm("dt_layernorm", mamba.dt_rank)?,
                norm("b_layernorm", mamba.d_state)?,
                norm("c_layernorm", mamba.d_state)?,
            ];
            Block::new(before, Mamba1::load(&mixer, layer, mamba)?.with_selection_norms(selection_norms))
        });
        let (before, feed_forward) = (norm("pre_ff_layernorm")?, scope.enter("feed_forward"));
        let sparse = config.num_experts > 1 && recurs(layer, config.expert_layer_offset, config.expert_layer_period);
        blocks.push(if sparse {
            let experts = feed_forward.enter("experts");
            let moe = Moe {
                routing: Routing::softmax(config.num_experts, config.num_experts_per_tok, false).checked()?,
                router: Linear::load(&feed_forward.enter("router"), hidden, config.num_experts, false)?,
                correction: None,
                experts: (0..config.num_experts)
                    .map(|i| Mlp::load_gated(&experts.enter(i), mlp))
                    .collect::<Result<_, _>>()?,
                latent: None,
                shared: None,
            };
            Block::new(before, moe)
        } else {
            Block::new(before, Mlp::load_gated(&feed_forward, mlp)?)
        });
    }
    let embedding = model.enter("embed_tokens").get("weight", (config.vocab_size, hidden))?;
    let norm = RmsNorm::load(&model.enter("final_layernorm"), hidden, eps)?;
    Decoder::new(embedding, blocks, norm, weights, config.tie_word_embeddings)
}

/// Whether `layer` is one of every `period` from `offset` on, counted within each period.
fn recurs(layer: u32, offset: u32, period: u32) -> bool {
    layer.checked_rem(period) == Some(offset)
}
