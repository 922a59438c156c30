//! A model is read once: a decoder keeps what is planned, however the model was told.

use std::path::{Path, PathBuf};

use cacheplan_handlers::{Growth, Kind};
use cacheplan_kernels::Backend;
use cacheplan_managers::book::{StepMetadata, Work};
use cacheplan_planner::Budget;
use cacheplan_runtime::{CacheUse, ConfigError, Decoder, RuntimeError, Session, SessionOptions, Weights};
use cacheplan_transforms::{Assumption, Model, PassContext, ReadOptions, Resources};
use candle_core::{DType, Device};
use rstest::rstest;
use serde_json::{Map, Value, json};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures")
}

fn read(config: &Value, assume: &[String]) -> Model {
    let assume = assume.iter().map(|text| text.parse::<Assumption>().unwrap()).collect();
    Model::read_config("config.json", &config.to_string(), &ReadOptions { assume, ..ReadOptions::default() }).unwrap()
}

/// How many layers from the first on have all combinations of blocks that the model has.
fn layers_that_show_all(model: &Model) -> usize {
    let is_first = |index: &usize| model.layers[..*index].iter().all(|one| one.blocks != model.layers[*index].blocks);
    (0..model.layers.len()).rfind(is_first).unwrap() + 1
}

/// Head counts are divided by what all of them are multiples of, sizes of heads by 16, widths by the product.
const HEADS: [&str; 10] = [
    "num_attention_heads",
    "num_key_value_heads",
    "mamba_n_heads",
    "n_mamba_heads",
    "mamba_num_heads",
    "n_groups",
    "mamba_n_groups",
    "mamba_ngroups",
    "linear_num_key_heads",
    "linear_num_value_heads",
];
const HEAD_SIZES: [&str; 14] = [
    "head_dim",
    "attention_head_dim",
    "mamba_d_head",
    "mamba_headdim",
    "mamba_head_dim",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "mamba_dt_rank",
    "time_step_rank",
];
const WIDTHS: [&str; 10] = [
    "hidden_size",
    "intermediate_size",
    "moe_intermediate_size",
    "shared_intermediate_size",
    "shared_expert_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "moe_latent_size",
    "attention_hidden_size",
    "mamba_d_ssm",
    "block_ff_dim",
];
const STATES: [&str; 3] = ["state_size", "mamba_d_state", "ssm_state_size"];
const EXPERTS: [&str; 3] = ["num_experts", "n_routed_experts", "num_local_experts"];
const WINDOWS: [&str; 1] = ["sliding_window"];
const LAYER_LISTS: [&str; 4] = ["attn_layer_indices", "full_attn_idxs", "hybrid_layer_ids", "mlp_only_layers"];

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The config with few layers, and every size divided.
fn shrunk(mut config: Map<String, Value>, model: &Model) -> Map<String, Value> {
    let (all, kept) = (model.layers.len(), layers_that_show_all(model));
    let numbers = |config: &Map<String, Value>, keys: &[&str]| -> Vec<u64> {
        keys.iter().filter_map(|key| config.get(*key)?.as_u64()).filter(|&number| number > 0).collect()
    };
    let linear_heads = config.get("linear_attn_config").and_then(|linear| linear["num_heads"].as_u64());
    let counts: Vec<u64> = numbers(&config, &HEADS).into_iter().chain(linear_heads).collect();
    let heads = counts.iter().copied().fold(0, gcd).max(1);
    // At least one kind of heads is left with more than one.
    let heads = if heads > 1 && counts.iter().all(|&count| count == heads) { heads / 2 } else { heads };
    for (key, value) in &mut config {
        let key = key.as_str();
        match value {
            Value::Array(list) if list.len() == all => list.truncate(kept),
            Value::Array(list) if LAYER_LISTS.contains(&key) => {
                list.retain(|layer| layer.as_u64().is_some_and(|layer| layer < kept as u64));
            }
            Value::String(text) if text.len() == all => text.truncate(kept),
            Value::Object(counts) if key == "layer_counts" => {
                let mut left = kept as u64;
                for count in counts.values_mut() {
                    let taken = count.as_u64().unwrap().min(left);
                    (left, *count) = (left - taken, json!(taken));
                }
            }
            Value::Object(linear) if key == "linear_attn_config" => {
                for list in ["full_attn_layers", "kda_layers"] {
                    let Some(Value::Array(list)) = linear.get_mut(list) else { continue };
                    list.retain(|layer| layer.as_u64().is_some_and(|layer| layer <= kept as u64));
                }
                for (key, by) in [("num_heads", heads), ("head_dim", 16)] {
                    linear[key] = json!(linear[key].as_u64().unwrap() / by);
                }
            }
            Value::Number(number) => {
                let Some(size) = number.as_u64().filter(|&size| size > 0) else { continue };
                let smaller = match key {
                    _ if HEADS.contains(&key) => size / heads,
                    _ if HEAD_SIZES.contains(&key) => (size / 16).max(1),
                    _ if WIDTHS.contains(&key) => size / (16 * heads),
                    _ if STATES.contains(&key) => (size / 8).max(2),
                    _ if EXPERTS.contains(&key) => size.min(16),
                    _ if WINDOWS.contains(&key) => 8,
                    "num_experts_per_tok" | "num_experts_per_token" => size.min(2),
                    "num_hidden_layers" => kept as u64,
                    "vocab_size" => 32,
                    _ => size,
                };
                *value = json!(smaller);
            }
            _ => {}
        }
    }
    // Where hybrid layers follow from the number of layers, they are listed instead.
    let hybrid: Vec<usize> = (0..kept).filter(|&layer| model.layers[layer].kind == "hybrid").collect();
    if !hybrid.is_empty() && !config.contains_key("layers_block_type") {
        config.insert("hybrid_layer_ids".to_owned(), json!(hybrid));
    }
    // Whatever divides layers into draft layers has none.
    config.insert("num_nextn_predict_layers".to_owned(), json!(0));
    config.insert("torch_dtype".to_owned(), json!("float32"));
    config.remove("dtype");
    config.remove("quantization_config");
    config
}

/// Reconstructed configs have only the keys that decide cache sizes; those of the tiny model of the same type stand in.
fn completed(mut config: Map<String, Value>, model_type: &str) -> Map<String, Value> {
    let folder = fixtures().join("models").join(model_type.trim_end_matches("_text"));
    let Ok(text) = std::fs::read_to_string(folder.join("config.json")) else { return config };
    let tiny: Map<String, Value> = serde_json::from_str(&text).unwrap();
    let decides = |key: &str| {
        HEADS.contains(&key)
            || HEAD_SIZES.contains(&key)
            || STATES.contains(&key)
            || LAYER_LISTS.contains(&key)
            || ["layer_types", "layers", "pattern", "d_conv", "_kernel", "window", "expand", "period", "offset"]
                .iter()
                .any(|part| key.contains(part))
    };
    for (key, value) in tiny {
        if !decides(&key) && !config.contains_key(&key) {
            config.insert(key, value);
        }
    }
    config
}

/// The model's caches as they are collected for a plan, in the words of a decoder, and in an order of their own.
fn planned(model: &Model) -> Vec<CacheUse> {
    let mut model = model.clone();
    let resources: Resources = model.graph.collect(&PassContext::default()).unwrap().resources;
    let uses = resources.iter().map(|resource| CacheUse {
        layer: resource.layer.unwrap(),
        kind: resource.handler.kind().clone(),
        shape: resource.handler.shape().iter().map(|dim| dim.size).collect(),
        window: match resource.handler.growth() {
            Growth::Paged { window, .. } => window.map(u64::from),
            _ => None,
        },
        stride: match resource.handler.growth() {
            Growth::Paged { stride, .. } => stride,
            _ => 1,
        },
    });
    sorted(uses.collect())
}

fn sorted(mut uses: Vec<CacheUse>) -> Vec<CacheUse> {
    uses.sort_by_key(|cache| (cache.layer, cache.kind.to_string(), cache.shape.clone()));
    uses
}

/// Runs one prompt and one more token through real caches; gives what the decoder keeps.
fn run(model: &Model, name: &str) -> Result<Vec<CacheUse>, RuntimeError> {
    let budget = "max_seq_len = 64\nmax_batch_size = 2\nmax_num_tokens = 32\ntokens_per_block = 8\n";
    let budget = Budget::from_toml(budget, "test").unwrap();
    let options = SessionOptions { budget, ..SessionOptions::default() };
    let invented = |model: &Model, on: &Backend| Decoder::load(model, &Weights::invented(DType::F32, on));
    let mut session = Session::new(model.clone(), options, invented)?;
    let (decoder, caches) = session.parts();
    let caches = caches.manager_mut()?;
    let sequence = caches.admit(12)?;
    let mut metadata = StepMetadata::default();
    for tokens in [12, 1] {
        caches.step(&[Work { sequence, tokens }], &mut metadata)?;
        let logits = decoder.forward(&vec![1; tokens as usize], &[tokens - 1], caches, &metadata)?;
        let logits = logits.flatten_all()?.to_vec1::<f32>()?;
        assert!(logits.iter().all(|logit| logit.is_finite()), "{name}");
    }
    Ok(sorted(decoder.caches()))
}

/// What to assume so that the caches change: the kind of a layer, or else the key heads or the state.
fn assumptions(model: &Model) -> Vec<String> {
    let kinds: Vec<&str> = model.layers.iter().map(|layer| layer.kind.as_str()).collect();
    let other = |kind: &str| kinds.iter().find(|other| **other != kind).copied();
    if let Some(kind) = other(kinds[0]) {
        return vec![format!("layer.0={kind}")];
    }
    let fact = |what: &str| model.facts.iter().find(|fact| fact.what == what);
    let changed = [
        "attention.num_kv_heads",
        "sliding_attention.num_kv_heads",
        "mla.kv_lora_rank",
        "mamba1.d_state",
        "mamba2.d_state",
    ];
    let fact = changed.iter().find_map(|what| fact(what)).unwrap();
    let key = if fact.assumed { "num_key_value_heads" } else { fact.from.split(", ").next().unwrap() };
    let value: u64 = fact.value.parse().unwrap();
    let heads = model.facts.iter().find(|other| other.what.ends_with("attention.num_heads"));
    let changed = match heads {
        // As many key heads as heads, or one.
        Some(heads) if fact.what.ends_with("num_kv_heads") => {
            let heads = heads.value.parse().unwrap();
            if value == heads { 1 } else { heads }
        }
        _ => 2 * value,
    };
    vec![format!("{key}={changed}")]
}

#[test]
fn a_decoder_keeps_what_is_planned_with_and_without_assumptions() {
    let folder = tempfile::TempDir::new().unwrap();
    // A safetensors file without tensors.
    std::fs::write(folder.path().join("model.safetensors"), b"\x02\0\0\0\0\0\0\0{}").unwrap();
    let no_weights = Weights::open(folder.path(), DType::F32, &Device::Cpu).unwrap();
    let mut decoders = Vec::new();
    for entry in std::fs::read_dir(fixtures().join("configs")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let full = Model::read(&path, &ReadOptions::default()).unwrap();
        let loaded = Decoder::load(&full, &no_weights);
        if matches!(loaded, Err(RuntimeError::Config(ConfigError::Unsupported { key: "model_type", .. }))) {
            continue;
        }
        let config = completed(shrunk(full.config.clone(), &full), &full.info.model_type);
        let config = Value::Object(config);
        let model = read(&config, &[]);
        let plain = run(&model, &name).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(plain, planned(&model), "{name}");

        let assume = assumptions(&model);
        let model = read(&config, &assume);
        let assumed = run(&model, &name).unwrap_or_else(|error| panic!("{name}, {assume:?}: {error}"));
        assert_eq!(assumed, planned(&model), "{name}, {assume:?}");
        assert_ne!(assumed, plain, "{name}, {assume:?}");
        decoders.push(name);
    }
    assert!(decoders.len() >= 38, "{decoders:?}");
}

/// The config of a tiny model with some keys set, or removed where they are null.
fn tiny(model: &str, changes: &Value) -> Value {
    let text = std::fs::read_to_string(fixtures().join("models").join(model).join("config.json")).unwrap();
    let mut config: Map<String, Value> = serde_json::from_str(&text).unwrap();
    for (key, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => config.remove(key),
            value => config.insert(key.clone(), value.clone()),
        };
    }
    Value::Object(config)
}

/// What a config may leave out, or say in another way, is taken by the plan and by the decoder in the same way.
#[rstest]
#[case::key_heads_by_default("llama", json!({
    "model_type": "mistral", "num_attention_heads": 16, "num_key_value_heads": null, "sliding_window": null,
}), &[], 0, Kind::KvPaged, &[2, 8, 16])]
#[case::head_size_by_default("qwen3", json!({ "head_dim": null }), &[], 0, Kind::KvPaged, &[2, 2, 128])]
#[case::windows_by_default("qwen3", json!({
    "model_type": "qwen3_moe", "use_sliding_window": true, "layer_types": null, "sliding_window": null,
}), &[], 0, Kind::KvPaged, &[2, 2, 32])]
#[case::listed_kinds("jamba", json!({
    "layers_block_type": ["attention", "mamba"], "num_hidden_layers": 2, "attn_layer_period": null, "attn_layer_offset": null,
}), &[], 0, Kind::KvPaged, &[2, 2, 16])]
#[case::an_assumed_kind("qwen3_next", json!({}), &["layer.0=full_attention"], 0, Kind::KvPaged, &[2, 2, 16])]
#[case::assumed_key_heads("llama", json!({}), &["num_key_value_heads=1"], 0, Kind::KvPaged, &[2, 1, 16])]
fn plan_and_decoder_agree(
    #[case] model: &str,
    #[case] changes: Value,
    #[case] assume: &[&str],
    #[case] layer: u32,
    #[case] kind: Kind,
    #[case] shape: &[u64],
) {
    let assume: Vec<String> = assume.iter().map(|text| (*text).to_owned()).collect();
    let read = read(&tiny(model, &changes), &assume);
    let kept = run(&read, model).unwrap();
    assert_eq!(kept, planned(&read));
    let cache = kept.iter().find(|cache| cache.layer == layer && cache.kind == kind);
    assert_eq!(cache.map(|cache| cache.shape.as_slice()), Some(shape));
}

/// A Llama that has its own names for everything.
const HERON: &str = r#"{
    "model_type": "heron", "torch_dtype": "float32", "width": 32, "vocab_size": 24, "ffn_width": 48, "depth": 2,
    "heads": { "query": 4, "key": 2 }, "max_position_embeddings": 64, "norm": { "epsilon": 1e-6 }
}"#;

const DESCRIPTION: &str = r#"model_types = ["heron"]
layers = "depth"
hidden_size = "width"
decoder = "llama"

[decoder_keys]
rms_norm_eps = "norm.epsilon"

[decoder_values]
hidden_act = "silu"

[blocks.attention]
num_heads = "heads.query"
num_kv_heads = "heads.key"
head_dim = "width / heads.query"

[blocks.feed_forward]
dense_size = "ffn_width"
"#;

fn described(description: &str) -> Model {
    let descriptions = vec![description.to_owned()];
    Model::read_config("config.json", HERON, &ReadOptions { descriptions, ..ReadOptions::default() }).unwrap()
}

#[test]
fn a_llama_by_another_name_runs_by_its_description_alone() {
    let model = described(DESCRIPTION);
    let kept = run(&model, "heron").unwrap();
    assert_eq!(kept, planned(&model));
    assert_eq!(kept[1].shape, [2, 2, 8]);
}

#[rstest]
#[case::no_decoder("decoder = \"llama\"", "", "`model_type` is `heron`")]
#[case::unknown_decoder("\"llama\"", "\"stork\"", "`model_type` is `stork`")]
#[case::no_epsilon("norm.epsilon", "norm.eps", "missing field `rms_norm_eps`")]
#[case::no_gate("dense_size", "matrices = \"2\"\ndense_size", "layer 0 is attention (attention, feed_forward)")]
#[case::other_values("head_dim", "value_dim = \"4\"\nhead_dim", "attention.value_dim = 4 (the architecture's default)")]
fn what_its_decoder_cannot_run_is_refused(#[case] from: &str, #[case] to: &str, #[case] said: &str) {
    assert!(DESCRIPTION.contains(from));
    let error = run(&described(&DESCRIPTION.replace(from, to)), "heron").unwrap_err();
    assert!(matches!(error, RuntimeError::Config(_) | RuntimeError::Layer { .. }), "{error}");
    assert!(error.to_string().contains(said), "{error}");
}

/// A decoder for one model, over caches that were planned for another.
#[test]
fn a_decoder_that_keeps_other_caches_than_are_planned_is_refused() {
    let [planned, loaded] = [2, 1].map(|heads| read(&tiny("llama", &json!({ "num_key_value_heads": heads })), &[]));
    let other = |_: &Model, on: &Backend| Decoder::load(&loaded, &Weights::invented(DType::F32, on));
    let error = Session::new(planned, SessionOptions::default(), other).unwrap_err();
    assert!(matches!(error, RuntimeError::Unplanned(_)), "{error}");
    assert_eq!(error.to_string(), "layer 0 keeps kv_paged [2, 1, 16], and planned is kv_paged [2, 2, 16]");
}

#[test]
fn a_gguf_of_an_architecture_without_a_decoder_tells_its_layers_and_is_refused_by_name() {
    let file = fixtures().join("gguf/jamba.gguf");
    let model = Model::read(&file, &ReadOptions::default()).unwrap();
    assert_eq!(model.layers.len() as u32, model.info.layers);
    assert!(model.layers.iter().all(|layer| !layer.blocks.is_empty()));
    let error = Session::open(&file, SessionOptions::default()).unwrap_err();
    assert!(matches!(&error, RuntimeError::Config(_)) && error.exit_code() == 4, "{error}");
    assert!(error.to_string().contains("`model_type` is `gguf:jamba`; the runtime knows bamba"), "{error}");
}
