//! What next season's models keep is declared in a description: no Rust is written for one.

mod support;

use cacheplan_handlers::{Growth, Kind};
use cacheplan_transforms::{Model, PassContext, ReadOptions, Resource, Resources};
use serde_json::{Value, json};

fn comet() -> Value {
    json!({
        "model_type": "comet", "torch_dtype": "bfloat16", "hidden_size": 64, "num_hidden_layers": 6, "vocab_size": 100,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 128,
        "sliding_window": 8, "loops": 3, "looped_layers": [2, 3], "compress_ratios": [0, 4, 4, 2, 2, 1],
        "latent_sources": [1, 3, 5], "latent_dim": 32, "region_layers": [4], "region": 4, "region_dim": 32,
        "memory_sources": [0], "memory_rows": 4, "ngram_layers": [1], "ngram_rows": 1000,
    })
}

fn read(config: &Value) -> Result<Model, String> {
    let descriptions = vec![include_str!("descriptions/comet.toml").to_owned()];
    let options = ReadOptions { descriptions, ..ReadOptions::default() };
    Model::read_config("config.json", &config.to_string(), &options).map_err(|error| error.to_string())
}

fn resources(config: &Value) -> Resources {
    read(config).unwrap().graph.collect(&PassContext::default()).unwrap().resources
}

/// Owner, tokens for which there is one unit, bytes of it, and who else reads it.
fn rows(resources: &Resources, kind: &Kind) -> Vec<(u32, u32, u64, Vec<u32>)> {
    let stride = |resource: &Resource| match resource.handler.growth() {
        Growth::Paged { stride, .. } => stride,
        _ => 0,
    };
    let of_kind = resources.of_kind(kind);
    of_kind
        .map(|resource| {
            (resource.layer.unwrap(), stride(resource), resource.handler.unit_bytes(), resource.shared_by.clone())
        })
        .collect()
}

#[test]
fn a_description_declares_caches_of_every_growth() {
    let resources = resources(&comet());
    // Keys and values of 2 heads of 16 in bf16, of each loop of the layers that loop.
    let near = |layer| (layer, 1, 2 * 2 * 16 * 2, vec![]);
    assert_eq!(rows(&resources, &Kind::KvPaged), [0, 1, 2, 2, 2, 3, 3, 3, 4, 5].map(near));
    // 32 elements of half a byte, and a scale for 16.
    let latents = [(1, 4, 18, vec![2]), (3, 2, 18, vec![4]), (5, 1, 18, vec![])];
    assert_eq!(rows(&resources, &Kind::CompressedLatent), latents);
    // 8 rows of 64 in f32; 3 rows of 64 in bf16.
    let rings = [(1, 0, 8 * 64 * 4, vec![]), (3, 0, 8 * 64 * 4, vec![]), (4, 0, 3 * 64 * 2, vec![])];
    assert_eq!(rows(&resources, &Kind::Ring), rings);
    assert_eq!(rows(&resources, &Kind::IndexKey), [(4, 4, 32, vec![])]);
    assert_eq!(rows(&resources, &Kind::State), [(0, 0, 4 * 8 * 4, vec![1, 2, 3, 4, 5])]);
    assert_eq!(resources.len(), 10 + 3 + 3 + 1 + 1);
}

#[test]
fn a_table_is_a_weight_of_its_layer() {
    let bytes = |ngram_layers: Value| {
        let mut config = comet();
        config["ngram_layers"] = ngram_layers;
        read(&config).unwrap().info.weights.unwrap().bytes
    };
    assert_eq!(bytes(json!([1])) - bytes(json!([])), 1000 * 16 * 2);
}

#[test]
fn what_a_layer_reads_must_be_there() {
    let refused = |key: &str, value: Value| {
        let mut config = comet();
        config[key] = value;
        read(&config).unwrap_err()
    };
    assert!(refused("memory_sources", json!([2])).contains("memory.shares_layer"));
    assert!(refused("latent_sources", json!([1])).contains("layer 1, whose `latents` it reads, has one for 4 tokens"));
    assert!(refused("looped_layers", json!([6])).contains("`looped_layers` is 6; layers from 0 to 5"));
    assert!(refused("swa_rows", json!(4)).contains("`swa_rows`"));
}
