//! Published configs of the architectures that there are decoders for reach the point where weights are read.

use std::path::{Path, PathBuf};

use cacheplan_runtime::{ConfigError, Decoder, RuntimeError, SessionOptions, WeightError, Weights};
use cacheplan_transforms::{Model, ReadOptions};
use candle_core::{DType, Device, Tensor};
use rstest::rstest;
use serde_json::{Value, json};

fn fixture(model: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models").join(model)
}

/// The config of a fixture with some keys set, or removed where they are null.
fn config(model: &str, changes: &Value) -> Value {
    let text = std::fs::read_to_string(fixture(model).join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    for (key, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => config.as_object_mut().unwrap().remove(key),
            value => config.as_object_mut().unwrap().insert(key.clone(), value.clone()),
        };
    }
    config
}

/// The decoder of a config, read as any config is.
fn load(config: &Value, weights: &Weights) -> Result<Decoder, RuntimeError> {
    let model = Model::read_config("config.json", &config.to_string(), &ReadOptions::default())?;
    cacheplan_runtime::Decoder::load(&model, weights)
}

#[test]
fn published_configs_give_their_decoders_all_they_need() {
    let folder = tempfile::TempDir::new().unwrap();
    // A safetensors file without tensors.
    std::fs::write(folder.path().join("model.safetensors"), b"\x02\0\0\0\0\0\0\0{}").unwrap();
    let no_weights = Weights::open(folder.path(), DType::F32, &Device::Cpu).unwrap();
    let configs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/configs");
    let mut decoders = 0;
    for entry in std::fs::read_dir(configs).unwrap() {
        let path = entry.unwrap().path();
        let Ok(model) = Model::read(&path, &ReadOptions::default()) else { continue };
        if model.config.contains_key("_zoo_note") {
            // Reconstructed: it has the fields that decide cache sizes and no others.
            continue;
        }
        match cacheplan_runtime::Decoder::load(&model, &no_weights) {
            Err(RuntimeError::Weights(WeightError::Missing { .. })) => decoders += 1,
            Err(RuntimeError::Config(ConfigError::Unsupported { .. } | ConfigError::Missing { key: "model_type" })) => {
            }
            other => panic!("{}: {other:?}", path.display()),
        }
    }
    assert!(decoders >= 23, "{decoders} configs have a decoder");
}

#[test]
fn a_key_that_a_decoder_needs_and_is_null_is_not_said_to_be_missing() {
    let folder = tempfile::TempDir::new().unwrap();
    std::fs::write(folder.path().join("model.safetensors"), b"\x02\0\0\0\0\0\0\0{}").unwrap();
    let no_weights = Weights::open(folder.path(), DType::F32, &Device::Cpu).unwrap();
    let mut config = config("gpt_oss", &json!({}));
    config["rope_parameters"] = Value::Null;
    let error = load(&config, &no_weights).unwrap_err().to_string();
    assert!(error.contains("`rope_parameters` is null"), "{error}");
}

#[test]
fn the_readme_names_every_model_type_that_has_a_decoder() {
    let folder = tempfile::TempDir::new().unwrap();
    std::fs::write(folder.path().join("model.safetensors"), b"\x02\0\0\0\0\0\0\0{}").unwrap();
    let no_weights = Weights::open(folder.path(), DType::F32, &Device::Cpu).unwrap();
    let refused = load(&config("llama", &json!({ "model_type": "olmo" })), &no_weights);
    let Err(RuntimeError::Config(ConfigError::Unsupported { known, .. })) = refused else { panic!("{refused:?}") };
    let readme = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md")).unwrap();
    let names = known.split([',', ' ']).filter(|name| !matches!(*name, "" | "and"));
    let unnamed: Vec<&str> = names.filter(|name| !readme.contains(&format!("`{name}`"))).collect();
    assert!(unnamed.is_empty(), "{unnamed:?}");
}

#[rstest]
#[case::rescaled_rope("zamba2", json!({ "use_mem_rope": true, "use_long_context": true }), "`use_long_context` is `true`")]
#[case::no_shared_block("zamba2", json!({ "num_mem_blocks": 0 }), "`num_mem_blocks` is `0`")]
#[case::a_share_of_heads("llama", json!({ "partial_rotary_factor": 0.5 }), "`partial_rotary_factor` is `0.5`")]
#[case::unknown_rotation("gpt_oss", json!({ "rope_parameters": null }), "`rope_parameters` is missing")]
#[case::unknown_window("qwen3", json!({ "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention"] }), "`sliding_attention.window` of model_type `qwen3` cannot be told")]
#[case::too_few_layers("qwen3", json!({ "layer_types": [] }), "`layer_types` is []; it has 0 entries")]
#[case::both_directions("gemma3", json!({ "use_bidirectional_attention": true }), "`use_bidirectional_attention` of model_type `gemma3_text` is true")]
#[case::capped_scores("gemma3", json!({ "attn_logit_softcapping": 50.0 }), "`attn_logit_softcapping` is `50`")]
#[case::nothing_seen("llama", json!({ "model_type": "mistral", "sliding_window": 0 }), "`sliding_window` of model_type `mistral` is 0")]
#[case::listed_for_some("qwen3", json!({ "model_type": "qwen3_moe", "layer_types": ["full_attention", "sliding_attention"] }), "`layer_types` of model_type `qwen3_moe` is")]
#[case::no_size_but_listed("minimax", json!({ "model_type": "mixtral", "layer_types": ["sliding_attention", "full_attention"] }), "`layer_types` of model_type `mixtral` is")]
#[case::no_experts("minimax", json!({ "model_type": "mixtral", "layer_types": null, "num_local_experts": null }), "experts in every layer, as many as `num_local_experts` says")]
#[case::unknown_windows("qwen3", json!({ "model_type": "qwen3_moe", "use_sliding_window": true, "layer_types": null, "sliding_window": "auto" }), "`sliding_window` is \"auto\"; state it")]
#[case::unknown_experts("qwen3", json!({ "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8 }), "`norm_topk_prob` is missing")]
#[case::unknown_weights("qwen3_next", json!({ "norm_topk_prob": null }), "`norm_topk_prob` is missing")]
#[case::unknown_weights_too("nemotron_h", json!({ "norm_topk_prob": null }), "`norm_topk_prob` is missing")]
#[case::no_group("deepseek_v3", json!({ "topk_group": 0 }), "`num_experts_per_tok` is")]
#[case::unknown_activation("llama", json!({ "hidden_act": "mish" }), "`hidden_act`: unknown variant `mish`")]
#[case::no_number("llama", json!({ "vocab_size": "many" }), "`vocab_size` is \"many\"")]
#[case::last_layer_with_a_window("gemma4", json!({ "layer_types": ["full_attention", "full_attention", "sliding_attention", "full_attention", "sliding_attention"] }), "full attention in the last layer")]
#[case::inputs_of_some_tokens("gemma4", json!({ "vocab_size_per_layer_input": 95 }), "`vocab_size_per_layer_input` is `95`")]
#[case::no_rotation_of_a_kind("gemma4", json!({ "rope_parameters": { "sliding_attention": { "rope_type": "default" } } }), "`rope_parameters.full_attention` is missing")]
#[case::nothing_to_read("gemma4", json!({ "num_kv_shared_layers": 4 }), "none of the first 1 layers is of its kind")]
#[case::all_directions("gemma4", json!({ "use_bidirectional_attention": "all" }), "`use_bidirectional_attention`")]
#[case::unknown_choice("gemma4_moe", json!({ "top_k_experts": null }), "`top_k_experts`")]
#[case::shared_keys("llama", json!({ "num_kv_shared_layers": 2 }), "`num_kv_shared_layers`")]
#[case::nested_word("gemma3", json!({ "rope_parameters": { "full_attention": 3 } }), "`rope_parameters")]
#[case::more_than_a_head("bamba", json!({ "rope_parameters": { "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1e18 } }), "`partial_rotary_factor` is")]
#[case::no_base("llama", json!({ "rope_parameters": { "rope_type": "default", "rope_theta": 0 } }), "`rope_theta` is `0`")]
#[case::a_base_below_0("llama", json!({ "rope_parameters": { "rope_type": "default", "rope_theta": -1 } }), "`rope_theta` is `-1`")]
#[case::no_factor("llama", json!({ "rope_parameters": { "rope_type": "linear", "rope_theta": 1e4, "factor": 0 } }), "`rope_parameters.factor` is `0`")]
#[case::an_endless_factor("llama", json!({ "rope_parameters": { "rope_type": "linear", "rope_theta": 1e4, "factor": 1e300 } }), "`rope_parameters.factor` is `1e+300`; the runtime knows numbers of 32 bits")]
#[case::roots_of_less_than_0("llama", json!({ "rms_norm_eps": -1 }), "`rms_norm_eps` is `-1`")]
#[case::roots_by_another_name("mamba", json!({ "layer_norm_epsilon": -1e-5 }), "`layer_norm_epsilon` is")]
#[case::endless_rounds("glm5_next_text", json!({ "hc_sinkhorn_iters": 1_000_000 }), "`hc_sinkhorn_iters` is")]
#[case::endless_heads("glm5_next_text", json!({ "index_n_heads": i64::MAX }), "`index_n_heads` is")]
#[case::endless_heads_too("qwen4_exp_text", json!({ "indexer_n_heads": i64::MAX }), "`indexer_n_heads` is")]
#[case::endless_hashes("qwen4_exp_text", json!({ "heads_per_ngram": u64::MAX }), "`heads_per_ngram` is")]
#[case::no_layers("llama", json!({ "num_hidden_layers": null }), "`num_hidden_layers`")]
#[case::more_than_the_groups_have("deepseek_v3", json!({ "topk_group": 1, "num_experts_per_tok": 3 }), "`num_experts_per_tok` is")]
fn what_would_give_other_numbers_is_refused(#[case] model: &str, #[case] changes: Value, #[case] said: &str) {
    let weights = Weights::invented(DType::F32, &Device::Cpu);
    let error = load(&config(model, &changes), &weights).unwrap_err();
    let read = matches!(error, RuntimeError::Config(_) | RuntimeError::Layer { .. } | RuntimeError::Frontend(_));
    assert!(read, "{error}");
    assert!(error.to_string().contains(said), "{error}");
}

#[rstest]
#[case("llama", "model.layers.0.self_attn.q_proj.bias", json!({}))]
#[case("falcon_h1", "model.layers.0.mamba.out_proj.bias", json!({}))]
#[case("mamba2", "backbone.layers.0.mixer.conv1d.bias", json!({ "use_conv_bias": false }))]
#[case("mamba", "backbone.layers.0.mixer.conv1d.bias", json!({ "use_conv_bias": false }))]
fn a_bias_that_the_config_does_not_state_is_refused(#[case] model: &str, #[case] bias: &str, #[case] changes: Value) {
    let folder = tempfile::TempDir::new().unwrap();
    let mut tensors = candle_core::safetensors::load(fixture(model).join("model.safetensors"), &Device::Cpu).unwrap();
    tensors.entry(bias.to_owned()).or_insert(Tensor::zeros(1, DType::F32, &Device::Cpu).unwrap());
    candle_core::safetensors::save(&tensors, folder.path().join("model.safetensors")).unwrap();
    let weights = Weights::open(folder.path(), DType::F32, &Device::Cpu).unwrap();
    match load(&config(model, &changes), &weights) {
        Err(RuntimeError::Weights(WeightError::Unstated { name })) => assert_eq!(name, bias),
        other => panic!("{other:?}"),
    }
}

/// Of a block that layers share there is one copy, whatever each adds to it.
#[rstest]
#[case(false)]
#[case(true)]
fn what_layers_share_is_read_once(#[case] adapters: bool) {
    let kinds = ["linear_attention", "hybrid", "hybrid", "hybrid"];
    let changes = json!({
        "num_hidden_layers": 4, "layers_block_type": kinds, "hybrid_layer_ids": [1, 2, 3],
        "use_shared_attention_adapter": adapters,
    });
    let (folder, config) = (tempfile::TempDir::new().unwrap(), config("zamba2", &changes));
    let invented = Weights::invented(DType::F32, &Device::Cpu);
    load(&config, &invented).unwrap();
    invented.save_invented(&folder.path().join("model.safetensors")).unwrap();
    let loading = SessionOptions::default().loading;
    let weights = Weights::open(folder.path(), DType::F32, &Device::Cpu).unwrap().shown_in(loading.clone());
    load(&config, &weights).unwrap();
    let (read, all) = loading.bytes();
    assert_eq!(read, all);
}

/// Layers that a file has and the config does not are no secret.
#[test]
fn tensors_that_nobody_reads_are_named() {
    let unread = |layers: usize| {
        let weights = Weights::open(&fixture("llama"), DType::F32, &Device::Cpu).unwrap();
        load(&config("llama", &json!({ "num_hidden_layers": layers })), &weights).unwrap();
        weights.unread()
    };
    assert_eq!(unread(2), None);
    let said = unread(1).unwrap();
    assert!(said.contains("model.safetensors: 9 of 21 tensors are no part of the model that runs"), "{said}");
    assert!(said.contains("`model.layers.1.input_layernorm.weight`"), "{said}");
}

/// MiniMax states how many elements of a head are rotated; Hugging Face's class rotates all of them whatever it says.
#[rstest]
#[case(16, true)]
#[case(7, false)]
fn minimax_rotates_as_much_of_a_head_as_its_config_states(#[case] rotated: usize, #[case] same: bool) {
    let folder = fixture("minimax");
    let weights = Weights::open(&folder, DType::F32, &Device::Cpu).unwrap();
    let [all, some] = [json!({}), json!({ "rotary_dim": rotated })]
        .map(|changes| format!("{:?}", load(&config("minimax", &changes), &weights).unwrap()));
    assert_eq!(all == some, same);
}
