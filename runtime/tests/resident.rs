//! A run holds its weights, its planned caches, and little else. Alone in its process, whose allocations it counts: how
//! much more is resident depends on the size of the machine's pages.

use std::collections::HashMap;

use cacheplan_managers::CountingAllocator;
use cacheplan_planner::Budget;
use cacheplan_runtime::{Request, Session, SessionOptions};
use candle_core::{DType, Device, Tensor};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const CONFIG: &str = r#"{
    "model_type": "llama", "dtype": "bfloat16", "vocab_size": 16384, "hidden_size": 512, "intermediate_size": 2048,
    "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "hidden_act": "silu",
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 2048, "tie_word_embeddings": true
}"#;

#[test]
fn memory_beyond_weights_and_caches_is_less_than_a_tenth_of_them() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), CONFIG).unwrap();
    {
        let mut tensors = HashMap::new();
        let mut matrix = |name: String, rows: usize, columns: usize| {
            let numbers = Tensor::rand(-0.05f32, 0.05, (rows, columns), &Device::Cpu).unwrap();
            tensors.insert(name, numbers.to_dtype(DType::BF16).unwrap());
        };
        matrix("model.embed_tokens.weight".to_owned(), 16384, 512);
        for layer in 0..8 {
            let name = |part: &str| format!("model.layers.{layer}.{part}.weight");
            matrix(name("self_attn.q_proj"), 512, 512);
            matrix(name("self_attn.k_proj"), 128, 512);
            matrix(name("self_attn.v_proj"), 128, 512);
            matrix(name("self_attn.o_proj"), 512, 512);
            matrix(name("mlp.gate_proj"), 2048, 512);
            matrix(name("mlp.up_proj"), 2048, 512);
            matrix(name("mlp.down_proj"), 512, 2048);
        }
        let ones = Tensor::ones(512, DType::BF16, &Device::Cpu).unwrap();
        let norms = (0..8).flat_map(|i| {
            ["input_layernorm", "post_attention_layernorm"].map(|n| format!("model.layers.{i}.{n}.weight"))
        });
        tensors.extend(norms.chain(["model.norm.weight".to_owned()]).map(|name| (name, ones.clone())));
        candle_core::safetensors::save(&tensors, folder.path().join("model.safetensors")).unwrap();
    }
    let weights = std::fs::metadata(folder.path().join("model.safetensors")).unwrap().len();

    CountingAllocator::reset_peak();
    let before = CountingAllocator::current().unwrap();
    let budget = "max_seq_len = 2048\nmax_batch_size = 2\nmax_num_tokens = 32\ntokens_per_block = 16\n";
    let budget = Budget::from_toml(budget, "test").unwrap();
    let mut session = Session::open(folder.path(), SessionOptions { budget, ..SessionOptions::default() }).unwrap();
    let request = Request::new((1..40).collect(), 8);
    session.generate(&[request], false).unwrap();
    let caches: u64 = session.plan().pools.iter().map(|pool| pool.bytes).sum();
    let grown = CountingAllocator::peak().unwrap() - before;
    assert!(weights > 60_000_000, "{weights}");
    assert!(grown >= caches, "{grown} bytes, with caches of {caches}");
    assert!(10 * grown < 11 * (weights + caches), "{grown} bytes for weights of {weights} and caches of {caches}");
}
