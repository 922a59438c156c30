//! Exported graphs as users of the command meet them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rstest::rstest;
use serde_json::Value;

fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(path)
}

/// Runs `cacheplan ARGS`, where `@` stands before a path of a fixture.
fn cacheplan(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cacheplan"));
    for arg in args {
        match arg.strip_prefix('@') {
            Some(path) => command.arg(fixture(path)),
            None => command.arg(arg),
        };
    }
    command.env("NO_COLOR", "1").output().unwrap()
}

fn json(args: &[&str]) -> Value {
    let output = cacheplan(&[args, &["--format", "json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn assert_refused(output: &Output, code: i32, message: &str) {
    // As a terminal of any width breaks it.
    let stderr = String::from_utf8_lossy(&output.stderr);
    let words: Vec<&str> = stderr.split_whitespace().filter(|word| *word != "│").collect();
    assert!(words.join(" ").contains(message), "{stderr}");
    assert_eq!(output.status.code(), Some(code));
}

const PROMPT: [&str; 5] = ["--prompt-ids", "5,9,2,77,31", "--max-new-tokens", "12", "--ignore-eos"];

#[test]
fn an_export_of_ours_runs_in_place_of_the_layers() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let export = ["export-graph", "@static_cache/nemotron_h", "--buckets", "16,1", "--max-cache-len", "64", "--out"];
    let written = cacheplan(&[&export[..], &[out]].concat());
    let files: Vec<String> = String::from_utf8(written.stdout).unwrap().lines().map(str::to_owned).collect();
    assert_eq!(files, [format!("{out}/prefill_16.onnx"), format!("{out}/decode.onnx")]);
    let run = [&["run", "@static_cache/nemotron_h"], &PROMPT[..]].concat();
    let native = json(&[&run[..], &["--max-seq-len", "64"]].concat());
    let graphs = json(&[&run[..], &["--static", out]].concat());
    assert_eq!(graphs["tokens"], native["tokens"]);
    let pools = graphs["report"]["pools"].as_array().unwrap();
    assert!(!pools.is_empty() && pools.iter().all(|pool| pool["planned_bytes"] == pool["actual_bytes"]), "{pools:?}");
}

#[test]
fn a_decode_graph_is_planned_in_one_slot_without_pages() {
    let plan = json(&["plan", "@static_cache/decode.onnx"]);
    assert_eq!([&plan["limits"]["max_seq_len"], &plan["limits"]["max_batch_size"]], [128, 1]);
    assert!(plan["pools"].as_array().unwrap().iter().all(|pool| pool["unit"] == "slot"), "{}", plan["pools"]);
}

/// Of the same length, so that the messages around it stay as they are.
#[test]
fn an_operator_that_is_not_known_is_named_with_its_node() {
    let mut graph = std::fs::read(fixture("onnx/hybrid_opset18.onnx")).unwrap();
    while let Some(at) = graph.windows(7).position(|word| word == b"Sigmoid") {
        graph[at..at + 7].copy_from_slice(b"Sigmoix");
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("graph.onnx");
    std::fs::write(&file, graph).unwrap();
    let output = cacheplan(&[&["run", file.to_str().unwrap(), "--max-seq-len", "64"], &PROMPT[..]].concat());
    assert_refused(&output, 4, "node `node_Sigmoix_17` (Sigmoix): this operator is not run");
}

#[rstest]
#[case::a_bucket_beyond_the_cache(&["--buckets", "1,65", "--max-cache-len", "64"], "a bucket of 65 tokens cannot be exported; it must be from 1 to 64, what the cache holds")]
#[case::a_bucket_of_nothing(&["--buckets", "0", "--max-cache-len", "64"], "a bucket of 0 tokens")]
#[case::a_cache_beyond_all(&["--max-cache-len", "1048577"], "a cache of 1048577 tokens")]
#[case::no_number(&["--buckets", "many", "--max-cache-len", "64"], "`many` is neither a number nor `dynamic`")]
fn a_size_that_cannot_be_exported_is_a_wrong_flag(#[case] flags: &[&str], #[case] message: &str) {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("graphs");
    let export = ["export-graph", "@static_cache/qwen3", "--out", out.to_str().unwrap()];
    assert_refused(&cacheplan(&[&export[..], flags].concat()), 2, message);
    assert!(!out.exists());
}

#[test]
fn onnx_runtime_is_for_graphs() {
    let run = [&["run", "@static_cache/qwen3", "--onnx-runtime", "nowhere.so"], &PROMPT[..]].concat();
    assert_refused(&cacheplan(&run), 2, "--onnx-runtime runs exported graphs");
    let message = if cfg!(feature = "ort") { "ONNX Runtime:" } else { "rebuild with `--features ort`" };
    assert_refused(&cacheplan(&[&run[..], &["--static", "@static_cache"]].concat()), 1, message);
}
