//! MiniMax: lightning attention and full attention, then experts; residuals start from the normalised input.

use cacheplan_handlers::DecayKind;
use cacheplan_kernels::Routing;
use cacheplan_transforms::Model;
use cacheplan_transforms::layers::{BlockSpec, FeedForward, LinearAttention};
use serde::Deserialize;

use super::layer::{TensorNames, decoder};
use crate::block::Block;
use crate::decoder::Decoder;
use crate::error::Result;
use crate::layers::{Activation, Attention, Lightning, Moe, RopeConfig, size};
use crate::weights::Weights;

/// The keys of a MiniMax `config.json` that its decoder reads.
#[derive(Debug, Deserialize)]
pub(super) struct Config {
    hidden_act: Activation,
    rms_norm_eps: f64,
    /// Elements of a head that are rotated; all of them where it is absent.
    rotary_dim: Option<usize>,
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
pub(super) fn load(config: &Config, model: &Model, weights: &Weights) -> Result<Decoder> {
    let rope = config.rope.with_default_theta(1_000_000.0);
    let layers = model.layers.len() as u32;
    decoder(model, weights, TensorNames::new(config.rms_norm_eps, config.tie_word_embeddings), |layer| {
        let known = "attention, or linear attention with fixed decays, without a convolution, and experts";
        let [
            mixer,
            BlockSpec::FeedForward(FeedForward {
                matrices: 3,
                experts: experts @ 1..,
                intermediate_size,
                shared_size: 0,
                latent_size: None,
                ..
            }),
        ] = layer.blocks
        else {
            return Err(layer.refuse(known));
        };
        let (before, weights) = (layer.norm("input_layernorm")?, layer.enter("self_attn"));
        let (residual_scale, output_scale, mixer) = match *mixer {
            BlockSpec::LinearAttention(LinearAttention {
                num_k_heads,
                num_v_heads,
                head_k_dim,
                head_v_dim,
                delta_rule: false,
                decay: DecayKind::Fixed,
                d_conv: None,
                ..
            }) if (num_k_heads, head_k_dim) == (num_v_heads, head_v_dim) => {
                let heads = (size(num_k_heads), size(head_k_dim));
                let mixer = Lightning::load(&weights, layer.index, layers, layer.hidden, heads, config.hidden_act)?;
                let factors = (config.linear_attn_alpha_factor, config.linear_attn_beta_factor);
                (factors.0, factors.1, Block::new(before, mixer))
            }
            BlockSpec::Attention(ref dims) => {
                let shape = layer.attention(dims, false)?;
                let rope = match config.rotary_dim {
                    // Half an element more, so that rounding down loses none.
                    Some(rotated) => {
                        let share = (rotated as f64 + 0.5) / shape.head_dim as f64;
                        rope.with_default_share(share).partial_rope(shape.head_dim)?
                    }
                    None => rope.rope(shape.head_dim)?,
                };
                let mixer = Attention::load(&weights, layer.index, shape, Some(rope))?;
                (config.full_attn_alpha_factor, config.full_attn_beta_factor, Block::new(before, mixer))
            }
            _ => return Err(layer.refuse(known)),
        };
        let routing = Routing::softmax(size(*experts), config.num_experts_per_tok, true);
        let expert = layer.mlp(*intermediate_size, config.hidden_act);
        let moe = Moe::load(&layer.enter("block_sparse_moe"), routing, ["w1", "w3", "w2"], expert)?;
        Ok(vec![
            Block { residual_scale, output_scale, residual_is_normed: true, ..mixer },
            Block {
                residual_scale: config.mlp_alpha_factor,
                output_scale: config.mlp_beta_factor,
                residual_is_normed: true,
                ..Block::new(layer.norm("post_attention_layernorm")?, moe)
            },
        ])
    })
}
