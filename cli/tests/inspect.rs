//! `cacheplan inspect` says what was read and what was assumed.

use std::path::Path;
use std::process::{Command, Output};

use rstest::rstest;

fn inspect(model: &str, flags: &[&str]) -> Output {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(model);
    Command::new(env!("CARGO_BIN_EXE_cacheplan")).arg("inspect").arg(model).args(flags).output().unwrap()
}

#[rstest]
#[case("configs/nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16.json", "hybrid_override_pattern")]
#[case("models/llama", "dimensions checked")]
#[case("gguf/jamba.gguf", "attention.head_count_kv")]
#[case("onnx/hybrid_opset18.onnx", "4 columns in the export, 3 in the cache")]
fn every_format_says_where_its_facts_come_from(#[case] model: &str, #[case] says: &str) {
    let output = inspect(model, &[]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains(says), "{text}");
    // A path stays whole, so that it can be copied.
    let mut lines = text.lines().filter(|line| !line.starts_with("read from"));
    assert!(lines.all(|line| line.chars().count() <= 100), "{text}");
}

#[test]
fn the_graph_prints_as_dot_with_its_caches_standing_out() {
    let output = inspect("models/nemotron_h", &["--graph", "dot"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("digraph") && text.contains("fillcolor=gold"), "{text}");
}

#[test]
fn an_unsupported_model_exits_with_4_until_it_is_assumed_to_be_a_known_one() {
    let model = "configs/meta-llama__Llama-3.1-8B-Instruct.json";
    let refused = inspect(model, &["--assume", "model_type=heron"]);
    assert_eq!(refused.status.code(), Some(4));
    assert!(String::from_utf8(refused.stderr).unwrap().contains("heron"));
    let assumed = inspect(model, &["--assume", "model_type=granite"]);
    assert!(assumed.status.success());
    assert!(String::from_utf8(assumed.stdout).unwrap().contains("stated by the caller"));
}

#[test]
fn a_malformed_assumption_is_wrong_usage() {
    assert_eq!(inspect("models/llama", &["--assume", "layer.x=mamba"]).status.code(), Some(2));
}
