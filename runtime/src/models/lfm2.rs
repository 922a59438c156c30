//! LFM2: a gated short convolution or attention, then a gated MLP, in every layer.

use serde::Deserialize;

use crate::decoder::{Block, Decoder};
use crate::error::{ConfigError, RuntimeError};
use crate::layers::{Activation, Attention, AttentionShape, Mlp, MlpShape, RmsNorm, RopeConfig, ShortConv};
use crate::weights::Weights;

/// The keys of an LFM2 `config.json` that its decoder reads.
#[derive(Debug, Deserialize)]
pub(super) struct Config {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: Option<usize>,
    /// The same by an older name, which wins where a config states both.
    block_ff_dim: Option<usize>,
    block_auto_adjust_ff_dim: bool,
    block_ffn_dim_multiplier: Option<f64>,
    block_multiple_of: usize,
    norm_eps: f64,
    num_hidden_layers: usize,
    layer_types: Option<Vec<String>>,
    /// The layers with attention, in configs that do not list the kinds; all of them if there is no such list either.
    full_attn_idxs: Option<Vec<usize>>,
    num_attention_heads: usize,
    num_key_value_heads: usize,
    #[serde(rename = "conv_L_cache")]
    conv_l_cache: usize,
    #[serde(default)]
    conv_bias: bool,
    #[serde(default = "super::yes")]
    tie_word_embeddings: bool,
    /// The same by an older name, which wins where a config states both.
    tie_embedding: Option<bool>,
    #[serde(flatten)]
    rope: RopeConfig,
}

/// Builds an LFM2 decoder.
pub(super) fn load(config: &Config, weights: &Weights) -> Result<Decoder, RuntimeError> {
    let (hidden, eps) = (config.hidden_size, config.norm_eps);
    let shape = AttentionShape {
        hidden,
        heads: config.num_attention_heads,
        kv_heads: config.num_key_value_heads,
        head_dim: hidden / config.num_attention_heads.max(1),
        bias: false,
    };
    let rope = config.rope.with_default_theta(1_000_000.0).rope(shape.head_dim)?;
    let model = weights.scope("model");
    let mut blocks = Vec::new();
    for (layer, kind) in (0..).zip(config.layer_types()) {
        let scope = model.enter("layers").enter(layer);
        let norm = |name: &str| RmsNorm::load(&scope.enter(name), hidden, eps);
        let before = norm("operator_norm")?;
        blocks.push(match kind.as_str() {
            "conv" => {
                let conv = scope.enter("conv");
                Block::new(before, ShortConv::load(&conv, layer, hidden, config.conv_l_cache, config.conv_bias)?)
            }
            "full_attention" => {
                let self_attn = scope.enter("self_attn");
                let head_norm = |name: &str| RmsNorm::load(&self_attn.enter(name), shape.head_dim, eps);
                let output = ("out_proj", shape.bias);
                let attention = Attention::load_with_output(&self_attn, output, layer, shape, Some(rope.clone()))?;
                Block::new(before, attention.with_head_norms(head_norm("q_layernorm")?, head_norm("k_layernorm")?))
            }
            other => {
                let (found, known) = (other.to_owned(), "conv and full_attention");
                return Err(ConfigError::Unsupported { key: "layer_types", found, known }.into());
            }
        });
        blocks.push(Block::new(
            norm("ffn_norm")?,
            Mlp::load_named(&scope.enter("feed_forward"), ["w1", "w3", "w2"], config.mlp()?)?,
        ));
    }
    let embedding = model.enter("embed_tokens").get("weight", (config.vocab_size, hidden))?;
    let norm = RmsNorm::load(&model.enter("embedding_norm"), hidden, eps)?;
    Decoder::new(embedding, blocks, norm, weights, config.tie_embedding.unwrap_or(config.tie_word_embeddings))
}

impl Config {
    fn layer_types(&self) -> Vec<String> {
        let is_full = |layer| self.full_attn_idxs.as_ref().is_none_or(|layers| layers.contains(&layer));
        let name = |layer| if is_full(layer) { "full_attention" } else { "conv" };
        let derived = || (0..self.num_hidden_layers).map(|layer| name(layer).to_owned()).collect();
        self.layer_types.clone().unwrap_or_else(derived)
    }

    fn mlp(&self) -> Result<MlpShape, ConfigError> {
        Ok(MlpShape {
            hidden: self.hidden_size,
            intermediate: self.intermediate()?,
            bias: false,
            activation: Activation::Silu,
        })
    }

    /// Two thirds of the stated size, times a factor, rounded up to a multiple.
    fn intermediate(&self) -> Result<usize, ConfigError> {
        let stored = self.block_ff_dim.or(self.intermediate_size);
        let stored = stored.ok_or(ConfigError::Missing { key: "intermediate_size" })?;
        if !self.block_auto_adjust_ff_dim {
            return Ok(stored);
        }
        let size = (self.block_ffn_dim_multiplier.unwrap_or(1.0) * (2 * stored / 3) as f64) as usize;
        Ok(size.next_multiple_of(self.block_multiple_of.max(1)))
    }
}
