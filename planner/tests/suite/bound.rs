//! The bound of speed, counted anew by hand and by trying every choice.

use std::path::Path;

use cacheplan_planner::bound::{SpeedBound, StepBound};
use cacheplan_planner::{Budget, DeviceInfo, EngineSpec, ModelCaches, Parallel, PlanRequest, WeightBits};
use cacheplan_transforms::{Model, ReadOptions};
use rstest::rstest;

/// Two layers of 64 channels, 4 query and 2 key heads of 16 channels, with 128 channels inside; 256 words apart from the head.
const SMALL: &str = r#""num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 128, "vocab_size": 256, "max_position_embeddings": 8192, "torch_dtype": "bfloat16",
    "tie_word_embeddings": false"#;
/// Bytes of attention of one layer, of the head, and of all caches for each token: 16 bits each.
const ATTENTION: f64 = 2.0 * (64.0 * 64.0 * 2.0 + 64.0 * 32.0 * 2.0);
const DENSE: f64 = 2.0 * 3.0 * 64.0 * 128.0;
const HEAD: f64 = 2.0 * 256.0 * 64.0;
const TOKEN_OF_LAYER: f64 = 2.0 * 2.0 * 2.0 * 16.0;
const H100: f64 = 3350e9;

fn read(config: &str) -> Model {
    Model::read_config("config.json", config, &ReadOptions::default()).unwrap()
}

fn fixture(name: &str) -> Model {
    let file = format!("{}/../tests/fixtures/configs/{name}.json", env!("CARGO_MANIFEST_DIR"));
    Model::read(Path::new(&file), &ReadOptions::default()).unwrap()
}

fn bound(model: Model, device: &str, context: u64, sequences: u64, parallel: Parallel) -> SpeedBound {
    let mut budget = Budget::default();
    (budget.max_seq_len, budget.max_batch_size) = (Some(context), Some(sequences));
    budget.parallel = parallel;
    let request = PlanRequest::of(model).with_budget(budget).with_devices(device.parse::<DeviceInfo>().unwrap());
    request.bound(&request.ranks().unwrap().stages).unwrap()
}

fn bytes(step: &StepBound, name: &str) -> f64 {
    step.terms.iter().filter(|term| term.name == name).map(|term| term.bytes).sum()
}

fn near(found: f64, expected: f64) {
    assert!((found / expected - 1.0).abs() < 1e-9, "{found} and not {expected}");
}

#[test]
fn a_step_reads_active_weights_once_and_the_cache_of_every_sequence() {
    let found = bound(read(&format!("{{\"model_type\": \"llama\", {SMALL}}}")), "h100", 1024, 8, Parallel::default());
    let weights = 2.0 * (ATTENTION + DENSE) + HEAD;
    let cache = 2.0 * TOKEN_OF_LAYER * 1024.0;
    near(found.one.seconds, (weights + cache) / H100);
    near(found.all.seconds, (weights + 8.0 * cache) / H100);
    near(found.tokens_per_second, 8.0 * H100 / (weights + 8.0 * cache));
    assert_eq!((found.one.bound_by, found.all.sequences, found.context), ("memory", 8, 1024));
    // Every element of 16 bits is multiplied and added once for each token; of a prompt only the last token has a head.
    let multiplied = |step: &StepBound, name: &str| {
        step.terms.iter().filter(|term| term.name == name).map(|term| term.operations).sum::<f64>()
    };
    near(multiplied(&found.all, "dense blocks"), 8.0 * 2.0 * DENSE);
    near(multiplied(&found.prompt, "dense blocks"), 1024.0 * 2.0 * DENSE);
    near(multiplied(&found.prompt, "head"), HEAD);
    // Token by token: each of four heads of two layers with every key and value until there.
    let mut pairs = 0.0;
    for token in 1..=1024 {
        pairs += f64::from(token);
    }
    near(multiplied(&found.prompt, "attention"), pairs * 2.0 * 4.0 * 2.0 * (16.0 + 16.0));
}

/// 32,768 tokens of 36 layers with 32 heads of 128: each pair of two tokens takes two products of 128 numbers and their sums,
/// in the width that keys and values are kept in.
#[rstest]
#[case("", 989.5e12)]
#[case("[dtypes]\nkv = 'fp8'\n", 1979e12)]
fn a_prompt_multiplies_every_weight_and_every_pair_of_its_tokens(#[case] dtypes: &str, #[case] attending: f64) {
    let budget = Budget::from_toml(&format!("max_seq_len = 32768\nmax_batch_size = 1\n{dtypes}"), "b.toml").unwrap();
    let request = PlanRequest::of(fixture("Qwen__Qwen3-8B")).with_budget(budget);
    let request = request.with_devices("h100".parse::<DeviceInfo>().unwrap());
    let found = request.bound(&request.ranks().unwrap().stages).unwrap().prompt;
    let (tokens, width) = (32_768.0, 4096.0);
    let layer = width * (2.0 * width + 2.0 * 1024.0) + 3.0 * width * 12_288.0;
    let weights = 2.0 * (36.0 * layer * tokens + 151_936.0 * width);
    let pairs = tokens * (tokens + 1.0) / 2.0 * (2.0 * 2.0 * 128.0) * 32.0 * 36.0;
    let seconds = weights / 989.5e12 + pairs / attending;
    assert!((found.seconds / seconds - 1.0).abs() < 1e-4, "{} and not {seconds}", found.seconds);
    assert_eq!(found.bound_by, "products");
}

/// A stage begins when the one before has sent its first token, and ranks that divide a prompt each read all weights.
#[rstest]
#[case(Parallel { pp: 3, ..Parallel::default() })]
#[case(Parallel { cp: 2, ..Parallel::default() })]
#[case(Parallel { tp: 2, pp: 2, ..Parallel::default() })]
fn a_prompt_of_a_token_alone_takes_as_long_as_a_token(#[case] parallel: Parallel) {
    let found = bound(fixture("meta-llama__Llama-3.1-8B-Instruct"), "h100", 1, 1, parallel);
    // But for the cache of that token.
    assert!((found.prompt.seconds / found.one.seconds - 1.0).abs() < 1e-3, "{found:?}");
}

#[test]
fn a_window_is_read_no_further() {
    let config = format!("{{\"model_type\": \"mistral\", \"sliding_window\": 100, {SMALL}}}");
    let found = bound(read(&config), "h100", 1024, 1, Parallel::default());
    near(bytes(&found.one, "caches"), 2.0 * TOKEN_OF_LAYER * 100.0);
}

/// Every way in which `tokens` tokens go to 2 of 4 experts each.
fn distinct(tokens: u32) -> f64 {
    let pairs: Vec<u32> = (0u32..16).filter(|chosen| chosen.count_ones() == 2).collect();
    let mut touched = vec![0u32];
    for _ in 0..tokens {
        touched = touched.iter().flat_map(|before| pairs.iter().map(move |chosen| before | chosen)).collect();
    }
    touched.iter().map(|of| f64::from(of.count_ones())).sum::<f64>() / touched.len() as f64
}

#[rstest]
#[case(1, 2.0)]
#[case(2, 3.0)]
#[case(5, distinct(5))]
fn a_batch_touches_as_many_experts_as_choices_do_on_average(#[case] tokens: u32, #[case] touched: f64) {
    near(distinct(tokens), touched);
    let config =
        format!("{{\"model_type\": \"mixtral\", \"num_local_experts\": 4, \"num_experts_per_tok\": 2, {SMALL}}}");
    let found = bound(read(&config), "h100", 1024, tokens.into(), Parallel::default());
    near(bytes(&found.all, "routed experts"), 2.0 * DENSE * touched);
}

#[test]
fn states_are_read_and_written() {
    let model = fixture("nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16");
    let found = bound(model, "h100", 4096, 4, Parallel::default());
    // 6 KiB of keys and values for each token, and 23 layers with 2 MiB and 36 KiB of states.
    let states = 23.0 * f64::from((2 << 20) + (36 << 10));
    near(bytes(&found.one, "caches"), 4096.0 * 6144.0 + 2.0 * states);
}

/// Two devices are at most twice as fast, and neither more sequences nor shorter ones are slower.
#[rstest]
#[case("Qwen__Qwen3-32B", "h200")]
#[case("nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "b200")]
fn bounds_follow_devices_sequences_and_context(#[case] config: &str, #[case] device: &str) {
    let of = |context, sequences, tp| {
        bound(fixture(config), device, context, sequences, Parallel { tp, ..Parallel::default() })
    };
    let (one, two) = (of(4096, 4, 1), of(4096, 4, 2));
    assert!(two.tokens_per_second <= 2.0 * one.tokens_per_second * (1.0 + 1e-9));
    assert!(two.tokens_per_second > one.tokens_per_second && two.prompt.seconds < one.prompt.seconds);
    assert!(of(4096, 8, 1).tokens_per_second > one.tokens_per_second);
    assert!(of(2048, 4, 1).tokens_per_second > one.tokens_per_second);
    // A replica more does as much again.
    let replicas = bound(fixture(config), device, 4096, 4, Parallel { dp: 2, ..Parallel::default() });
    near(replicas.tokens_per_second, 2.0 * one.tokens_per_second);
    // A pipeline of two does at most twice as much, and a sequence alone is no faster.
    let stages = bound(fixture(config), device, 4096, 4, Parallel { pp: 2, ..Parallel::default() });
    assert!(stages.tokens_per_second <= 2.0 * one.tokens_per_second * (1.0 + 1e-9));
    near(stages.alone_per_second(), one.alone_per_second());
}

#[test]
fn without_rates_there_is_no_bound() {
    let request = |device: &str| {
        let model = fixture("meta-llama__Llama-3.1-8B-Instruct");
        PlanRequest::of(model).with_devices(device.parse::<DeviceInfo>().unwrap())
    };
    for (device, known) in [("24GiB", false), ("h20", false), ("l4", true), ("m4-max", true)] {
        let request = request(device);
        assert_eq!(request.bound(&request.ranks().unwrap().stages).is_some(), known, "{device}");
    }
}

#[test]
fn fewer_bits_are_those_of_the_layers_alone() {
    let model = read(&format!("{{\"model_type\": \"llama\", {SMALL}}}"));
    let stored = model.info.weights.unwrap().bytes as f64;
    let request = PlanRequest::of(model);
    let layers = 2.0 * (ATTENTION + DENSE);
    // Of 32 elements, in the place of 64 bytes: 8 bits alone, and in GGML's blocks with a scale of 16, or 4 bits with one; norms
    // are among what is counted with attention.
    let engine = |name: &str| Some(name.parse::<EngineSpec>().unwrap().engine);
    let (eight, four) = (WeightBits::Eight, WeightBits::Four);
    for (bits, engine, taken) in [
        (eight, None, 32.0 / 64.0),
        (eight, engine("vllm"), 32.0 / 64.0),
        (eight, engine("llama.cpp"), 34.0 / 64.0),
        (four, None, 18.0 / 64.0),
        (four, engine("llama.cpp"), 18.0 / 64.0),
    ] {
        let saved = stored - request.weights_at(bits, engine).unwrap() as f64;
        assert!(saved >= layers * (1.0 - taken) && saved < layers * (1.0 - taken) * 1.01, "{bits}: {saved}");
    }
}

/// A step reads weights as they are quantised, and what is not of the layers as it is stored.
#[test]
fn a_step_reads_quantised_weights() {
    let model = ModelCaches::from(read(&format!("{{\"model_type\": \"llama\", {SMALL}}}")));
    let quantised = model.with_weights(model.weights_at(1.0).unwrap());
    let budget = Budget { max_seq_len: Some(1024), max_batch_size: Some(1), ..Budget::default() };
    let request = PlanRequest::of(quantised).with_budget(budget).with_devices("h100".parse::<DeviceInfo>().unwrap());
    let found = request.bound(&request.ranks().unwrap().stages).unwrap().one.seconds;
    let expected = (ATTENTION + DENSE + HEAD + 2.0 * TOKEN_OF_LAYER * 1024.0) / H100;
    assert!((found / expected - 1.0).abs() < 0.01, "{found} and not {expected}");
}

#[test]
fn fewer_bits_than_are_stored_save_nothing() {
    let model = fixture("openai__gpt-oss-120b");
    let stored = model.info.weights.unwrap().bytes;
    let request = PlanRequest::of(model);
    let eight = request.weights_at(WeightBits::Eight, None).unwrap();
    // Only its attention is of 16 bits; experts are of 4.
    assert!(eight < stored && eight as f64 > 0.9 * stored as f64, "{eight} of {stored}");
}

#[test]
fn the_bound_of_fewer_sequences_is_theirs() {
    let mut budget = Budget::default();
    (budget.max_seq_len, budget.parallel.dp) = (Some(1024), 2);
    let request = PlanRequest::of(fixture("Qwen__Qwen3-8B")).with_budget(budget);
    let request = request.with_devices("h100".parse::<DeviceInfo>().unwrap());
    let stages = request.ranks().unwrap().stages;
    let of = |sequences| request.bound_of(&stages, sequences).unwrap();
    assert_eq!(of(Some(9)).all.sequences, 5);
    assert_eq!(of(Some(u64::MAX)), request.bound(&stages).unwrap());
    assert!(of(Some(8)).tokens_per_second < of(None).tokens_per_second);
}
