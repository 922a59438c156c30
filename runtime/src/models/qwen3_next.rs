//! Qwen3-Next and Qwen3.5: gated delta nets and gated attention, then a gated MLP or experts.

use cacheplan_kernels::Rope;
use cacheplan_transforms::Model;
use cacheplan_transforms::layers::{BlockSpec, FeedForward};
use serde::Deserialize;

use super::experts::Experts;
use super::layer::{Layer, TensorNames, decoder};
use super::usual::usual;
use crate::block::Block;
use crate::decoder::Decoder;
use crate::error::Result;
use crate::layers::{
    Activation, Attention, AttentionShape, GatedDelta, GatedDeltaProjections, GatedDeltaRest, GatedDeltaShape, Linear,
    Mixer, Mlp, Moe, RmsNorm, RopeConfig, SharedExpert,
};
use crate::prediction::{PredictionNames, PredictionPart};
use crate::weights::{Scope, Weights};

usual! {
    /// The keys of a `config.json` of this family that its decoder reads.
    pub(super) struct Config {
        #[serde(flatten)]
        experts: Experts,
        /// Whether value heads lie as GGUF files have them: the first of every key head, then the second of every one.
        #[serde(default)]
        value_heads_in_tiles: bool,
        #[serde(flatten)]
        rope: RopeConfig,
    }
}

type LoadProjections = fn(&Scope<'_>, GatedDeltaShape) -> Result<GatedDeltaProjections>;

/// Builds a Qwen3-Next decoder.
pub(super) fn load(config: &Config, model: &Model, weights: &Weights) -> Result<Decoder> {
    build(config, model, weights, interleaved_projections)
}

/// Builds a Qwen3.5 decoder: the same with plain projections.
pub(super) fn load_qwen3_5(config: &Config, model: &Model, weights: &Weights) -> Result<Decoder> {
    build(config, model, weights, plain_projections)
}

fn build(config: &Config, model: &Model, weights: &Weights, projections: LoadProjections) -> Result<Decoder> {
    let names = PredictionNames {
        root: Some("mtp"),
        token_norm: "pre_fc_norm_embedding",
        hidden_norm: "pre_fc_norm_hidden",
        projection: "fc",
        norm: "norm",
        parts: &[PredictionPart::Attention],
        goes_on_normed: true,
    };
    let frame = TensorNames { load_norm: RmsNorm::load_from_one, prediction: Some(names), ..config.names() };
    let rope = config.rope.with_default_share(0.25);
    decoder(model, weights, frame, |layer| {
        let known = "attention, or linear attention by the delta rule with a decay per head and a convolution, \
                     and a gated feed-forward block";
        let [mixer, BlockSpec::FeedForward(sizes @ FeedForward { matrices: 3, latent_size: None, .. })] = layer.blocks
        else {
            return Err(layer.refuse(known));
        };
        let before = layer.norm("input_layernorm")?;
        let mixer = match *mixer {
            BlockSpec::LinearAttention(ref dims) => {
                let shape = layer.gated_delta(dims, config.hidden_act, config.rms_norm_eps);
                let shape = shape.ok_or_else(|| layer.refuse(known))?;
                let weights = layer.enter("linear_attn");
                let projections = projections(&weights, shape)?;
                let rest = GatedDeltaRest::load(&weights, &shape)?;
                let delta = GatedDelta::load(&weights, layer.index, shape, projections, rest)?;
                Block::new(before, if config.value_heads_in_tiles { delta.out_of_tiles()? } else { delta })
            }
            BlockSpec::Attention(ref dims) => {
                let shape = layer.attention(dims, config.attention_bias)?;
                let rope = rope.partial_rope(shape.head_dim)?;
                Block::new(before, gated_attention(layer, shape, rope)?)
            }
            _ => return Err(layer.refuse(known)),
        };
        let feed_forward = config.feed_forward(layer, sizes)?;
        Ok(vec![mixer, Block::boxed(layer.norm("post_attention_layernorm")?, feed_forward)])
    })
}

/// One matrix for queries, keys, values and gate, and one for strength and decay, each ordered by key head.
fn interleaved_projections(weights: &Scope<'_>, shape: GatedDeltaShape) -> Result<GatedDeltaProjections> {
    let GatedDeltaShape { hidden, key_heads, value_heads, key_dim, value_dim, .. } = shape;
    let per_key = value_heads / key_heads.max(1);
    let (values, width) = (per_key * value_dim, 2 * (key_dim + per_key * value_dim));
    let apart = ["in_proj_qkv", "in_proj_z"].map(|name| weights.enter(name));
    let ba = Linear::load(&weights.enter("in_proj_ba"), hidden, key_heads * 2 * per_key, false)?;
    // The outputs `start..start + size` of every key head.
    let part = move |width: usize, start: usize, size: usize| {
        (0..key_heads).flat_map(move |head| (0..size).map(move |i| head * width + start + i))
    };
    // Files of newer converters have the larger of the two taken apart.
    let [qkv, z] = if apart.iter().all(|weights| weights.stores("weight")) {
        let [qkv, z] = apart;
        [
            Linear::load(&qkv, hidden, 2 * shape.keys() + shape.values(), false)?,
            Linear::load(&z, hidden, shape.values(), false)?,
        ]
    } else {
        let qkvz = Linear::load(&weights.enter("in_proj_qkvz"), hidden, key_heads * width, false)?;
        let keys = part(width, 0, key_dim).chain(part(width, key_dim, key_dim));
        let qkv = qkvz.select(keys.chain(part(width, 2 * key_dim, values)))?;
        [qkv, qkvz.select(part(width, 2 * key_dim + values, values))?]
    };
    Ok(GatedDeltaProjections {
        qkv,
        z,
        b: ba.select(part(2 * per_key, 0, per_key))?,
        a: ba.select(part(2 * per_key, per_key, per_key))?,
    })
}

/// One matrix for queries, keys and values, and one each for gate, strength and decay.
pub(super) fn plain_projections(weights: &Scope<'_>, shape: GatedDeltaShape) -> Result<GatedDeltaProjections> {
    let linear = |name: &str, outputs: usize| Linear::load(&weights.enter(name), shape.hidden, outputs, false);
    Ok(GatedDeltaProjections {
        qkv: linear("in_proj_qkv", 2 * shape.keys() + shape.values())?,
        z: linear("in_proj_z", shape.values())?,
        b: linear("in_proj_b", shape.value_heads)?,
        a: linear("in_proj_a", shape.value_heads)?,
    })
}

impl Config {
    fn feed_forward(&self, layer: &Layer<'_>, sizes: &FeedForward) -> Result<Box<dyn Mixer>> {
        let (weights, activation) = (layer.enter("mlp"), self.hidden_act);
        if sizes.experts == 0 {
            return Ok(Box::new(Mlp::load_gated(&weights, layer.mlp(sizes.intermediate_size, activation))?));
        }
        Ok(Box::new(shared_experts(&self.experts, layer, sizes, activation)?))
    }
}

/// Experts beside a shared one behind a gate of its own.
pub(super) fn shared_experts(
    experts: &Experts,
    layer: &Layer<'_>,
    sizes: &FeedForward,
    activation: Activation,
) -> Result<Moe> {
    let weights = layer.enter("mlp");
    if sizes.shared_size == 0 {
        return Err(layer.refuse("a shared expert beside experts, of `shared_expert_intermediate_size`"));
    }
    let shared = layer.mlp(sizes.shared_size, activation);
    Ok(Moe {
        shared: Some(SharedExpert {
            mlp: Mlp::load_gated(&weights.enter("shared_expert"), shared)?,
            gate: Some(Linear::load(&weights.enter("shared_expert_gate"), layer.hidden, 1, false)?),
        }),
        ..experts.load(&weights, layer, sizes, activation)?
    })
}

/// Attention with norms over heads, and a gate for its output.
pub(super) fn gated_attention(layer: &Layer<'_>, shape: AttentionShape, rope: Rope) -> Result<Attention> {
    let weights = layer.enter("self_attn");
    let norm = |name: &str| layer.norm_of(&weights.enter(name), shape.head_dim);
    let attention = Attention::load_gated(&weights, layer.index, shape, Some(rope))?;
    Ok(attention.with_head_norms(norm("q_norm")?, norm("k_norm")?))
}
