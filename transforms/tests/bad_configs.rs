//! Bad input is an error that names the file and the key.

mod support;

use cacheplan_files::SourceError;
use cacheplan_transforms::{Assumption, FrontendError, Model, ReadOptions};
use rstest::rstest;

use support::fixture;

const LLAMA: &str = r#"{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}"#;

fn error(text: &str) -> FrontendError {
    Model::read_config("config.json", text, &ReadOptions::default()).unwrap_err()
}

#[rstest]
#[case::negative(r#""num_attention_heads": -4"#, "`num_attention_heads` is -4")]
#[case::fraction(r#""hidden_size": 64.5"#, "`hidden_size` is 64.5")]
#[case::absurd(r#""hidden_size": 99999999999999999999"#, "`hidden_size` is")]
#[case::text(r#""num_key_value_heads": "two""#, "`num_key_value_heads` is \"two\"")]
#[case::zero_layers(r#""num_hidden_layers": 0"#, "`num_hidden_layers` is 0; at least 1")]
#[case::zero_heads(r#""num_attention_heads": 0"#, "`num_attention_heads` is 0; at least 1")]
#[case::heads_that_keys_do_not_divide(r#""num_key_value_heads": 3"#, "is 3; a divisor of the 4 attention heads")]
#[case::model_type(r#""model_type": 7"#, "`model_type` is 7; the name of an architecture was expected")]
#[case::too_many_layers(r#""num_hidden_layers": 4000000000"#, "at most 1024 layers")]
#[case::more_layers_than_any_model_has(r#""num_hidden_layers": 1025"#, "at most 1024 layers")]
#[case::no_whole_quotient(r#""num_attention_heads": 3"#, "64 / 3")]
#[case::a_switch_for_a_count(r#""max_position_embeddings": true"#, "`max_position_embeddings` is a number")]
#[case::dtype(r#""torch_dtype": "float13""#, "unknown dtype `float13`")]
fn a_value_out_of_range_names_its_key(#[case] change: &str, #[case] expected: &str) {
    let mut config: serde_json::Map<String, serde_json::Value> = serde_json::from_str(LLAMA).unwrap();
    config.append(&mut serde_json::from_str(&format!("{{{change}}}")).unwrap());
    let message = error(&serde_json::to_string(&config).unwrap()).to_string();
    assert!(message.contains("config.json") && message.contains(expected), "{message}");
}

#[test]
fn a_missing_key_lists_what_would_tell_it() {
    let text = LLAMA.replace(r#", "num_attention_heads": 4"#, "");
    let error = error(&text);
    assert!(matches!(error, FrontendError::Missing { .. }));
    assert!(error.to_string().contains("num_attention_heads"), "{error}");
    assert!(!error.is_unsupported());
}

/// A key that is there and says nothing is not one to add, wherever it stands.
#[rstest]
#[case::alone(r#""num_attention_heads": null"#, "`num_attention_heads` is null; state it")]
#[case::in_a_list(
    r#""model_type": "mistral", "num_key_value_heads": [1, 1], "num_attention_heads": [4, null]"#,
    "`num_attention_heads` is null; state it"
)]
#[case::in_a_layer(
    r#""model_type": "gpt_oss", "num_key_value_heads": 2, "layer_types": ["sliding_attention", "sliding_attention"], "sliding_window": 8, "per_layer_config": {"1": {"sliding_window": null}}"#,
    "`sliding_window` is null; state it"
)]
fn a_key_that_is_null_is_said_to_be(#[case] change: &str, #[case] expected: &str) {
    let mut config: serde_json::Map<String, serde_json::Value> = serde_json::from_str(LLAMA).unwrap();
    config.append(&mut serde_json::from_str(&format!("{{{change}}}")).unwrap());
    let message = error(&serde_json::to_string(&config).unwrap()).to_string();
    assert!(message.contains(expected) && !message.contains("near"), "{message}");
}

/// What only the estimate of the weights needs is no error, and its reason the same.
#[rstest]
#[case(r#""vocab_size": null"#, "`vocab_size` is null")]
#[case(
    r#""vocab_size": 8, "intermediate_size": null"#,
    "`intermediate_size` is null and `moe_intermediate_size` is missing, which"
)]
fn a_weight_whose_size_is_null_is_not_missing(#[case] change: &str, #[case] expected: &str) {
    let mut config: serde_json::Map<String, serde_json::Value> = serde_json::from_str(LLAMA).unwrap();
    config.append(&mut serde_json::from_str(&format!("{{{change}}}")).unwrap());
    let text = serde_json::to_string(&config).unwrap();
    let model = Model::read_config("config.json", &text, &ReadOptions::default()).unwrap();
    let unknown = model.weights_unknown.unwrap_or_default();
    assert!(unknown.contains(expected), "{unknown}");
}

#[test]
fn an_unknown_model_type_lists_its_neighbours_and_counts_as_unsupported() {
    let error = error(&LLAMA.replace("llama", "lama"));
    assert!(error.is_unsupported());
    assert!(error.to_string().contains("near: llama"), "{error}");
}

#[test]
fn an_unknown_layer_kind_names_the_layer_and_an_assumption_settles_it() {
    let text = r#"{"model_type": "nemotron_h", "hidden_size": 64, "num_attention_heads": 8,
        "layers_block_type": ["attention", "attention", "perceiver"]}"#;
    let error = error(text);
    assert!(error.is_unsupported());
    assert!(error.to_string().contains("layer 2 is of unknown kind `perceiver`"), "{error}");

    let assume: Vec<Assumption> = vec!["layer.2=full_attention".parse().unwrap()];
    let model = Model::read_config("c", text, &ReadOptions { assume, ..ReadOptions::default() }).unwrap();
    assert_eq!(support::layer_kinds(&model), ["attention", "attention", "attention"]);
    assert!(model.facts.iter().any(|fact| fact.what == "layer 2" && fact.assumed));
}

#[test]
fn an_assumption_outside_the_model_is_refused() {
    let assume = vec!["layer.9=attention".parse().unwrap()];
    let result = Model::read_config("c", LLAMA, &ReadOptions { assume, ..ReadOptions::default() });
    assert!(matches!(result, Err(FrontendError::Assumption { .. })));
}

#[test]
fn a_layer_list_of_another_length_is_refused() {
    let text =
        r#"{"model_type": "nemotron_h", "hidden_size": 64, "num_hidden_layers": 3, "hybrid_override_pattern": "M*"}"#;
    let message = error(text).to_string();
    assert!(message.contains("it has 2 entries, the model has 3 layers"), "{message}");
}

#[test]
fn truncated_json_says_where() {
    let error = error(&LLAMA[..40]);
    assert!(matches!(&error, FrontendError::Source(SourceError::Json { .. })), "{error}");
    assert!(error.to_string().contains("not valid JSON: EOF"), "{error}");
}

#[rstest]
#[case::a_list("[1, 2]", "JSON of another kind")]
#[case::a_null("null", "JSON of another kind")]
#[case::another_object("{}", "there is no `model_type`")]
fn valid_json_that_is_no_config_is_told_apart(#[case] text: &str, #[case] expected: &str) {
    let error = error(text);
    assert!(error.to_string().contains(expected) && !error.is_unsupported(), "{error}");
}

#[test]
fn a_byte_order_mark_is_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.json");
    std::fs::write(&file, format!("\u{feff}{LLAMA}")).unwrap();
    assert_eq!(Model::read(&file, &ReadOptions::default()).unwrap().info.layers, 2);
}

#[rstest]
#[case::empty(&[], "or a .gguf, .onnx, .pt2 or .safetensors file")]
#[case::other_formats(&["b.gguf", "a.onnx", "notes.txt"], "name one of its files instead: a.onnx, b.gguf")]
fn a_folder_without_a_config_says_what_would_do(#[case] files: &[&str], #[case] expected: &str) {
    let folder = tempfile::tempdir().unwrap();
    for file in files {
        std::fs::write(folder.path().join(file), "").unwrap();
    }
    let message = Model::read(folder.path(), &ReadOptions::default()).unwrap_err().to_string();
    assert!(message.contains("there is no config.json in this folder") && message.contains(expected), "{message}");
}

#[test]
fn a_missing_file_is_named() {
    let error = Model::read(&fixture("configs/no_such_file.json"), &ReadOptions::default()).unwrap_err();
    assert!(matches!(&error, FrontendError::Source(SourceError::Io { .. })));
    assert!(error.to_string().contains("no_such_file.json"), "{error}");
}
