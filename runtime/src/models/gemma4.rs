//! Gemma 4 (text): sliding and full attention with heads of their own sizes, layers that read the keys of earlier ones,
//! experts beside an MLP, and inputs of each layer beside the stream.

use std::collections::HashMap;

use cacheplan_kernels::{Rope, Routing};
use cacheplan_transforms::Model;
use cacheplan_transforms::layers::{Attention as AttentionSpec, BlockSpec, FeedForward};
use serde::Deserialize;

use super::layer::{Layer, TensorNames, decoder};
use crate::block::Block;
use crate::decoder::Decoder;
use crate::error::{ConfigError, Result};
use crate::layers::{
    Activation, Attention, Branch, ExpertMlps, Keys, LayerInput, LayerInputsShape, Linear, Mlp, Moe, Parallel, RmsNorm,
    RopeParameters, checked_routing, size,
};
use crate::weights::Weights;

/// The keys of a Gemma 4 `config.json` that its decoder reads.
#[derive(Debug, Deserialize)]
pub(super) struct Config {
    #[serde(default = "gelu")]
    hidden_activation: Activation,
    #[serde(default = "rms_norm_eps")]
    rms_norm_eps: f64,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    attention_k_eq_v: bool,
    final_logit_softcapping: Option<f64>,
    /// By the kind of a layer.
    rope_parameters: Option<HashMap<String, RopeParameters>>,
    hidden_size_per_layer_input: Option<usize>,
    vocab_size_per_layer_input: Option<usize>,
    top_k_experts: Option<usize>,
    #[serde(default = "super::default_true")]
    tie_word_embeddings: bool,
}

fn gelu() -> Activation {
    Activation::GeluPytorchTanh
}

fn rms_norm_eps() -> f64 {
    1e-6
}

/// Builds a Gemma 4 decoder.
pub(super) fn load(config: &Config, model: &Model, weights: &Weights) -> Result<Decoder> {
    build(config, config.hidden_size_per_layer_input.unwrap_or(256), model, weights)
}

/// Builds that of the types that see without a tower, whose layers have no inputs beside the stream.
pub(super) fn load_unified(config: &Config, model: &Model, weights: &Weights) -> Result<Decoder> {
    build(config, 0, model, weights)
}

/// `channels` of each layer's input; 0 where there is none.
fn build(config: &Config, channels: usize, model: &Model, weights: &Weights) -> Result<Decoder> {
    // Files of models that see and hear have the text model as a part.
    let part = "model.language_model";
    let root = if weights.scope(part).enter("embed_tokens").stores("weight") { part } else { "model" };
    let frame = TensorNames {
        root,
        embedding_scale: model.hidden_size.map_or(1.0, |hidden| (size(hidden) as f64).sqrt()),
        layer_inputs: (channels > 0).then(|| LayerInputsShape {
            vocab_size: config.vocab_size_per_layer_input.unwrap_or(262_144),
            channels,
            eps: config.rms_norm_eps,
        }),
        logit_softcap: config.final_logit_softcapping,
        ..TensorNames::new(config.rms_norm_eps, config.tie_word_embeddings)
    };
    if let Some(LayerInputsShape { vocab_size, .. }) = frame.layer_inputs
        && model.vocab_size.is_some_and(|all| size(all) > vocab_size)
    {
        let key = "vocab_size_per_layer_input";
        return Err(ConfigError::unsupported(key, vocab_size, "at least `vocab_size`").into());
    }
    decoder(model, weights, frame, |layer| {
        let [BlockSpec::Attention(attention), BlockSpec::FeedForward(sizes @ FeedForward { matrices: 3, .. })] =
            layer.blocks
        else {
            return Err(layer.refuse("attention and a gated feed-forward block"));
        };
        if attention.window.is_some() && layer.index as usize + 1 == model.layers.len() {
            return Err(layer.refuse("full attention in the last layer, whatever `layer_types` says"));
        }
        let mut blocks = vec![config.attention(layer, attention)?, config.feed_forward(layer, sizes)?];
        if channels > 0 {
            let shape = [layer.hidden, channels];
            let input = LayerInput::load(&layer.weights, layer.index, shape, config.hidden_activation)?;
            let post_norm = Some(layer.norm("post_per_layer_input_norm")?);
            blocks.push(Block { post_norm, ..Block::without_norm(input) });
        }
        // What the layer makes is multiplied as a whole: the stream and what the last block adds to it.
        let scale = f64::from(layer.weights.float("layer_scalar", 1)?.squeeze(0)?.to_scalar::<f32>()?);
        if let Some(last) = blocks.last_mut() {
            (last.residual_scale, last.output_scale) = (scale, scale);
        }
        Ok(blocks)
    })
}

impl Config {
    fn attention(&self, layer: &Layer<'_>, dims: &AttentionSpec) -> Result<Block> {
        let (mut shape, weights) = (layer.sharing_attention(dims, self.attention_bias)?, layer.enter("self_attn"));
        if self.attention_k_eq_v && dims.window.is_none() && shape.keys == Keys::Own {
            shape.keys = Keys::AndValues;
        }
        let norm = |name: &str| layer.norm_of(&weights.enter(name), shape.head_dim);
        let key_norms = match shape.keys {
            Keys::OfLayer(_) => None,
            Keys::Own | Keys::AndValues => {
                Some([norm("k_norm")?, RmsNorm::unweighted(&weights, shape.head_dim, self.rms_norm_eps)?])
            }
        };
        let rope = self.rope(dims.window.is_some(), shape.head_dim)?;
        let attention = Attention::load(&weights, layer.index, shape, Some(rope))?
            .with_value_norms(norm("q_norm")?, key_norms)
            .with_scale(1.0);
        Ok(Block {
            post_norm: Some(layer.norm("post_attention_layernorm")?),
            ..Block::new(layer.norm("input_layernorm")?, attention)
        })
    }

    /// An MLP, beside experts where there are any.
    fn feed_forward(&self, layer: &Layer<'_>, sizes: &FeedForward) -> Result<Block> {
        let (before, after) = (layer.norm("pre_feedforward_layernorm")?, layer.norm("post_feedforward_layernorm")?);
        let width = if sizes.experts == 0 { sizes.intermediate_size } else { sizes.shared_size };
        let mlp = Mlp::load_gated(&layer.enter("mlp"), layer.mlp(width, self.hidden_activation))?;
        let block = if sizes.experts == 0 {
            Block::new(before, mlp)
        } else {
            Block::without_norm(Parallel(vec![
                Branch {
                    norm: Some(before),
                    post_norm: Some(layer.norm("post_feedforward_layernorm_1")?),
                    ..Branch::new(mlp)
                },
                Branch {
                    post_norm: Some(layer.norm("post_feedforward_layernorm_2")?),
                    ..Branch::new(self.experts(layer, sizes)?)
                },
            ]))
        };
        Ok(Block { post_norm: Some(after), ..block })
    }

    fn experts(&self, layer: &Layer<'_>, sizes: &FeedForward) -> Result<Moe> {
        let per_token = self.top_k_experts.ok_or(ConfigError::Missing { key: "top_k_experts" })?;
        let (weights, hidden, count) = (layer.enter("router"), layer.hidden, size(sizes.experts));
        let scale = (weights.get("scale", hidden)? * (hidden as f64).sqrt().recip())?;
        let expert = layer.mlp(sizes.intermediate_size, self.hidden_activation);
        let experts = ExpertMlps::read(&layer.enter("experts"), count, Mlp::NAMES, expert)?;
        let router = Linear::load(&weights.enter("proj"), hidden, count, false)?;
        Ok(Moe {
            norms: Some([RmsNorm::of(scale, self.rms_norm_eps), layer.norm("pre_feedforward_layernorm_2")?]),
            share_scales: Some(weights.float("per_expert_scale", count)?),
            ..Moe::new(checked_routing(Routing::softmax(count, per_token, true))?, router, experts)
        })
    }

    /// The rotation of layers with a window, or of those without.
    fn rope(&self, windowed: bool, head_dim: usize) -> Result<Rope> {
        let Some(by_kind) = &self.rope_parameters else {
            let default = RopeParameters::default();
            let default = if windowed { default } else { default.proportional(0.25).with_default_theta(1e6) };
            return default.rope(head_dim, None);
        };
        let (kind, key) = if windowed {
            ("sliding_attention", "rope_parameters.sliding_attention")
        } else {
            ("full_attention", "rope_parameters.full_attention")
        };
        by_kind.get(kind).ok_or(ConfigError::Missing { key })?.rope(head_dim, None)
    }
}
