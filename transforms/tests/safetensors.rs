//! Weights are read by their headers; they check the config and give exact sizes.

mod support;

use std::fs;
use std::path::Path;

use cacheplan_transforms::{FrontendError, Model, ReadOptions};
use rstest::rstest;
use tempfile::TempDir;

use support::{fixture, names};

fn read(path: &Path) -> Result<Model, FrontendError> {
    Model::read(path, &ReadOptions::default())
}

/// A copy of a tiny model, its config changed by `edit`.
fn edited(name: &str, edit: impl Fn(&mut serde_json::Map<String, serde_json::Value>)) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let source = fixture(&format!("models/{name}"));
    fs::copy(source.join("model.safetensors"), folder.path().join("model.safetensors")).unwrap();
    let mut config = serde_json::from_slice(&fs::read(source.join("config.json")).unwrap()).unwrap();
    edit(&mut config);
    fs::write(folder.path().join("config.json"), serde_json::to_vec(&config).unwrap()).unwrap();
    folder
}

#[test]
fn configs_and_weights_agree_on_every_tiny_model() {
    for name in names("models") {
        let folder = fixture(&format!("models/{name}"));
        let model = read(&folder).unwrap_or_else(|error| panic!("{name}: {error}"));
        let checked = model.facts.iter().find(|fact| fact.what == "dimensions checked").unwrap();
        assert!(checked.value.parse::<u64>().unwrap() >= u64::from(model.info.layers), "{name}: {}", checked.value);
    }
}

/// The estimate from the config alone against the headers, to the byte.
#[test]
fn configs_estimate_the_weights_of_the_tiny_models() {
    // Buffers that are stored like weights: biases of the routing, Gemma 4's factors, MiniMax's tables of decay, hashes.
    let buffers = |name: &str| match name {
        "deepseek_v3" | "gemma4_moe" | "nemotron_h" => 16,
        "gemma4" => 20,
        "glm5_next_text" | "kimi_linear" => 48,
        "lfm2_moe" => 72,
        "minimax" => 9_248,
        "qwen4_exp_text" => 176,
        _ => 0,
    };
    // Its shared blocks are not described.
    for name in names("models").into_iter().filter(|name| name != "zamba2") {
        let folder = fixture(&format!("models/{name}"));
        let exact = read(&folder).unwrap().info.weights.unwrap();
        let described = read(&folder.join("config.json")).unwrap();
        let estimate = described.info.weights.unwrap_or_else(|| panic!("{name}: {:?}", described.weights_unknown));
        assert_eq!((estimate.bytes + buffers(&name), estimate.exact), (exact.bytes, false), "{name}");
    }
}

#[test]
fn weight_bytes_are_those_of_the_file_behind_its_header() {
    let path = fixture("models/llama/model.safetensors");
    let file = fs::read(&path).unwrap();
    let header = u64::from_le_bytes(file[..8].try_into().unwrap());
    let weights = read(&path).unwrap().info.weights.unwrap();
    assert_eq!((weights.bytes, weights.exact), (file.len() as u64 - 8 - header, true));
}

#[rstest]
#[case("llama", "head_dim", 8, "32", "16", "num_kv_heads * head_dim")]
#[case("nemotron_h", "n_groups", 4, "192", "256", "n_groups")]
#[case("mamba", "state_size", 8, "16", "8", "d_state")]
#[case("mamba2", "conv_kernel", 3, "4", "3", "d_conv")]
#[case("deepseek_v3", "kv_lora_rank", 16, "48", "32", "kv_lora_rank + qk_rope_head_dim")]
#[case("qwen3_next", "linear_num_value_heads", 8, "128", "192", "conv_dim")]
#[case("kimi_linear", "linear_num_heads", 2, "64", "32", "num_k_heads")]
#[case("lfm2", "conv_L_cache", 4, "3", "4", "d_conv")]
fn a_disagreement_names_both_values(
    #[case] name: &str,
    #[case] key: &str,
    #[case] value: u64,
    #[case] found: &str,
    #[case] expected: &str,
    #[case] meaning: &str,
) {
    let folder = edited(name, |config| {
        config.insert(key.to_owned(), value.into());
    });
    let error = read(folder.path()).unwrap_err();
    assert!(matches!(error, FrontendError::Disagreement { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains(&format!("has {found} ")) && text.contains(&format!("says {expected} ")), "{text}");
    assert!(text.contains(meaning), "{text}");
}

/// Packed formats store two numbers in a byte: the stored shape says nothing about the weight's.
#[test]
fn packed_weights_are_not_compared() {
    let folder = edited("nemotron_h", |_| {});
    let path = folder.path().join("model.safetensors");
    let file = fs::read(&path).unwrap();
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let mut header: serde_json::Value = serde_json::from_slice(&file[8..8 + length]).unwrap();
    // As many bytes as before, counted and shaped in another way.
    let mut packed = |dtype: &str, shape: [u64; 2]| {
        let weight = &mut header["backbone.layers.0.mixer.out_proj.weight"];
        weight["dtype"] = dtype.into();
        weight["shape"] = serde_json::json!(shape);
        let text = serde_json::to_vec(&header).unwrap();
        fs::write(&path, [&(text.len() as u64).to_le_bytes(), text.as_slice()].concat()).unwrap();
        read(folder.path())
    };
    assert!(packed("U8", [512, 64]).is_ok());
    assert!(matches!(packed("BF16", [256, 64]), Err(FrontendError::Disagreement { .. })));
}

#[test]
fn weights_without_a_config_name_the_missing_dimension() {
    let folder = edited("llama", |_| {});
    fs::remove_file(folder.path().join("config.json")).unwrap();
    let text = read(folder.path()).unwrap_err().to_string();
    assert!(text.contains("head_dim cannot be told") && text.contains("num_kv_heads * head_dim"), "{text}");
}

#[test]
fn a_file_cut_inside_its_data_still_reads() {
    let folder = edited("llama", |_| {});
    let path = folder.path().join("model.safetensors");
    let file = fs::read(&path).unwrap();
    let header = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    fs::write(&path, &file[..8 + header + 100]).unwrap();
    let model = read(folder.path()).unwrap();
    let weights = model.info.weights.unwrap();
    assert_eq!((weights.bytes, weights.exact, weights.unproven), ((file.len() - 8 - header) as u64, false, true));
    assert!(model.facts.iter().any(|fact| fact.assumed && fact.value.contains("ends before its data does")));
}

#[rstest]
#[case(0)]
#[case(7)]
#[case(8)]
#[case(300)]
fn a_file_cut_inside_its_header_says_so(#[case] length: usize) {
    let folder = edited("llama", |_| {});
    let path = folder.path().join("model.safetensors");
    fs::write(&path, &fs::read(&path).unwrap()[..length]).unwrap();
    let error = read(folder.path()).unwrap_err();
    assert!(matches!(error, FrontendError::Truncated { .. }), "{error}");
}

#[test]
fn shards_are_read_through_their_index_and_absent_ones_are_noted() {
    let folder = edited("llama", |_| {});
    let here = |name: &str| folder.path().join(name);
    fs::rename(here("model.safetensors"), here("model-00001-of-00002.safetensors")).unwrap();
    let map = r#"{"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}"#;
    let index = format!(r#"{{"metadata": {{"total_size": 123456}}, "weight_map": {map}}}"#);
    fs::write(here("model.safetensors.index.json"), index).unwrap();
    let model = read(folder.path()).unwrap();
    let weights = model.info.weights.unwrap();
    // Nothing but the index says so.
    assert_eq!((weights.bytes, weights.exact, weights.unproven), (123_456, false, true));
    assert!(model.facts.iter().any(|fact| fact.assumed && fact.value.contains("model-00002-of-00002")));
}

#[test]
fn a_file_without_the_layers_does_not_tell_the_size_of_the_weights() {
    let model = read(&fixture("models/llama/golden.safetensors")).unwrap();
    assert!(!model.info.weights.unwrap().exact);
    let note = model.facts.iter().find(|fact| fact.what == "weights not counted").unwrap();
    assert!(note.assumed && note.value.contains("layer 0"), "{note:?}");
}

#[test]
fn an_index_cannot_lead_out_of_its_folder() {
    let folder = edited("llama", |_| {});
    let index = r#"{"weight_map": {"a": "../secret.safetensors"}}"#;
    fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
    let error = read(folder.path()).unwrap_err().to_string();
    let expected =
        "model.safetensors.index.json: JSON of another kind: shard `../secret.safetensors` is not a plain file name";
    assert!(error.contains(expected), "{error}");
}
