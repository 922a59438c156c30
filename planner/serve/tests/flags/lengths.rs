//! The longest sequence, as a command or the model's config states it.

use cacheplan_planner::logs::{Fact, Logged};
use cacheplan_serve::{Models, Options, Starts, answer};
use cacheplan_transforms::{Model, ReadOptions};
use rstest::rstest;
use serde_json::{Map, Value};

use super::common::{launch, models, on};
use super::{SERVE, SGLANG, told};

/// vLLM finds the length by all blocks before 0.29.0, so that none is left for the null block, and by those that are stated.
#[rstest]
#[case("", "0.19.0", 21_840)]
#[case(" --num-gpu-blocks-override 100", "0.33.0", 99 * 16)]
fn a_length_that_is_found_is_one_that_it_starts_with(#[case] flags: &str, #[case] version: &str, #[case] length: u64) {
    let cache_bytes = Some(Logged::exact(3 << 30));
    let options = Options { version: Some(version.into()), cache_bytes, ..on("h100") };
    let command = format!("{SERVE} --max-model-len auto{flags}");
    let found = answer(&launch(&command), models("Qwen__Qwen3-8B"), &options).unwrap();
    assert_eq!((found.starts, found.facts[&Fact::MaxSeqLen]), (Starts::Yes, Logged::exact(length)));
}

#[test]
fn a_slot_of_llama_cpp_is_no_longer_than_the_model_was_trained_for() {
    let of = |command: &str| told(command, "Qwen__Qwen3-8B", "b11549").unwrap().tokens_each;
    assert_eq!(of("llama-server -m m -c 81920 -np 1"), Some(40_960));
    assert_eq!(of("llama-server -m m -c 81920 -np 2"), None);
    assert_eq!(of("llama-server -m m -c 81920 -np 1 --rope-scaling yarn --rope-scale 2"), None);
}

/// A config of its own, whose keys are `changes`.
fn changed(name: &str, changes: &str) -> Models {
    let file = format!("{}/../../tests/fixtures/configs/{name}.json", env!("CARGO_MANIFEST_DIR"));
    let mut config: Map<String, Value> = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    config.extend(serde_json::from_str::<Map<String, Value>>(changes).unwrap());
    let text = serde_json::to_string(&config).unwrap();
    Model::read_config("config.json", &text, &ReadOptions::default()).unwrap().into()
}

const YARN: &str =
    r#"{"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}"#;

const LINEAR: &str = r#"{"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 4.0}}"#;

const LONGROPE: &str = r#"{"max_position_embeddings": 131072, "original_max_position_embeddings": 4096,
    "rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [2.0]}}"#;

const SHORTER: &str = r#"{"max_position_embeddings": 8192, "max_sequence_length": 16384}"#;

const NONE: &str = r#"{"max_position_embeddings": null}"#;

const TRTLLM: &str = "trtllm-serve m";

#[rstest]
#[case(SERVE, "0.24.0", YARN, 131_072)]
#[case(SERVE, "0.33.0", YARN, 40_960)]
#[case(SERVE, "0.24.0", LINEAR, 16_384)]
#[case(SERVE, "0.24.0", LONGROPE, 4096)]
#[case(SERVE, "0.11.0", LONGROPE, 131_072)]
#[case("vllm serve m --max-model-len 131072", "0.24.0", LONGROPE, 131_072)]
#[case(SERVE, "0.24.0", SHORTER, 8192)]
#[case(SERVE, "0.24.0", NONE, 32_768)]
#[case(SGLANG, "0.5.23", YARN, 40_960)]
#[case(SGLANG, "0.5.23", LINEAR, 16_384)]
#[case(SGLANG, "0.5.23", SHORTER, 16_384)]
#[case(TRTLLM, "1.2.0", LINEAR, 16_384)]
#[case(TRTLLM, "1.2.0", YARN, 40_960)]
fn the_longest_sequence_is_the_config_s_by_the_engine_s_rule(
    #[case] command: &str,
    #[case] version: &str,
    #[case] changes: &str,
    #[case] tokens: u64,
) {
    let options = Options { version: Some(version.into()), cache_bytes: Some(Logged::exact(60 << 30)), ..on("h100") };
    let answer = answer(&launch(command), changed("Qwen__Qwen3-8B", changes), &options).unwrap();
    assert_eq!(answer.limits.max_seq_len, tokens);
}

/// Slots that share 100,096 cells, none of which takes more than 40,960.
#[test]
fn slots_of_llama_cpp_that_share_cells_divide_them() {
    let found = told("llama-server -m m -c 100000", "Qwen__Qwen3-8B", "b11549").unwrap();
    assert_eq!((found.tokens_each, found.sequences), (Some(40_960), Some(Logged::exact(2))));
    assert_eq!(found.facts[&Fact::MaxSeqLen], Logged::exact(100_096));
}
