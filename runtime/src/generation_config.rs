//! What the makers of a model say about generation: which tokens end texts, and how to sample.

use std::path::Path;

use cacheplan_files::{Limit, Source};
use serde_json::{Map, Value};

use crate::error::ConfigError;
use crate::sampling::Sampling;

const FILE: &str = "generation_config.json";
const EOS: &str = "eos_token_id";

/// What `generation_config.json` says, and of the ends of texts also the model's own config.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationConfig {
    /// Tokens that end texts.
    pub eos: Vec<u32>,
    /// How to sample; the most likely token each time unless `do_sample` is true, as in Hugging Face's `generate`.
    pub sampling: Sampling,
}

impl GenerationConfig {
    /// That of a model's folder, whose `config.json` is `config`.
    pub(crate) fn read(folder: &Path, config: &Map<String, Value>) -> Result<Self, ConfigError> {
        let file = Source::beside(folder, FILE)?;
        let stated = file.map(|file| file.json::<Map<String, Value>>(Limit::CONFIG)).transpose()?.unwrap_or_default();
        let value = |key: &str| stated.get(key).filter(|value| !value.is_null());
        let eos = match value(EOS) {
            Some(stated) => tokens(FILE, stated)?,
            None => tokens("config.json", config.get(EOS).unwrap_or(&Value::Null))?,
        };
        let number = |key: &'static str, default: f32| match value(key) {
            None => Ok(default),
            Some(value) => {
                let number = value.as_f64().map(|value| value as f32);
                number.ok_or_else(|| ConfigError::unsupported_in(FILE, key, value, "a number"))
            }
        };
        let plain = Sampling::default();
        let mut sampling = Sampling {
            repetition_penalty: number("repetition_penalty", plain.repetition_penalty)?,
            presence_penalty: number("presence_penalty", plain.presence_penalty)?,
            frequency_penalty: number("frequency_penalty", plain.frequency_penalty)?,
            ..plain
        };
        match value("do_sample") {
            None | Some(Value::Bool(false)) => {}
            Some(Value::Bool(true)) => {
                sampling.temperature = number("temperature", 1.0)?;
                // Where nothing is said all tokens may come, as in vLLM; transformers keeps the 50 most likely.
                sampling.top_k = number("top_k", 0.0)? as usize;
                sampling.top_p = number("top_p", 1.0)?;
                sampling.min_p = number("min_p", 0.0)?;
            }
            Some(other) => return Err(ConfigError::unsupported_in(FILE, "do_sample", other, "true and false")),
        }
        sampling.check()?;
        Ok(Self { eos, sampling })
    }
}

fn tokens(file: &'static str, value: &Value) -> Result<Vec<u32>, ConfigError> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    let ids = match value {
        Value::Null => Some(Vec::new()),
        Value::Array(ids) => ids.iter().map(id).collect(),
        one => id(one).map(|id| vec![id]),
    };
    ids.ok_or_else(|| ConfigError::unsupported_in(file, EOS, value, "a token id, a list of token ids, and null"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    fn read(generation: Option<&str>, config: &Value) -> Result<GenerationConfig, ConfigError> {
        let folder = tempfile::tempdir().unwrap();
        if let Some(text) = generation {
            std::fs::write(folder.path().join(FILE), text).unwrap();
        }
        GenerationConfig::read(folder.path(), config.as_object().unwrap())
    }

    #[rstest]
    #[case(None, json!({"eos_token_id": 2}), &[2])]
    #[case(None, json!({"eos_token_id": [2, 5]}), &[2, 5])]
    #[case(None, json!({"eos_token_id": null}), &[])]
    #[case(None, json!({}), &[])]
    #[case(Some(r#"{"eos_token_id": [7]}"#), json!({"eos_token_id": 2}), &[7])]
    #[case(Some("{}"), json!({"eos_token_id": 2}), &[2])]
    fn the_generation_config_goes_before_the_config(
        #[case] generation: Option<&str>,
        #[case] config: Value,
        #[case] expected: &[u32],
    ) {
        assert_eq!(read(generation, &config).unwrap().eos, expected);
    }

    #[rstest]
    #[case(None, json!({"eos_token_id": -1}), "config.json: `eos_token_id` is `-1`")]
    #[case(Some(r#"{"eos_token_id": "a"}"#), json!({}), "generation_config.json: `eos_token_id` is `\"a\"`")]
    #[case(None, json!({"eos_token_id": "</s>"}), "`eos_token_id` is `\"</s>\"`")]
    #[case(Some("{"), json!({}), "generation_config.json: not valid JSON: EOF")]
    #[case(Some(r#"{"do_sample": true, "top_p": "a"}"#), json!({}), "generation_config.json: `top_p` is `\"a\"`")]
    #[case(Some(r#"{"do_sample": true, "top_p": 2}"#), json!({}), "generation_config.json: `top_p` is 2")]
    #[case(Some(r#"{"do_sample": 1}"#), json!({}), "generation_config.json: `do_sample` is `1`")]
    fn what_is_no_token_or_number_is_refused(
        #[case] generation: Option<&str>,
        #[case] config: Value,
        #[case] message: &str,
    ) {
        let error = read(generation, &config).unwrap_err();
        assert!(error.to_string().contains(message), "{error}");
    }

    #[rstest]
    #[case(r#"{"temperature": 0.6, "top_k": 20}"#, Sampling::default())]
    #[case(r#"{"do_sample": false, "temperature": 0.6, "repetition_penalty": 1.1}"#,
           Sampling { repetition_penalty: 1.1, ..Sampling::default() })]
    #[case(r#"{"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": null}"#,
           Sampling { temperature: 0.6, top_k: 20, top_p: 0.95, ..Sampling::default() })]
    #[case(r#"{"do_sample": true}"#, Sampling { temperature: 1.0, ..Sampling::default() })]
    fn sampling_is_what_transformers_would_do(#[case] generation: &str, #[case] expected: Sampling) {
        assert_eq!(read(Some(generation), &json!({})).unwrap().sampling, expected);
    }
}
