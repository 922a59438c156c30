//! `cacheplan tiers`: what it prints, and what it refuses.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rstest::rstest;
use serde_json::Value;

fn config(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/configs").join(name)
}

fn tiers(model: &str, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cacheplan"));
    command.arg("tiers").arg(config(model)).args(args).output().unwrap()
}

const PLAIN: &str = "Qwen__Qwen3-0.6B.json";
const ON: &[&str] = &["--device", "l4", "--max-seq-len", "16384"];

/// Four documents in turn, which together do not fit a device of one and a half, as Mooncake's trace says them.
fn trace(folder: &Path) -> PathBuf {
    let line = |at: usize| {
        let first = at % 4 * 20;
        let ids: Vec<usize> = (first..first + 15).chain([1000 + at]).collect();
        format!("{{\"timestamp\": {at}, \"input_length\": 8000, \"output_length\": 10, \"hash_ids\": {ids:?}}}\n")
    };
    let path = folder.join("trace.jsonl");
    std::fs::write(&path, (0..16).map(line).collect::<String>()).unwrap();
    path
}

/// Room for 12,000 tokens of 112 KiB beside the weights.
fn small(trace: &Path, more: &[&str]) -> Output {
    let trace = trace.to_str().unwrap();
    let flags = ["--trace", trace, "--memory-bytes", "3GiB", "--weights", "1GiB", "--running", "1"];
    tiers(PLAIN, &[ON, flags.as_slice(), more].concat())
}

#[test]
fn the_least_host_memory_that_holds_what_comes_again_is_found_and_told_to_engines() {
    let folder = tempfile::tempdir().unwrap();
    let trace = trace(folder.path());
    let picture = folder.path().join("curve.svg");
    let flags = ["--host", "16GiB", "--target-hit", "0.7", "--json", "--svg", picture.to_str().unwrap()];
    let output = small(&trace, &flags);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    let answer = &said["answer"];
    let rate = |point: &Value| point["hit_rate"].as_f64().unwrap();
    // Of 16 prompts the first four are new, and of each other 15 of 15.6 blocks were there.
    let all = 12.0 * 15.0 * 512.0 / (16.0 * 8000.0);
    assert!((answer["ceiling"].as_f64().unwrap() - all).abs() < 0.001, "{all}: {}", answer["ceiling"]);
    assert!(rate(&answer["planned"]) < 0.7 && rate(&answer["chosen"]) >= 0.7, "{answer}");
    let told = said["engines"].as_array().unwrap();
    assert!(
        told.iter()
            .any(|engine| engine["engine"] == "vLLM" && engine["lines"].to_string().contains("--kv-offloading-size"))
    );
    assert!(std::fs::read_to_string(picture).unwrap().starts_with("<svg"));
}

#[test]
fn the_table_fits_80_columns_and_a_target_out_of_reach_is_exit_code_3() {
    let folder = tempfile::tempdir().unwrap();
    let output = small(&trace(folder.path()), &["--host", "1GiB", "--target-hit", "0.99"]);
    assert_eq!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stderr));
    let table = String::from_utf8(output.stdout).unwrap();
    let of_answer = table.lines().take_while(|line| !line.starts_with('#'));
    assert!(of_answer.clone().count() > 10 && of_answer.clone().all(|line| line.chars().count() <= 80), "{table}");
}

#[rstest]
#[case(&["--workload", "rag", "--host", "0"], "`host` is 0 bytes, which are no tier")]
#[case(&["--workload", "rag", "--host", "2048TiB"], "at most 1 PiB")]
#[case(&["--workload", "rag", "--target-hit", "1.5"], "more than 0 and at most 1")]
#[case(&["--workload", "rag", "--prices", "1"], "--prices takes two")]
#[case(&[], "--trace <FILE>")]
fn what_is_no_question_is_usage(#[case] args: &[&str], #[case] said: &str) {
    let output = tiers(PLAIN, &[ON, args].concat());
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && error.contains(said), "{error}");
}

#[test]
fn a_trace_without_timestamps_is_refused_by_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.jsonl");
    std::fs::write(&path, "{\"input_length\": 1, \"output_length\": 1, \"hash_ids\": [7]}\n").unwrap();
    let output = small(&path, &["--host", "1GiB"]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && error.contains("trace line 1: missing field `timestamp`"), "{error}");
}

/// A search replays the requests some forty times.
#[test]
fn steps_of_so_few_tokens_that_a_search_would_not_end_are_refused() {
    let on = ["--device", "h100", "--workload", "chat", "--host", "16GiB", "--max-seq-len", "131072"];
    let output = tiers(PLAIN, &[&on[..], &["--max-num-tokens", "8"]].concat());
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && err.contains("a larger max_num_tokens of the plan, would do"), "{err}");
}
