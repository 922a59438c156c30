//! What the makers of a model say about generation: which tokens end texts, and how to sample.

use std::path::Path;

use cacheplan_files::{Limit, Source};
use serde_json::{Map, Value};

use crate::error::ConfigError;
use crate::sampling::Sampling;

const FILE: &str = "generation_config.json";
const EOS: &str = "eos_token_id";

/// Keys by which texts become others and that a run does not obey, with the numbers that change nothing.
const UNDONE: [(&str, f64); 17] = [
    ("bad_words_ids", 0.0),
    ("begin_suppress_tokens", 0.0),
    ("diversity_penalty", 0.0),
    ("epsilon_cutoff", 0.0),
    ("eta_cutoff", 0.0),
    ("exponential_decay_length_penalty", 0.0),
    ("guidance_scale", 1.0),
    ("max_length", 20.0),
    ("max_new_tokens", 0.0),
    ("min_length", 0.0),
    ("min_new_tokens", 0.0),
    ("no_repeat_ngram_size", 0.0),
    ("num_beams", 1.0),
    ("sequence_bias", 0.0),
    ("stop_strings", 0.0),
    ("suppress_tokens", 0.0),
    ("typical_p", 1.0),
];

/// What `generation_config.json` says, and of the ends of texts also the model's own config.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationConfig {
    /// Tokens that end texts.
    pub eos: Vec<u32>,
    /// How to sample; the most likely token each time unless `do_sample` is true, as in Hugging Face's `generate`.
    pub sampling: Sampling,
    /// Keys of the file that a run does not obey.
    pub undone: Vec<&'static str>,
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
        let changes = |&(key, neutral): &(&'static str, f64)| {
            let found = value(key)?;
            let is_neutral = found.as_f64() == Some(neutral) || found.as_array().is_some_and(Vec::is_empty);
            (!is_neutral).then_some(key)
        };
        Ok(Self { eos, sampling, undone: UNDONE.iter().filter_map(changes).collect() })
    }

    /// What of the file a run does not do, in words.
    pub(crate) fn note(&self) -> Option<String> {
        let keys: Vec<String> = self.undone.iter().map(|key| format!("`{key}`")).collect();
        (!keys.is_empty()).then(|| format!("{FILE}: a run does not do what it says by {}", keys.join(", ")))
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
    #[case(r#"{"do_sample": true, "top_p": 0.9, "num_beams": 1, "typical_p": 1, "suppress_tokens": []}"#, None)]
    #[case(
        r#"{"typical_p": 0.1, "stop_strings": ["x"], "num_beams": 2, "min_length": null}"#,
        Some("generation_config.json: a run does not do what it says by `num_beams`, `stop_strings`, `typical_p`")
    )]
    fn what_is_not_done_is_said(#[case] generation: &str, #[case] said: Option<&str>) {
        assert_eq!(read(Some(generation), &json!({})).unwrap().note().as_deref(), said);
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
