//! What TensorRT-LLM refuses.

use cacheplan_serve::answer;
use rstest::rstest;

use super::common::{changed, launch, models, on};
use super::{LLAMA, NEMOTRON};

/// It runs on NVIDIA's GPUs alone, in blocks of powers of two.
#[rstest]
#[case("mi300x")]
#[case("gaudi-3")]
#[case("m4-max-128gb")]
fn tensorrt_llm_refuses_other_makers(#[case] device: &str) {
    let ask =
        |device: &str| answer(&launch("trtllm-serve m --max_seq_len 4096"), models("Qwen__Qwen3-8B"), &on(device));
    assert!(ask(device).unwrap_err().to_string().contains("No CUDA GPUs are available"));
    ask("h100").unwrap();
}

/// Ranks of MPI are those of as many nodes as it takes, where it is said how many GPUs each has.
#[rstest]
#[case("", Some("Only 8 GPUs are available, but 16 are required"))]
#[case(" --gpus_per_node 8", None)]
fn tensorrt_llm_spans_nodes_whose_gpus_are_said(#[case] flags: &str, #[case] expected: Option<&str>) {
    let command = format!("trtllm-serve m --tp_size 16 --max_seq_len 4096{flags}");
    match (answer(&launch(&command), models("Qwen__Qwen3-32B"), &on("8xh100")), expected) {
        (Err(error), Some(expected)) => assert!(error.to_string().contains(expected), "{error}"),
        (found, expected) => assert!(found.is_ok() && expected.is_none(), "{found:?}"),
    }
}

#[rstest]
#[case("awq", Some("Unsupported quantization_config: quant_method awq"))]
#[case("fp8", None)]
fn tensorrt_llm_reads_some_methods_of_checkpoints(#[case] method: &str, #[case] expected: Option<&str>) {
    let model = changed(LLAMA, |config| config["quantization_config"] = serde_json::json!({"quant_method": method}));
    match (answer(&launch("trtllm-serve m --max_seq_len 4096"), model, &on("h100")), expected) {
        (Err(error), Some(expected)) => assert!(error.to_string().contains(expected), "{error}"),
        (found, expected) => assert!(found.is_ok() && expected.is_none(), "{found:?}"),
    }
}

/// States of rows that do not run take memory too, so that fewer rows start.
#[test]
fn tensorrt_llm_is_told_fewer_rows_where_their_states_are_too_many() {
    let found = answer(&launch("trtllm-serve m --max_seq_len 16384"), models(NEMOTRON), &on("h100")).unwrap();
    assert!(found.changes.iter().any(|change| change.change.contains("--max_batch_size")), "{:?}", found.changes);
}
