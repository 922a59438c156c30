//! What engines refuse at start of words that their parsers take, in their own words.

mod common;

use cacheplan_serve::{Options, ServeError, answer};
use rstest::rstest;

use common::{launch, models, on};

const LLAMA: &str = "meta-llama__Llama-3.1-8B-Instruct";
const NEXT: &str = "Qwen__Qwen3-Next-80B-A3B-Thinking";

fn said(command: &str, model: &str, version: &str) -> Option<String> {
    let options = Options { version: Some(version.into()), ..on("8xh200") };
    match answer(&launch(command), models(model), &options) {
        Err(error @ (ServeError::Engine { .. } | ServeError::Parser { .. })) => Some(error.to_string()),
        Err(error) => panic!("{command}: {error}"),
        Ok(_) => None,
    }
}

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
#[case::reasoning(LLAMA, "--reasoning-parser bogus", "--reasoning-parser: invalid choice: 'bogus'")]
#[case::tools(LLAMA, "--tool-call-parser bogus", "--tool-call-parser: invalid choice: 'bogus'")]
#[case::sampling(LLAMA, "--sampling-backend bogus", "--sampling-backend: invalid choice: 'bogus'")]
#[case::drafts(
    LLAMA,
    "--speculative-algorithm BOGUS --speculative-num-draft-tokens 4",
    "Unknown speculative algorithm name: BOGUS"
)]
fn sglang_refuses(#[case] model: &str, #[case] flags: &str, #[case] expected: &str) {
    let command = format!("sglang serve --model-path m {flags}");
    let found = said(&command, model, "0.5.23").unwrap_or_else(|| panic!("{flags}: starts"));
    assert!(found.contains(expected), "{found}");
}

#[rstest]
#[case(NEXT, "--tp 4 --mamba-radix-cache-strategy no_buffer --disable-overlap-schedule")]
#[case(NEXT, "--tp 4 --mamba-radix-cache-strategy extra_buffer_lazy")]
#[case(LLAMA, "--tp 8 --nnodes 2 --reasoning-parser qwen3 --tool-call-parser llama3 --sampling-backend pytorch")]
#[case(LLAMA, "--speculative-algorithm ngram --speculative-num-draft-tokens 8")]
fn sglang_takes(#[case] model: &str, #[case] flags: &str) {
    assert_eq!(said(&format!("sglang serve --model-path m {flags}"), model, "0.5.23"), None);
}
