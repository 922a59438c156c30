//! GGUF files whose keys make caches that their architecture's usual ones do not have, held to what llama.cpp b11549 logged.

use cacheplan_planner::{EngineSpec, PlanRequest};
use cacheplan_transforms::{Model, ReadOptions};
use rstest::rstest;

use super::common::budget;

/// A file of these whole numbers, without tensors.
fn read(architecture: &str, numbers: &[(&str, u32)]) -> Model {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let mut file = b"GGUF\x03\0\0\0".to_vec();
    file.extend(0u64.to_le_bytes());
    file.extend((1 + numbers.len() as u64).to_le_bytes());
    file.extend([text("general.architecture"), 8u32.to_le_bytes().to_vec(), text(architecture)].concat());
    for (key, number) in numbers {
        file.extend([text(&format!("{architecture}.{key}")), 4u32.to_le_bytes().to_vec()].concat());
        file.extend(number.to_le_bytes());
    }
    let path = tempfile::Builder::new().suffix(".gguf").tempfile().unwrap();
    std::fs::write(path.path(), file).unwrap();
    Model::read(path.path(), &ReadOptions::default()).unwrap()
}

const DEEPSEEK2: &[(&str, u32)] = &[
    ("block_count", 3),
    ("embedding_length", 2048),
    ("attention.head_count", 16),
    ("attention.head_count_kv", 16),
    ("attention.kv_lora_rank", 512),
    ("attention.key_length", 192),
    ("attention.value_length", 128),
    ("rope.dimension_count", 64),
];
const PLAMO3: &[(&str, u32)] = &[
    ("block_count", 8),
    ("embedding_length", 2048),
    ("attention.head_count", 16),
    ("attention.head_count_kv", 4),
    ("attention.key_length", 192),
    ("attention.value_length", 64),
    ("attention.sliding_window", 1024),
];
const GEMMA2: &[(&str, u32)] = &[
    ("block_count", 6),
    ("embedding_length", 1024),
    ("attention.head_count", 8),
    ("attention.head_count_kv", 4),
    ("attention.key_length", 256),
    ("attention.value_length", 256),
    ("attention.sliding_window", 1024),
    ("attention.sliding_window_pattern", 3),
];

#[rstest]
#[case::a_key_for_every_head("deepseek2", DEEPSEEK2, 4096, 240)]
#[case::narrow_values("plamo3", PLAMO3, 4096, 16 + 42)]
#[case::every_third_layer("gemma2", GEMMA2, 8192, 128 + 48)]
fn llama_cpp_allocates_what_its_logs_say(
    #[case] architecture: &str,
    #[case] numbers: &[(&str, u32)],
    #[case] max_seq_len: u64,
    #[case] mebibytes: u64,
) {
    let engine: EngineSpec = "llama.cpp@b11549".parse().unwrap();
    let told = budget(&format!("max_seq_len = {max_seq_len}\nmax_batch_size = 2"));
    let request = PlanRequest::of(read(architecture, numbers)).with_budget(told).for_engine(engine);
    let predicted = request.predict(engine).unwrap();
    assert_eq!(predicted.kv_bytes, Some(mebibytes << 20));
}

/// What such a file means is latents, whoever multiplies them out.
#[test]
fn latents_are_planned_as_latents_without_an_engine() {
    let told = budget("max_seq_len = 4096\nmax_batch_size = 2");
    let plan = PlanRequest::of(read("deepseek2", DEEPSEEK2)).with_budget(told).plan().unwrap();
    assert_eq!(plan.totals.kv_bytes_per_token, 3 * (512 + 64) * 2);
}
