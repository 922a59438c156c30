//! Llama and its relatives: attention with rope, then a gated MLP or experts, in every layer.

use cacheplan_kernels::Window;
use serde::{Deserialize, Deserializer};

use super::experts::Experts;
use crate::decoder::{Block, Decoder};
use crate::error::{ConfigError, RuntimeError};
use crate::layers::{Activation, Attention, AttentionShape, Mixer, Mlp, MlpShape, Moe, RmsNorm, RopeConfig};
use crate::weights::{Scope, Weights};

/// What sets one of the family apart.
pub(super) struct Relative {
    /// Whether there are biases on the way to queries, keys and values, and on the way back.
    biases: fn(&Config) -> [bool; 2],
    /// Whether each head of queries and keys is normalised.
    head_norms: bool,
    /// The base of the rotation where the config does not say.
    rope_theta: f32,
    /// What a layer sees.
    window: fn(&Config, u32) -> Result<Window, ConfigError>,
    /// What follows the attention of a layer.
    feed_forward: FeedForward,
}

type FeedForward = fn(&Config, u32, &Scope<'_>) -> Result<Box<dyn Mixer>, RuntimeError>;

pub(super) const LLAMA: Relative = Relative {
    biases: |config| [config.attention_bias; 2],
    head_norms: false,
    rope_theta: 10_000.0,
    window: Config::window_if_used,
    feed_forward: |config, _, layer| config.mlp(layer),
};
pub(super) const MISTRAL: Relative = Relative { biases: |_| [false; 2], window: Config::window_if_stated, ..LLAMA };
pub(super) const MIXTRAL: Relative = Relative {
    rope_theta: 1_000_000.0,
    window: Config::one_window_if_stated,
    feed_forward: Config::mixtral_experts,
    ..MISTRAL
};
pub(super) const QWEN2: Relative = Relative { biases: |_| [true, false], ..LLAMA };
pub(super) const QWEN3: Relative = Relative { head_norms: true, ..LLAMA };
pub(super) const QWEN3_MOE: Relative =
    Relative { window: Config::one_window_if_used, feed_forward: Config::mlp_or_experts, ..QWEN3 };

/// The keys of a `config.json` of this family that its decoder reads.
#[derive(Debug, Deserialize)]
pub(super) struct Config {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: u32,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    hidden_act: Activation,
    rms_norm_eps: f64,
    layer_types: Option<Vec<String>>,
    /// Whether the layers from `max_window_layers` on see `sliding_window` tokens.
    #[serde(default)]
    use_sliding_window: bool,
    /// `null` says something else than nothing.
    #[serde(default, deserialize_with = "stated")]
    sliding_window: Option<Option<usize>>,
    max_window_layers: Option<u32>,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    #[serde(default)]
    tie_word_embeddings: bool,
    #[serde(flatten)]
    experts: Experts,
    #[serde(flatten)]
    rope: RopeConfig,
}

/// A key that is there, `null` or not.
fn stated<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Option<usize>>, D::Error> {
    Option::deserialize(value).map(Some)
}

/// Builds a decoder of this family.
pub(super) fn load(relative: &Relative, config: &Config, weights: &Weights) -> Result<Decoder, RuntimeError> {
    let (hidden, eps) = (config.hidden_size, config.rms_norm_eps);
    let [bias, output_bias] = (relative.biases)(config);
    let attention_shape = AttentionShape {
        hidden,
        heads: config.num_attention_heads,
        kv_heads: config.num_key_value_heads.unwrap_or(config.num_attention_heads),
        head_dim: config.head_dim.unwrap_or(hidden / config.num_attention_heads.max(1)),
        bias,
    };
    let rope = config.rope.with_default_theta(relative.rope_theta).rope(attention_shape.head_dim)?;
    let model = weights.scope("model");
    let mut blocks = Vec::new();
    for layer in 0..config.num_hidden_layers {
        let scope = model.enter("layers").enter(layer);
        let norm = |name: &str| RmsNorm::load(&scope.enter(name), hidden, eps);
        let self_attn = scope.enter("self_attn");
        let output = ("o_proj", output_bias);
        let mut attention =
            Attention::load_with_output(&self_attn, output, layer, attention_shape, Some(rope.clone()))?
                .with_window((relative.window)(config, layer)?);
        if relative.head_norms {
            let norm = |name: &str| RmsNorm::load(&self_attn.enter(name), attention_shape.head_dim, eps);
            attention = attention.with_head_norms(norm("q_norm")?, norm("k_norm")?);
        }
        blocks.push(Block::new(norm("input_layernorm")?, attention));
        let feed_forward = (relative.feed_forward)(config, layer, &scope)?;
        blocks.push(Block::boxed(norm("post_attention_layernorm")?, feed_forward));
    }
    let embedding = model.enter("embed_tokens").get("weight", (config.vocab_size, hidden))?;
    let norm = RmsNorm::load(&model.enter("norm"), hidden, eps)?;
    Decoder::new(embedding, blocks, norm, weights, config.tie_word_embeddings)
}

impl Config {
    /// As listed, or else a window from a certain layer on, where windows are used.
    fn window_if_used(&self, layer: u32) -> Result<Window, ConfigError> {
        let sliding = match self.listed(layer)? {
            Some(sliding) => sliding,
            None if self.use_sliding_window => {
                layer >= self.max_window_layers.ok_or(ConfigError::Missing { key: "max_window_layers" })?
            }
            None => false,
        };
        Self::window(sliding, self.sliding_window.flatten().filter(|_| self.use_sliding_window))
    }

    /// As listed, or else a window in every layer unless its size is `null`; 4096 where nothing is said.
    fn window_if_stated(&self, layer: u32) -> Result<Window, ConfigError> {
        let size = self.sliding_window.unwrap_or(Some(4096));
        Self::window(self.listed(layer)?.unwrap_or(size.is_some()), size)
    }

    /// The same window in every layer, where windows are used.
    fn one_window_if_used(&self, layer: u32) -> Result<Window, ConfigError> {
        self.same_in_all(layer, self.use_sliding_window, self.sliding_window.flatten())
    }

    /// The same window in every layer, if it has a size.
    fn one_window_if_stated(&self, layer: u32) -> Result<Window, ConfigError> {
        let size = self.sliding_window.flatten();
        self.same_in_all(layer, size.is_some(), size)
    }

    fn same_in_all(&self, layer: u32, sliding: bool, size: Option<usize>) -> Result<Window, ConfigError> {
        if self.listed(layer)?.is_some_and(|listed| listed != sliding) {
            let found = if sliding { "full_attention" } else { "sliding_attention" }.to_owned();
            let known = "one window for all layers of this architecture, as `sliding_window` says";
            return Err(ConfigError::Unsupported { key: "layer_types", found, known });
        }
        Self::window(sliding, size)
    }

    fn window(sliding: bool, size: Option<usize>) -> Result<Window, ConfigError> {
        match size {
            _ if !sliding => Ok(Window::Full),
            Some(0) => {
                let (found, known) = ("0".to_owned(), "windows of at least one token, and null for none");
                Err(ConfigError::Unsupported { key: "sliding_window", found, known })
            }
            Some(size) => Ok(Window::Sliding(size)),
            None => Err(ConfigError::Missing { key: "sliding_window" }),
        }
    }

    /// Whether a layer is listed as one with a window, if layers are listed.
    fn listed(&self, layer: u32) -> Result<Option<bool>, ConfigError> {
        match self.layer_types.as_ref().map(|types| types.get(layer as usize).map(String::as_str)) {
            None => Ok(None),
            Some(Some("full_attention")) => Ok(Some(false)),
            Some(Some("sliding_attention")) => Ok(Some(true)),
            Some(other) => {
                let found = other.unwrap_or("too short").to_owned();
                let known = "full_attention and sliding_attention for each layer";
                Err(ConfigError::Unsupported { key: "layer_types", found, known })
            }
        }
    }

    fn mlp(&self, layer: &Scope<'_>) -> Result<Box<dyn Mixer>, RuntimeError> {
        let (hidden, intermediate) = (self.hidden_size, self.intermediate_size);
        let shape = MlpShape { hidden, intermediate, bias: self.mlp_bias, activation: self.hidden_act };
        Ok(Box::new(Mlp::load_gated(&layer.enter("mlp"), shape)?))
    }

    fn mlp_or_experts(&self, index: u32, layer: &Scope<'_>) -> Result<Box<dyn Mixer>, RuntimeError> {
        if !self.experts.are_in(index) {
            return self.mlp(layer);
        }
        Ok(Box::new(self.experts.load(&layer.enter("mlp"), self.hidden_size, self.hidden_act)?))
    }

    /// Published checkpoints have the experts under a name that later ones gave up.
    fn mixtral_experts(&self, _: u32, layer: &Scope<'_>) -> Result<Box<dyn Mixer>, RuntimeError> {
        let published = layer.enter("block_sparse_moe");
        let weights = if published.enter("gate").stores("weight") { published } else { layer.enter("mlp") };
        let (hidden, intermediate) = (self.hidden_size, self.intermediate_size);
        let expert = MlpShape { hidden, intermediate, bias: false, activation: self.hidden_act };
        let routing = self.experts.routing(true)?;
        Ok(Box::new(Moe::load(&weights, routing, ["w1", "w3", "w2"], expert)?))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn config(key: &str, value: Value) -> Config {
        let mut config = json!({
            "vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
            "num_attention_heads": 1, "hidden_act": "silu", "rms_norm_eps": 1e-6,
        });
        config[key] = value;
        Config::deserialize(config).unwrap()
    }

    #[rstest]
    #[case::not_said("head_dim", json!(8), Window::Sliding(4096))]
    #[case::none("sliding_window", json!(null), Window::Full)]
    #[case::stated("sliding_window", json!(7), Window::Sliding(7))]
    fn mistral_has_a_window_unless_it_is_null(#[case] key: &str, #[case] value: Value, #[case] expected: Window) {
        assert_eq!((MISTRAL.window)(&config(key, value), 0).unwrap(), expected);
    }
}
