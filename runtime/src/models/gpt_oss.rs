//! gpt-oss: attention with sinks, every other layer with a sliding window, then biased experts.

use cacheplan_kernels::Window;
use candle_core::{DType, Tensor};
use serde::Deserialize;

use crate::decoder::{Block, Decoder};
use crate::error::{ConfigError, RuntimeError};
use crate::layers::{Attention, AttentionShape, Linear, Mlp, Moe, RmsNorm, RopeConfig, Routing};
use crate::weights::{Scope, Weights};

/// The keys of a gpt-oss `config.json` that its decoder reads.
#[derive(Debug, Deserialize)]
pub(super) struct Config {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    rms_norm_eps: f64,
    layer_types: Vec<String>,
    sliding_window: usize,
    num_attention_heads: usize,
    num_key_value_heads: usize,
    head_dim: usize,
    #[serde(default = "super::yes")]
    attention_bias: bool,
    num_local_experts: usize,
    num_experts_per_tok: usize,
    #[serde(default = "swiglu_alpha")]
    swiglu_alpha: f64,
    #[serde(default = "swiglu_limit")]
    swiglu_limit: f64,
    #[serde(default)]
    tie_word_embeddings: bool,
    #[serde(flatten)]
    rope: RopeConfig,
}

fn swiglu_alpha() -> f64 {
    1.702
}

fn swiglu_limit() -> f64 {
    7.0
}

/// Builds a gpt-oss decoder.
pub(super) fn load(config: &Config, weights: &Weights) -> Result<Decoder, RuntimeError> {
    let (hidden, eps) = (config.hidden_size, config.rms_norm_eps);
    let attention_shape = AttentionShape {
        hidden,
        heads: config.num_attention_heads,
        kv_heads: config.num_key_value_heads,
        head_dim: config.head_dim,
        bias: config.attention_bias,
    };
    if !config.rope.has_parameters() {
        // Hugging Face would take yarn, as the published models have it.
        return Err(ConfigError::Missing { key: "rope_parameters" }.into());
    }
    let rope = config.rope.with_default_theta(150_000.0).rope(config.head_dim)?;
    let model = weights.scope("model");
    let mut blocks = Vec::new();
    for (layer, kind) in (0..).zip(&config.layer_types) {
        let scope = model.enter("layers").enter(layer);
        let norm = |name: &str| RmsNorm::load(&scope.enter(name), hidden, eps);
        let window = match kind.as_str() {
            "full_attention" => Window::Full,
            "sliding_attention" => Window::Sliding(config.sliding_window),
            other => {
                let (found, known) = (other.to_owned(), "full_attention and sliding_attention");
                return Err(ConfigError::Unsupported { key: "layer_types", found, known }.into());
            }
        };
        let self_attn = scope.enter("self_attn");
        let sinks = self_attn.get("sinks", config.num_attention_heads)?.to_dtype(DType::F32)?.to_vec1()?;
        let attention = Attention::load(&self_attn, layer, attention_shape, Some(rope.clone()))?
            .with_window(window)
            .with_sinks(sinks);
        blocks.push(Block::new(norm("input_layernorm")?, attention));
        blocks.push(Block::new(norm("post_attention_layernorm")?, config.moe(&scope.enter("mlp"))?));
    }
    let embedding = model.enter("embed_tokens").get("weight", (config.vocab_size, hidden))?;
    let norm = RmsNorm::load(&model.enter("norm"), hidden, eps)?;
    Decoder::new(embedding, blocks, norm, weights, config.tie_word_embeddings)
}

impl Config {
    fn moe(&self, weights: &Scope<'_>) -> Result<Moe, RuntimeError> {
        let (hidden, size, count) = (self.hidden_size, self.intermediate_size, self.num_local_experts);
        let experts = weights.enter("experts");
        let gate_up = experts.get("gate_up_proj", (count, hidden, 2 * size))?;
        let gate_up_bias = experts.get("gate_up_proj_bias", (count, 2 * size))?;
        let down = experts.get("down_proj", (count, size, hidden))?;
        let down_bias = experts.get("down_proj_bias", (count, hidden))?;
        let expert = |i: usize| -> candle_core::Result<Mlp> {
            let gate_up = taken_apart(&gate_up.get(i)?, &gate_up_bias.get(i)?)?;
            let down = Linear::new(down.get(i)?.t()?.contiguous()?, Some(down_bias.get(i)?));
            Ok(Mlp::clamped_swiglu(gate_up, down, self.swiglu_alpha, self.swiglu_limit))
        };
        Ok(Moe {
            routing: Routing::softmax(count, self.num_experts_per_tok, true).checked()?,
            router: Linear::load(&weights.enter("router"), hidden, count, true)?,
            correction: None,
            experts: (0..count).map(expert).collect::<Result<_, _>>()?,
            latent: None,
            shared: None,
        })
    }
}

/// The projection to gate and then up whose columns take turns in `weight` `[hidden, 2 · size]`.
fn taken_apart(weight: &Tensor, bias: &Tensor) -> candle_core::Result<Linear> {
    let (hidden, columns) = weight.dims2()?;
    let weight = weight.t()?.reshape((columns / 2, 2, hidden))?.transpose(0, 1)?.reshape((columns, hidden))?;
    let bias = bias.reshape((columns / 2, 2))?.t()?.flatten_all()?;
    Ok(Linear::new(weight, Some(bias)))
}
