//! One file per architecture: from its config and the names of its weights to a [`Decoder`].

mod bamba;
mod deepseek_v3;
mod experts;
mod falcon_h1;
mod gemma3;
mod gemma4;
mod glm5_next;
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
mod olmo_hybrid;
mod qwen3_next;
mod qwen4_exp;
mod usual;
mod zamba2;

use std::sync::LazyLock;

use cacheplan_transforms::Model;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

pub(crate) use self::layer::{Layer, TensorNames, decoder};

use crate::decoder::Decoder;
use crate::error::{ConfigError, Result, RuntimeError};
use crate::layers::Activation;
use crate::weights::Weights;

/// What runs models of a type.
struct Entry {
    /// The type, as [`Model::decoder`] has it.
    model_type: &'static str,
    load: fn(&Model, &Weights) -> Result<Decoder>,
    /// Whether it has the prediction layer of its checkpoints.
    predicts: bool,
    /// Whether it has latent attention behind Ascend's operator.
    preprocesses: bool,
}

/// A type whose decoder reads its config as that of `$load`'s.
macro_rules! entry {
    ($model_type:literal, $load:path) => {
        Entry {
            model_type: $model_type,
            load: |model, weights| $load(&parse(&model.config)?, model, weights),
            predicts: false,
            preprocesses: false,
        }
    };
}

/// A type whose blocks are Llama's but for what is said.
macro_rules! relative {
    ($model_type:literal, $relative:path) => {
        Entry {
            model_type: $model_type,
            load: |model, weights| llama::load(&$relative, &parse(&model.config)?, model, weights),
            predicts: false,
            preprocesses: false,
        }
    };
}

/// The types that there is a decoder for.
static DECODERS: [Entry; 31] = [
    entry!("bamba", bamba::load),
    entry!("deepseek_v2", deepseek_v3::load_v2),
    Entry { predicts: true, preprocesses: true, ..entry!("deepseek_v3", deepseek_v3::load) },
    entry!("falcon_h1", falcon_h1::load),
    entry!("gemma3_text", gemma3::load),
    entry!("gemma4", gemma4::load),
    entry!("gemma4_text", gemma4::load),
    entry!("gemma4_unified", gemma4::load_unified),
    entry!("gemma4_unified_text", gemma4::load_unified),
    entry!("glm5_next_text", glm5_next::load),
    entry!("gpt_oss", gpt_oss::load),
    entry!("granitemoehybrid", granitemoehybrid::load),
    entry!("jamba", jamba::load),
    entry!("kimi_linear", kimi_linear::load),
    entry!("lfm2", lfm2::load),
    entry!("lfm2_moe", lfm2::load),
    relative!("llama", llama::LLAMA),
    entry!("mamba", mamba::load),
    entry!("mamba2", mamba2::load),
    entry!("minimax", minimax::load),
    relative!("mistral", llama::MISTRAL),
    relative!("mixtral", llama::MIXTRAL),
    Entry { predicts: true, ..entry!("nemotron_h", nemotron_h::load) },
    entry!("olmo_hybrid", olmo_hybrid::load),
    relative!("qwen2", llama::QWEN2),
    relative!("qwen3", llama::QWEN3),
    Entry { predicts: true, ..entry!("qwen3_5_text", qwen3_next::load_qwen3_5) },
    relative!("qwen3_moe", llama::QWEN3_MOE),
    Entry { predicts: true, ..entry!("qwen3_next", qwen3_next::load) },
    entry!("qwen4_exp_text", qwen4_exp::load),
    entry!("zamba2", zamba2::load),
];

/// Their names, as a sentence has them.
static KNOWN: LazyLock<String> = LazyLock::new(|| {
    let names: Vec<&str> = DECODERS.iter().map(|entry| entry.model_type).collect();
    names.split_last().map_or_else(String::new, |(last, rest)| format!("{} and {last}", rest.join(", ")))
});

fn entry(model_type: &str) -> Option<&'static Entry> {
    DECODERS.iter().find(|entry| entry.model_type == model_type)
}

impl Decoder {
    /// Builds the decoder of a model: its layers are those of the model, the rest is in its config.
    ///
    /// # Errors
    /// A model type without a decoder, a layer that its decoder cannot run, a missing or unusable key, a missing or
    /// mis-shaped tensor.
    pub fn load(model: &Model, weights: &Weights) -> Result<Self> {
        let _span = tracing::debug_span!("weights", decoder = %model.decoder).entered();
        match entry(&model.decoder) {
            Some(entry) => (entry.load)(model, weights).map_err(|error| match error {
                RuntimeError::Config(error) => error.stated_in(&model.config).into(),
                other => other,
            }),
            None => Err(unknown(model).into()),
        }
    }
}

/// Refuses a model type without a decoder before its weights are opened.
pub(crate) fn refuse_unknown(model: &Model) -> Result<(), ConfigError> {
    entry(&model.decoder).map(drop).ok_or_else(|| unknown(model))
}

/// Whether a decoder has the prediction layer of its checkpoints.
pub(crate) fn predicts(decoder: &str) -> bool {
    entry(decoder).is_some_and(|entry| entry.predicts)
}

/// Whether a decoder has latent attention behind Ascend's operator.
pub(crate) fn preprocesses(decoder: &str) -> bool {
    entry(decoder).is_some_and(|entry| entry.preprocesses)
}

fn unknown(model: &Model) -> ConfigError {
    ConfigError::unsupported("model_type", &model.decoder, &KNOWN)
}

/// What configs call what norms add under the root.
const EPSILONS: [&str; 4] = ["rms_norm_eps", "layer_norm_epsilon", "norm_eps", "hc_eps"];

fn parse<T: DeserializeOwned>(config: &Map<String, Value>) -> Result<T, ConfigError> {
    for key in EPSILONS {
        if let Some(found) = config.get(key).filter(|found| found.as_f64().is_some_and(|eps| eps < 0.0)) {
            return Err(ConfigError::unsupported(key, found, "numbers from 0 on"));
        }
    }
    serde_path_to_error::deserialize(config).map_err(|error| {
        let path = error.path().to_string();
        ConfigError::Json { key: (path != ".").then_some(path), source: error.into_inner() }
    })
}

/// What is true where a config does not say.
fn default_true() -> bool {
    true
}

/// A number where a config does not say.
fn number<const N: usize>() -> usize {
    N
}

/// The least time step where a config does not say.
fn time_step_min() -> f32 {
    0.001
}

/// The non-linearity where a config does not say.
fn silu() -> Activation {
    Activation::Silu
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_readme_lists_every_decoder_and_no_other() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
        let readme = std::fs::read_to_string(path).unwrap();
        let (_, behind) = readme.split_once("`run` computes models of type ").expect("a list of decoders");
        let (list, _) = behind.split_once(", with weights in").expect("an end of the list");
        let listed: Vec<&str> = list.split('`').skip(1).step_by(2).collect();
        let decoders: Vec<&str> = DECODERS.iter().map(|entry| entry.model_type).collect();
        assert_eq!(listed, decoders);
        assert!(decoders.is_sorted(), "they are looked for by eye");
    }
}
