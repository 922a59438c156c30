//! Any text as the description of the made-up architecture of `docs/adding-a-model.md`.
#![no_main]

mod limits;

use cacheplan_transforms::{Model, ReadOptions};
use libfuzzer_sys::fuzz_target;

const CONFIG: &str = r#"{
  "model_type": "heron", "hidden_size": 1024, "vocab_size": 32000, "intermediate_size": 4096, "num_hidden_layers": 6,
  "mixer_types": ["scan", "scan", "look", "scan", "scan", "glance"], "layer_types": ["a", "b", "c", "d", "e", "f"],
  "num_attention_heads": 16, "num_key_value_heads": 4, "glance_tokens": 512, "sliding_window": 64,
  "scan": { "heads": 32, "state": 64, "conv": 4 }, "max_position_embeddings": 65536
}"#;

fuzz_target!(|text: &str| {
    let options = ReadOptions { descriptions: vec![text.to_owned()], ..ReadOptions::default() };
    limits::walk(|| Model::read_config("fuzzed", CONFIG, &options));
});
