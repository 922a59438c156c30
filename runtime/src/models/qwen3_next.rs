//! Qwen3-Next and Qwen3.5: gated delta nets and gated attention, then a gated MLP or experts.

use serde::Deserialize;

use super::experts::Experts;
use crate::decoder::{Block, Decoder};
use crate::error::{ConfigError, RuntimeError};
use crate::layers::{
    Activation, Attention, AttentionShape, GatedDelta, GatedDeltaProjections, GatedDeltaShape, Linear, Mlp, MlpShape,
    Moe, RmsNorm, RopeConfig, SharedExpert,
};
use crate::weights::{Scope, Weights};

/// The keys of a `config.json` of this family that its decoder reads.
#[derive(Debug, Deserialize)]
pub(super) struct Config {
    vocab_size: usize,
    hidden_size: usize,
    hidden_act: Activation,
    rms_norm_eps: f64,
    num_hidden_layers: u32,
    layer_types: Option<Vec<String>>,
    /// Every so many layers one has full attention, in configs that do not list them.
    full_attention_interval: Option<u32>,
    num_attention_heads: usize,
    num_key_value_heads: usize,
    head_dim: usize,
    #[serde(default)]
    attention_bias: bool,
    linear_conv_kernel_dim: usize,
    linear_key_head_dim: usize,
    linear_num_key_heads: usize,
    linear_num_value_heads: usize,
    linear_value_head_dim: usize,
    intermediate_size: Option<usize>,
    shared_expert_intermediate_size: Option<usize>,
    #[serde(flatten)]
    experts: Experts,
    #[serde(default)]
    tie_word_embeddings: bool,
    #[serde(flatten)]
    rope: RopeConfig,
}

type LoadProjections = fn(&Scope<'_>, GatedDeltaShape) -> Result<GatedDeltaProjections, RuntimeError>;

/// Builds a Qwen3-Next decoder.
pub(super) fn load(config: &Config, weights: &Weights) -> Result<Decoder, RuntimeError> {
    build(config, weights, interleaved_projections)
}

/// Builds a Qwen3.5 decoder: the same with plain projections.
pub(super) fn load_qwen3_5(config: &Config, weights: &Weights) -> Result<Decoder, RuntimeError> {
    build(config, weights, plain_projections)
}

fn build(config: &Config, weights: &Weights, projections: LoadProjections) -> Result<Decoder, RuntimeError> {
    let (hidden, eps) = (config.hidden_size, config.rms_norm_eps);
    let attention_shape = AttentionShape {
        hidden,
        heads: config.num_attention_heads,
        kv_heads: config.num_key_value_heads,
        head_dim: config.head_dim,
        bias: config.attention_bias,
    };
    let delta_shape = GatedDeltaShape {
        hidden,
        key_heads: config.linear_num_key_heads,
        value_heads: config.linear_num_value_heads,
        key_dim: config.linear_key_head_dim,
        value_dim: config.linear_value_head_dim,
        d_conv: config.linear_conv_kernel_dim,
        activation: config.hidden_act,
        norm_eps: eps as f32,
    };
    let rope = config.rope.with_default_share(0.25).partial_rope(config.head_dim)?;
    let model = weights.scope("model");
    let mut blocks = Vec::new();
    for (layer, kind) in (0..).zip(config.layer_types()?) {
        let scope = model.enter("layers").enter(layer);
        let norm = |name: &str| RmsNorm::load_from_one(&scope.enter(name), hidden, eps);
        let before = norm("input_layernorm")?;
        blocks.push(match kind.as_str() {
            "linear_attention" => {
                let mixer = scope.enter("linear_attn");
                let projections = projections(&mixer, delta_shape)?;
                Block::new(before, GatedDelta::load(&mixer, layer, delta_shape, projections)?)
            }
            "full_attention" => {
                let mixer = scope.enter("self_attn");
                let norm = |name: &str| RmsNorm::load_from_one(&mixer.enter(name), config.head_dim, eps);
                let attention = Attention::load_gated(&mixer, layer, attention_shape, Some(rope.clone()))?;
                Block::new(before, attention.with_head_norms(norm("q_norm")?, norm("k_norm")?))
            }
            other => {
                let (found, known) = (other.to_owned(), "linear_attention and full_attention");
                return Err(ConfigError::Unsupported { key: "layer_types", found, known }.into());
            }
        });
        let (before, mlp) = (norm("post_attention_layernorm")?, scope.enter("mlp"));
        blocks.push(if config.experts.are_in(layer) {
            Block::new(before, config.moe(&mlp)?)
        } else {
            let size = config.intermediate_size.ok_or(ConfigError::Missing { key: "intermediate_size" })?;
            Block::new(before, Mlp::load_gated(&mlp, config.mlp(size))?)
        });
    }
    let embedding = model.enter("embed_tokens").get("weight", (config.vocab_size, hidden))?;
    let norm = RmsNorm::load_from_one(&model.enter("norm"), hidden, eps)?;
    Decoder::new(embedding, blocks, norm, weights, config.tie_word_embeddings)
}

/// One matrix for queries, keys, values and gate, and one for strength and decay, each ordered by key head.
fn interleaved_projections(weights: &Scope<'_>, shape: GatedDeltaShape) -> Result<GatedDeltaProjections, RuntimeError> {
    let GatedDeltaShape { hidden, key_heads, value_heads, key_dim, value_dim, .. } = shape;
    let per_key = value_heads / key_heads.max(1);
    let (values, width) = (per_key * value_dim, 2 * (key_dim + per_key * value_dim));
    let qkvz = Linear::load(&weights.enter("in_proj_qkvz"), hidden, key_heads * width, false)?;
    let ba = Linear::load(&weights.enter("in_proj_ba"), hidden, key_heads * 2 * per_key, false)?;
    // The outputs `start..start + size` of every key head.
    let part = move |width: usize, start: usize, size: usize| {
        (0..key_heads).flat_map(move |head| (0..size).map(move |i| head * width + start + i))
    };
    let keys = part(width, 0, key_dim).chain(part(width, key_dim, key_dim));
    Ok(GatedDeltaProjections {
        qkv: qkvz.select(keys.chain(part(width, 2 * key_dim, values)))?,
        z: qkvz.select(part(width, 2 * key_dim + values, values))?,
        b: ba.select(part(2 * per_key, 0, per_key))?,
        a: ba.select(part(2 * per_key, per_key, per_key))?,
    })
}

fn plain_projections(weights: &Scope<'_>, shape: GatedDeltaShape) -> Result<GatedDeltaProjections, RuntimeError> {
    let linear = |name: &str, outputs: usize| Linear::load(&weights.enter(name), shape.hidden, outputs, false);
    Ok(GatedDeltaProjections {
        qkv: linear("in_proj_qkv", 2 * shape.keys() + shape.values())?,
        z: linear("in_proj_z", shape.values())?,
        b: linear("in_proj_b", shape.value_heads)?,
        a: linear("in_proj_a", shape.value_heads)?,
    })
}

impl Config {
    fn layer_types(&self) -> Result<Vec<String>, ConfigError> {
        if let Some(types) = &self.layer_types {
            return Ok(types.clone());
        }
        let interval = self.full_attention_interval.ok_or(ConfigError::Missing { key: "layer_types" })?;
        let is_full = |layer: u32| (layer + 1).checked_rem(interval) == Some(0);
        let name = |layer| if is_full(layer) { "full_attention" } else { "linear_attention" };
        Ok((0..self.num_hidden_layers).map(|layer| name(layer).to_owned()).collect())
    }

    fn mlp(&self, intermediate: usize) -> MlpShape {
        MlpShape { hidden: self.hidden_size, intermediate, bias: false, activation: self.hidden_act }
    }

    fn moe(&self, weights: &Scope<'_>) -> Result<Moe, RuntimeError> {
        let size = self.shared_expert_intermediate_size;
        let shared = self.mlp(size.ok_or(ConfigError::Missing { key: "shared_expert_intermediate_size" })?);
        Ok(Moe {
            shared: Some(SharedExpert {
                mlp: Mlp::load_gated(&weights.enter("shared_expert"), shared)?,
                gate: Some(Linear::load(&weights.enter("shared_expert_gate"), self.hidden_size, 1, false)?),
            }),
            ..self.experts.load(weights, self.hidden_size, self.hidden_act)?
        })
    }
}
