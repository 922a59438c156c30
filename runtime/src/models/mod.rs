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
mod layer;
mod lfm2;
mod llama;
mod mamba;
mod mamba2;
mod minimax;
mod nemotron_h;
mod qwen3_next;
mod zamba2;

use cacheplan_transforms::Model;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

pub(crate) use self::layer::{Frame, Layer, decoder};

use crate::decoder::Decoder;
use crate::error::{ConfigError, RuntimeError};
use crate::layers::Activation;
use crate::weights::Weights;

/// The `model_type`s that there is a decoder for.
const KNOWN: &str = "bamba, deepseek_v3, falcon_h1, gemma3_text, gpt_oss, granitemoehybrid, jamba, kimi_linear, lfm2, \
                     llama, mamba, mamba2, minimax, mistral, mixtral, nemotron_h, qwen2, qwen3, qwen3_5_text, \
                     qwen3_moe, qwen3_next and zamba2";

impl Decoder {
    /// Builds the decoder of a model: its layers are those of the model, the rest is in its config.
    ///
    /// # Errors
    /// A model type without a decoder, a layer that its decoder cannot run, a missing or unusable key, a missing or
    /// mis-shaped tensor.
    pub fn load(model: &Model, weights: &Weights) -> Result<Self, RuntimeError> {
        macro_rules! by {
            ($load:path) => {
                $load(&parse(&model.config)?, model, weights)
            };
        }
        let relative = |relative| llama::load(relative, &parse(&model.config)?, model, weights);
        match model.decoder.as_str() {
            "bamba" => by!(bamba::load),
            "deepseek_v3" => by!(deepseek_v3::load),
            "falcon_h1" => by!(falcon_h1::load),
            "gemma3_text" => by!(gemma3::load),
            "gpt_oss" => by!(gpt_oss::load),
            "granitemoehybrid" => by!(granitemoehybrid::load),
            "jamba" => by!(jamba::load),
            "kimi_linear" => by!(kimi_linear::load),
            "lfm2" => by!(lfm2::load),
            "llama" => relative(&llama::LLAMA),
            "mamba" => by!(mamba::load),
            "mamba2" => by!(mamba2::load),
            "minimax" => by!(minimax::load),
            "mistral" => relative(&llama::MISTRAL),
            "mixtral" => relative(&llama::MIXTRAL),
            "nemotron_h" => by!(nemotron_h::load),
            "qwen2" => relative(&llama::QWEN2),
            "qwen3" => relative(&llama::QWEN3),
            "qwen3_5_text" => by!(qwen3_next::load_qwen3_5),
            "qwen3_moe" => relative(&llama::QWEN3_MOE),
            "qwen3_next" => by!(qwen3_next::load),
            "zamba2" => by!(zamba2::load),
            _ => Err(unknown(model).into()),
        }
    }
}

/// Refuses a model type without a decoder before its weights are opened.
pub(crate) fn refuse_unknown(model: &Model) -> Result<(), ConfigError> {
    let known = KNOWN.split([',', ' ']).any(|known| known == model.decoder);
    if known { Ok(()) } else { Err(unknown(model)) }
}

/// Whether a decoder has the prediction layer of its checkpoints.
pub(crate) fn predicts(decoder: &str) -> bool {
    matches!(decoder, "deepseek_v3" | "qwen3_next" | "qwen3_5_text")
}

/// Whether a decoder has latent attention behind Ascend's operator.
pub(crate) fn preprocesses(decoder: &str) -> bool {
    decoder == "deepseek_v3"
}

fn unknown(model: &Model) -> ConfigError {
    ConfigError::Unsupported { key: "model_type", found: model.decoder.clone(), known: KNOWN }
}

fn parse<T: DeserializeOwned>(config: &Map<String, Value>) -> Result<T, ConfigError> {
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
