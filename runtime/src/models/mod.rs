//! One file per architecture: from its config and the names of its weights to a [`Decoder`].

mod bamba;
mod deepseek_v3;
mod experts;
mod falcon_h1;
mod gemma3;
mod gpt_oss;
mod granitemoehybrid;
mod jamba;
mod kimi_linear;
mod lfm2;
mod llama;
mod mamba;
mod mamba2;
mod minimax;
mod nemotron_h;
mod qwen3_next;
mod zamba2;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::decoder::Decoder;
use crate::error::{ConfigError, RuntimeError};
use crate::layers::Activation;
use crate::weights::Weights;

/// The `model_type`s that there is a decoder for.
const KNOWN: &str = "bamba, deepseek_v3, falcon_h1, gemma3_text, gpt_oss, granitemoehybrid, jamba, kimi_linear, lfm2, \
                     llama, mamba, mamba2, minimax, mistral, mixtral, nemotron_h, qwen2, qwen3, qwen3_5_text, \
                     qwen3_moe, qwen3_next and zamba2";

/// Builds the decoder that `config` (the contents of a `config.json`) describes.
///
/// # Errors
/// A model type without a decoder, a missing or unusable key, a missing or mis-shaped tensor.
pub fn load(config: &Value, weights: &Weights) -> Result<Decoder, RuntimeError> {
    match config.get("model_type").and_then(Value::as_str).ok_or(ConfigError::Missing { key: "model_type" })? {
        "bamba" => bamba::load(&parse(config)?, weights),
        "deepseek_v3" => deepseek_v3::load(&parse(config)?, weights),
        "falcon_h1" => falcon_h1::load(&parse(config)?, weights),
        "gemma3_text" => gemma3::load(&parse(config)?, weights),
        "gpt_oss" => gpt_oss::load(&parse(config)?, weights),
        "granitemoehybrid" => granitemoehybrid::load(&parse(config)?, weights),
        "jamba" => jamba::load(&parse(config)?, weights),
        "kimi_linear" => kimi_linear::load(&parse(config)?, weights),
        "lfm2" => lfm2::load(&parse(config)?, weights),
        "llama" => llama::load(&llama::LLAMA, &parse(config)?, weights),
        "mamba" => mamba::load(&parse(config)?, weights),
        "mamba2" => mamba2::load(&parse(config)?, weights),
        "minimax" => minimax::load(&parse(config)?, weights),
        "mistral" => llama::load(&llama::MISTRAL, &parse(config)?, weights),
        "mixtral" => llama::load(&llama::MIXTRAL, &parse(config)?, weights),
        "nemotron_h" => nemotron_h::load(&parse(config)?, weights),
        "qwen2" => llama::load(&llama::QWEN2, &parse(config)?, weights),
        "qwen3" => llama::load(&llama::QWEN3, &parse(config)?, weights),
        "qwen3_5_text" => qwen3_next::load_qwen3_5(&parse(config)?, weights),
        "qwen3_moe" => llama::load(&llama::QWEN3_MOE, &parse(config)?, weights),
        "qwen3_next" => qwen3_next::load(&parse(config)?, weights),
        "zamba2" => zamba2::load(&parse(config)?, weights),
        other => Err(ConfigError::Unsupported { key: "model_type", found: other.to_owned(), known: KNOWN }.into()),
    }
}

fn parse<T: DeserializeOwned>(config: &Value) -> Result<T, ConfigError> {
    serde_path_to_error::deserialize(config).map_err(|error| {
        let path = error.path().to_string();
        ConfigError::Json { key: (path != ".").then_some(path), source: error.into_inner() }
    })
}

/// What is true where a config does not say.
fn yes() -> bool {
    true
}

/// The least time step where a config does not say.
fn time_step_min() -> f32 {
    0.001
}

/// The non-linearity where a config does not say.
fn silu() -> Activation {
    Activation::Silu
}
