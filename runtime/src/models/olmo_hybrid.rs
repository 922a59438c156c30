//! OLMo Hybrid: gated delta nets behind norms, and attention with norms behind it, then a gated MLP, in every layer.

use cacheplan_transforms::Model;
use cacheplan_transforms::layers::{BlockSpec, FeedForward};
use serde::Deserialize;

use super::layer::{Layer, decoder};
use super::usual::usual;
use crate::block::Block;
use crate::decoder::Decoder;
use crate::error::Result;
use crate::layers::{
    Attention, CausalConv, GatedDelta, GatedDeltaProjections, GatedDeltaRest, GatedDeltaShape, Linear, Mlp, RopeConfig,
};
use crate::weights::{Scope, Weights};

/// The gated norm has an epsilon of its own, whatever the config's `rms_norm_eps`.
const GATED_NORM_EPS: f64 = 1e-5;

usual! {
    /// The keys of an OLMo Hybrid `config.json` that its decoder reads.
    pub(super) struct Config {
        #[serde(default = "super::default_true")]
        linear_allow_neg_eigval: bool,
        #[serde(flatten)]
        rope: RopeConfig,
    }
}

/// Builds an OLMo Hybrid decoder.
pub(super) fn load(config: &Config, model: &Model, weights: &Weights) -> Result<Decoder> {
    let frame = config.names();
    decoder(model, weights, frame, |layer| {
        let known = "attention, or linear attention by the delta rule with a decay per head and a convolution, \
                     and a gated feed-forward block without experts";
        let [mixer, BlockSpec::FeedForward(sizes @ FeedForward { matrices: 3, experts: 0, .. })] = layer.blocks else {
            return Err(layer.refuse(known));
        };
        let mlp = layer.mlp(sizes.intermediate_size, config.hidden_act);
        let mlp = Mlp::load_gated(&layer.enter("mlp"), mlp)?;
        match *mixer {
            BlockSpec::LinearAttention(ref dims) => {
                let shape = layer.gated_delta(dims, config.hidden_act, GATED_NORM_EPS);
                let shape = GatedDeltaShape {
                    strength: if config.linear_allow_neg_eigval { 2.0 } else { 1.0 },
                    ..shape.ok_or_else(|| layer.refuse(known))?
                };
                let delta = gated_delta(&layer.enter("linear_attn"), layer, shape)?;
                Ok(vec![
                    Block::new(layer.norm("attention_layer_norm")?, delta),
                    Block::new(layer.norm("feedforward_layer_norm")?, mlp),
                ])
            }
            BlockSpec::Attention(ref dims) => {
                let (shape, weights) = (layer.attention(dims, config.attention_bias)?, layer.enter("self_attn"));
                let norm = |name: &str, heads: usize| layer.norm_of(&weights.enter(name), heads * shape.head_dim);
                // Published checkpoints rotate nothing.
                let rope = if config.rope.states_no_base() { None } else { Some(config.rope.rope(shape.head_dim)?) };
                let attention = Attention::load(&weights, layer.index, shape, rope)?
                    .with_whole_norms(norm("q_norm", shape.heads)?, norm("k_norm", shape.kv_heads)?);
                let behind = |name: &str, block: Block| -> Result<Block> {
                    Ok(Block { post_norm: Some(layer.norm(name)?), ..block })
                };
                Ok(vec![
                    behind("post_attention_layernorm", Block::without_norm(attention))?,
                    behind("post_feedforward_layernorm", Block::without_norm(mlp))?,
                ])
            }
            _ => Err(layer.refuse(known)),
        }
    })
}

fn gated_delta(weights: &Scope<'_>, layer: &Layer<'_>, shape: GatedDeltaShape) -> Result<GatedDelta> {
    let (keys, values) = (shape.keys(), shape.values());
    let inward = |name: &str, outputs: usize| Linear::load(&weights.enter(name), shape.hidden, outputs, false);
    let conv = |name: &str, channels: usize| CausalConv::load(&weights.enter(name), channels, shape.d_conv, false);
    let projections = GatedDeltaProjections {
        qkv: Linear::stacked(&[inward("q_proj", keys)?, inward("k_proj", keys)?, inward("v_proj", values)?])?,
        z: inward("g_proj", values)?,
        b: inward("b_proj", shape.value_heads)?,
        a: inward("a_proj", shape.value_heads)?,
    };
    let rest = GatedDeltaRest {
        conv: CausalConv::beside(&[conv("q_conv1d", keys)?, conv("k_conv1d", keys)?, conv("v_conv1d", values)?])?,
        norm_weight: weights.enter("o_norm").get("weight", shape.value_dim)?,
        out_proj: Linear::load(&weights.enter("o_proj"), values, shape.hidden, false)?,
    };
    GatedDelta::load(weights, layer.index, shape, projections, rest)
}
