//! Kimi Linear: Kimi delta attention and latent attention without rope, then a gated MLP or experts.

use cacheplan_kernels::Routing;
use cacheplan_transforms::Model;
use cacheplan_transforms::layers::{BlockSpec, FeedForward};
use serde::Deserialize;

use super::layer::{Layer, decoder};
use super::usual::usual;
use crate::block::Block;
use crate::decoder::Decoder;
use crate::error::{ConfigError, Result};
use crate::layers::{Kda, KdaDecay, Mla, Mlp, Moe, size};
use crate::weights::{Scope, Weights};

usual! {
    /// The keys of a Kimi Linear `config.json` that its decoder reads.
    pub(super) struct Config {
        /// Whether latent attention goes without rotation.
        #[serde(default = "super::default_true")]
        mla_use_nope: bool,
        num_experts_per_token: usize,
        num_expert_group: usize,
        topk_group: usize,
        moe_renormalize: bool,
        routed_scaling_factor: f64,
    }
}

/// Builds a Kimi Linear decoder.
pub(super) fn load(config: &Config, model: &Model, weights: &Weights) -> Result<Decoder> {
    if !config.mla_use_nope {
        return Err(ConfigError::unsupported("mla_use_nope", "false", "true only").into());
    }
    decoder(model, weights, config.names(), |layer| {
        let known = "mla, or delta attention with a decay per channel, and a gated feed-forward block";
        let [mixer, BlockSpec::FeedForward(sizes @ FeedForward { matrices: 3, latent_size: None, .. })] = layer.blocks
        else {
            return Err(layer.refuse(known));
        };
        let (before, weights) = (layer.norm("input_layernorm")?, layer.enter("self_attn"));
        let mixer = match *mixer {
            BlockSpec::Mla(ref dims) => {
                let shape = layer.mla(dims, config.attention_bias)?;
                Block::new(before, Mla::load(&weights, layer.index, shape, None)?)
            }
            BlockSpec::LinearAttention(ref dims) => {
                let shape = layer.kda(dims, config.hidden_act, config.rms_norm_eps, KdaDecay::Softplus);
                let shape = shape.ok_or_else(|| layer.refuse(known))?;
                let a_log = weights.float("A_log", (1, 1, shape.heads, 1))?;
                Block::new(before, Kda::load(&weights, layer.index, shape, &a_log)?)
            }
            _ => return Err(layer.refuse(known)),
        };
        let (before, mlp) = (layer.norm("post_attention_layernorm")?, layer.enter("block_sparse_moe"));
        let feed_forward = if sizes.experts == 0 {
            Block::new(before, Mlp::load_gated(&mlp, layer.mlp(sizes.intermediate_size, config.hidden_act))?)
        } else {
            Block::new(before, config.moe(&mlp, layer, sizes)?)
        };
        Ok(vec![mixer, feed_forward])
    })
}

impl Config {
    fn moe(&self, weights: &Scope<'_>, layer: &Layer<'_>, sizes: &FeedForward) -> Result<Moe> {
        let routing = Routing {
            groups: self.num_expert_group,
            top_groups: self.topk_group,
            softmax: false,
            scale: self.routed_scaling_factor,
            ..Routing::softmax(size(sizes.experts), self.num_experts_per_token, self.moe_renormalize)
        };
        let shared = match sizes.shared_size {
            0 => None,
            size => Some(Mlp::load_gated(&weights.enter("shared_experts"), layer.mlp(size, self.hidden_act))?),
        };
        let expert = layer.mlp(sizes.intermediate_size, self.hidden_act);
        let expert = |weights: &Scope<'_>| Mlp::load_named(weights, ["w1", "w3", "w2"], expert);
        Moe::load_corrected(weights, layer.hidden, routing, expert, shared)
    }
}
