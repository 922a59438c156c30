//! Jamba: Mamba-1 or attention without rope, then a gated MLP or experts.

use cacheplan_kernels::Routing;
use cacheplan_transforms::Model;
use cacheplan_transforms::layers::{BlockSpec, FeedForward};
use serde::Deserialize;

use super::layer::{Layer, TensorNames, decoder};
use crate::block::Block;
use crate::decoder::Decoder;
use crate::error::{ConfigError, Result};
use crate::layers::{
    Activation, Attention, ExpertMlps, Linear, Mamba1, Mamba1Shape, Mixer, Mlp, Moe, checked_routing, size,
};
use crate::weights::Weights;

/// The keys of a Jamba `config.json` that its decoder reads.
#[derive(Debug, Deserialize)]
pub(super) struct Config {
    hidden_act: Activation,
    rms_norm_eps: f64,
    num_experts_per_tok: Option<usize>,
    mamba_conv_bias: bool,
    mamba_proj_bias: bool,
    #[serde(default)]
    tie_word_embeddings: bool,
}

/// Builds a Jamba decoder.
pub(super) fn load(config: &Config, model: &Model, weights: &Weights) -> Result<Decoder> {
    let frame =
        TensorNames { norm: "final_layernorm", ..TensorNames::new(config.rms_norm_eps, config.tie_word_embeddings) };
    let biases = [config.mamba_conv_bias, config.mamba_proj_bias];
    decoder(model, weights, frame, |layer| {
        let known = "attention or mamba1, and a gated feed-forward block without shared experts";
        let [mixer, BlockSpec::FeedForward(sizes @ FeedForward { matrices: 3, shared_size: 0, latent_size: None, .. })] =
            layer.blocks
        else {
            return Err(layer.refuse(known));
        };
        let before = layer.norm("input_layernorm")?;
        let mixer = match mixer {
            BlockSpec::Attention(dims) => {
                let shape = layer.attention(dims, false)?;
                Block::new(before, Attention::load(&layer.enter("self_attn"), layer.index, shape, None)?)
            }
            BlockSpec::Mamba1(dims) => {
                let (shape, weights) =
                    (Mamba1Shape::new(layer.hidden, dims, config.hidden_act, biases), layer.enter("mamba"));
                let norm = |name: &str, size: usize| layer.norm_of(&weights.enter(name), size);
                let selection_norms = [
                    norm("dt_layernorm", shape.dt_rank)?,
                    norm("b_layernorm", shape.d_state)?,
                    norm("c_layernorm", shape.d_state)?,
                ];
                let mamba = Mamba1::load(&weights, layer.index, shape)?;
                Block::new(before, mamba.with_selection_norms(selection_norms))
            }
            _ => return Err(layer.refuse(known)),
        };
        let feed_forward = config.feed_forward(layer, sizes)?;
        Ok(vec![mixer, Block::boxed(layer.norm("pre_ff_layernorm")?, feed_forward)])
    })
}

impl Config {
    fn feed_forward(&self, layer: &Layer<'_>, sizes: &FeedForward) -> Result<Box<dyn Mixer>> {
        let (weights, mlp) = (layer.enter("feed_forward"), layer.mlp(sizes.intermediate_size, self.hidden_act));
        if sizes.experts == 0 {
            return Ok(Box::new(Mlp::load_gated(&weights, mlp)?));
        }
        let per_token = self.num_experts_per_tok.ok_or(ConfigError::Missing { key: "num_experts_per_tok" })?;
        let (count, experts) = (size(sizes.experts), weights.enter("experts"));
        let routing = checked_routing(Routing::softmax(count, per_token, false))?;
        let router = Linear::load(&weights.enter("router"), layer.hidden, count, false)?;
        let experts = ExpertMlps::load(weights.backend(), count, |i| Mlp::load_gated(&experts.enter(i), mlp))?;
        Ok(Box::new(Moe::new(routing, router, experts)))
    }
}
