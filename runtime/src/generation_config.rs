//! What the makers of a model say about generation: which tokens end texts, and how to sample.

use std::path::Path;

use cacheplan_files::{Limit, Source};
use serde_json::{Map, Value};

use crate::error::ConfigError;
use crate::sampling::{Sampling, narrowed};

const FILE: &str = "generation_config.json";
const EOS: &str = "eos_token_id";
/// Changes texts where it rounds what is cached, and elsewhere says only where that lies.
const CACHE: &str = "cache_implementation";

/// Keys of transformers' `GenerationConfig` by which texts become others and that a run does not obey, with the numbers
/// that change nothing, where there is one; a `false` and an empty list change nothing anywhere.
const UNDONE: [(&str, Option<f64>); 35] = [
    ("assistant_ensemble_weight", None),
    ("bad_words_ids", None),
    ("begin_suppress_tokens", None),
    ("constraints", None),
    ("diversity_penalty", Some(0.0)),
    ("dola_layers", None),
    ("early_stopping", None),
    ("encoder_no_repeat_ngram_size", Some(0.0)),
    ("encoder_repetition_penalty", Some(1.0)),
    ("epsilon_cutoff", Some(0.0)),
    ("eta_cutoff", Some(0.0)),
    ("exponential_decay_length_penalty", None),
    ("force_words_ids", None),
    ("forced_bos_token_id", None),
    ("forced_decoder_ids", None),
    ("forced_eos_token_id", None),
    ("guidance_scale", Some(1.0)),
    ("length_penalty", Some(1.0)),
    ("max_length", Some(20.0)),
    ("max_new_tokens", Some(0.0)),
    ("max_time", None),
    ("min_length", Some(0.0)),
    ("min_new_tokens", Some(0.0)),
    ("no_repeat_ngram_size", Some(0.0)),
    ("num_beam_groups", Some(1.0)),
    ("num_beams", Some(1.0)),
    ("num_return_sequences", Some(1.0)),
    ("penalty_alpha", Some(0.0)),
    ("sequence_bias", None),
    ("stop_strings", None),
    ("suppress_tokens", None),
    ("token_healing", None),
    ("top_h", None),
    ("typical_p", Some(1.0)),
    ("watermarking_config", None),
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
            None => Ok::<_, ConfigError>(default),
            Some(value) => {
                let number = value.as_f64().ok_or_else(|| ConfigError::unsupported_in(FILE, key, value, "a number"))?;
                Ok(narrowed(key, number)?)
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
        let changes = |&(key, neutral): &(&'static str, Option<f64>)| {
            let found = value(key)?;
            let is_number = neutral.is_some() && found.as_f64() == neutral;
            let is_nothing = found == &Value::Bool(false) || found.as_array().is_some_and(Vec::is_empty);
            (!is_number && !is_nothing).then_some(key)
        };
        let rounded = value(CACHE).filter(|found| *found == "quantized").map(|_| CACHE);
        Ok(Self { eos, sampling, undone: UNDONE.iter().filter_map(changes).chain(rounded).collect() })
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
    #[case(Some(r#"{"do_sample": true, "temperature": 1e308}"#), json!({}), "`temperature` is 1e308")]
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

    /// Every key of transformers 5.24's `GenerationConfig` is one that a run obeys, one that is noted, or one that leaves
    /// the tokens as they are: guesses that are verified, what comes beside the tokens, how and where it is computed.
    #[test]
    fn no_key_that_changes_tokens_is_passed_over() {
        const OBEYED: &str = "do_sample eos_token_id min_p repetition_penalty temperature top_k top_p";
        const SAME: &str = "assistant_confidence_threshold assistant_early_exit assistant_lookbehind bos_token_id \
            cache_config cache_implementation compile_config continuous_batching_config decoder_start_token_id \
            disable_compile is_assistant low_memory max_cache_len max_matching_ngram_size num_assistant_tokens \
            num_assistant_tokens_schedule output_attentions output_hidden_states output_logits output_scores \
            pad_token_id prefill_chunk_size prompt_lookup_num_tokens remove_invalid_values renormalize_logits \
            return_dict_in_generate speculation_type target_lookbehind transformers_version use_cache use_mtp";
        const ALL: &str = "assistant_confidence_threshold assistant_early_exit assistant_ensemble_weight \
            assistant_lookbehind bad_words_ids begin_suppress_tokens bos_token_id cache_config cache_implementation \
            compile_config constraints continuous_batching_config decoder_start_token_id disable_compile \
            diversity_penalty do_sample dola_layers early_stopping encoder_no_repeat_ngram_size \
            encoder_repetition_penalty eos_token_id epsilon_cutoff eta_cutoff exponential_decay_length_penalty \
            force_words_ids forced_bos_token_id forced_eos_token_id guidance_scale is_assistant length_penalty \
            low_memory max_cache_len max_length max_matching_ngram_size max_new_tokens max_time min_length \
            min_new_tokens min_p no_repeat_ngram_size num_assistant_tokens num_assistant_tokens_schedule \
            num_beam_groups num_beams num_return_sequences output_attentions output_hidden_states output_logits \
            output_scores pad_token_id penalty_alpha prefill_chunk_size prompt_lookup_num_tokens \
            remove_invalid_values renormalize_logits repetition_penalty return_dict_in_generate sequence_bias \
            speculation_type stop_strings suppress_tokens target_lookbehind temperature token_healing top_h top_k \
            top_p transformers_version typical_p use_cache use_mtp watermarking_config";
        for key in ALL.split_whitespace() {
            let known = [OBEYED, SAME].iter().any(|list| list.split_whitespace().any(|listed| listed == key));
            let text = json!({ (key): { "stated": true } }).to_string();
            let noted = read(Some(&text), &json!({})).is_ok_and(|config| config.undone == [key]);
            assert_eq!(noted, !known, "{key}");
        }
    }

    #[rstest]
    #[case(r#"{"encoder_repetition_penalty": 2.0}"#, &["encoder_repetition_penalty"])]
    #[case(r#"{"forced_eos_token_id": 0, "forced_bos_token_id": 1}"#, &["forced_bos_token_id", "forced_eos_token_id"])]
    #[case(r#"{"watermarking_config": {}, "top_h": 0.4}"#, &["top_h", "watermarking_config"])]
    #[case(r#"{"encoder_repetition_penalty": 1.0, "length_penalty": 1, "token_healing": false}"#, &[])]
    #[case(r#"{"forced_eos_token_id": null, "cache_implementation": "hybrid"}"#, &[])]
    #[case(r#"{"cache_implementation": "quantized"}"#, &["cache_implementation"])]
    fn a_key_is_noted_where_its_value_changes_tokens(#[case] generation: &str, #[case] expected: &[&str]) {
        assert_eq!(read(Some(generation), &json!({})).unwrap().undone, expected);
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
