//! What SGLang refuses.

use cacheplan_serve::{Options, answer};
use rstest::rstest;

use super::common::{changed, launch, on};
use super::{LLAMA, NEMOTRON, NEXT, said};

#[rstest]
#[case::hierarchy(LLAMA, "--enable-hierarchical-cache --disable-radix-cache", "are mutually exclusive")]
#[case::nodes(LLAMA, "--nnodes 3 --tp 8", "tp_size must be divisible by number of nodes")]
#[case::replicas_on_nodes(LLAMA, "--nnodes 2 --tp 2 --dp 2", "multi-node data-parallel replicas are not supported")]
#[case::stages(
    LLAMA,
    "--pp-size 2 --speculative-algorithm NGRAM --speculative-num-draft-tokens 8",
    "Pipeline parallelism currently only supports EAGLE"
)]
#[case::padding(
    LLAMA,
    "--enable-torch-compile --disable-cuda-graph-padding",
    "is incompatible with --enable-torch-compile"
)]
#[case::first_gpu(LLAMA, "--base-gpu-id -1", "base_gpu_id must be non-negative")]
#[case::overlap(NEXT, "--tp 4 --mamba-radix-cache-strategy no_buffer", "no_buffer do not support overlap schedule")]
#[case::pages(
    NEXT,
    "--tp 4 --mamba-radix-cache-strategy no_buffer --disable-overlap-schedule --page-size 64",
    "no_buffer only supports page_size=1"
)]
#[case::lazy(
    NEXT,
    "--tp 4 --mamba-radix-cache-strategy extra_buffer_lazy --disable-overlap-schedule",
    "Lazy extra buffer requires overlap schedule"
)]
#[case::no_states(LLAMA, "--mamba-radix-cache-strategy extra_buffer", "extra_buffer needs mamba state")]
#[case::drafts(
    LLAMA,
    "--speculative-algorithm BOGUS --speculative-num-draft-tokens 4",
    "Unknown speculative algorithm name: BOGUS"
)]
#[case::no_states(NEXT, "--tp 4 --mamba-max-states-per-path 0", "must be -1 (unlimited) or a positive integer")]
#[case::rounding(NEXT, "--tp 4 --enable-mamba-cache-stochastic-rounding", "requires --mamba-ssm-dtype float16")]
#[case::rounding_here(
    NEXT,
    "--tp 4 --enable-mamba-cache-stochastic-rounding --mamba-ssm-dtype float16",
    "requires SM100 with CUDA >= 12.8"
)]
#[case::some_ranks_of_experts(NEMOTRON, "--tp 4 --ep-size 2", "must be 1 or the same as the tensor parallel size")]
#[case::some_ranks_of_experts_as_told(
    NEXT,
    "--tp 4 --ep-size 2 --moe-runner-backend flashinfer_cutlass",
    "must be 1 or the same as the tensor parallel size"
)]
#[case::captured(LLAMA, "--enable-return-aux-hidden-states", "to name the capture convention")]
fn sglang_refuses(#[case] model: &str, #[case] flags: &str, #[case] expected: &str) {
    let command = format!("sglang serve --model-path m {flags}");
    let found = said(&command, model, "0.5.23").unwrap_or_else(|| panic!("{flags}: starts"));
    assert!(found.contains(expected), "{found}");
}

/// Experts of 768 channels in blocks of 128.
#[rstest]
#[case("--tp 2", None)]
#[case("--tp 4", Some("weight = 192 is not divisible by weight quantization block_n = 128"))]
#[case("--tp 4 --ep-size 2", None)]
#[case("--tp 8 --moe-a2a-backend deepep", None)]
#[case("--tp 8 --dp 8 --enable-dp-attention", Some("weight = 96 is not divisible by"))]
fn sglang_gives_ranks_whole_blocks_of_weights(#[case] flags: &str, #[case] expected: Option<&str>) {
    let model = changed("Qwen__Qwen3-30B-A3B", |config| {
        config["quantization_config"] = serde_json::json!({"quant_method": "fp8", "weight_block_size": [128, 128]});
    });
    let options = Options { version: Some("0.5.23".into()), ..on("8xh200") };
    let found = answer(&launch(&format!("sglang serve --model-path m {flags}")), model, &options);
    match (found, expected) {
        (Err(error), Some(expected)) => assert!(error.to_string().contains(expected), "{error}"),
        (found, expected) => assert!(found.is_ok() && expected.is_none(), "{found:?}"),
    }
}

#[rstest]
#[case(NEMOTRON, "--tp 4 --ep-size 4")]
#[case(NEXT, "--tp 4 --ep-size 2")]
#[case(NEXT, "--tp 4 --mamba-radix-cache-strategy no_buffer --disable-overlap-schedule")]
#[case(NEXT, "--tp 4 --mamba-radix-cache-strategy extra_buffer_lazy")]
#[case(LLAMA, "--tp 8 --nnodes 2 --reasoning-parser qwen3 --tool-call-parser llama3 --sampling-backend pytorch")]
#[case(LLAMA, "--speculative-algorithm ngram --speculative-num-draft-tokens 8")]
fn sglang_takes(#[case] model: &str, #[case] flags: &str) {
    assert_eq!(said(&format!("sglang serve --model-path m {flags}"), model, "0.5.23"), None);
}
