//! `cacheplan export` as its users meet it.

use std::path::Path;
use std::process::{Command, Output};

use rstest::rstest;

fn cacheplan(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_cacheplan")).args(args).env("NO_COLOR", "1").output().unwrap()
}

#[rstest]
#[case::in_the_file("sglang", &[], true)]
#[case::in_a_manifest("llm-d", &[], true)]
#[case::stated("sglang", &["--model", "org/Model"], false)]
#[case::beside_the_file("vllm", &[], false)]
fn a_model_that_is_not_stated_is_noted(#[case] target: &str, #[case] flags: &[&str], #[case] noted: bool) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plan.json");
    let file = file.to_str().unwrap();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/configs/Qwen__Qwen3-8B.json");
    assert!(cacheplan(&["plan", model.to_str().unwrap(), "--out", file]).status.success());
    let output = cacheplan(&[&["export", file, "--to", target][..], flags].concat());
    let (text, notes) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{notes}");
    assert_eq!(notes.contains("note: the file names the model <MODEL>"), noted, "{notes}");
    assert_eq!(text.contains("<MODEL>"), flags.is_empty(), "{text}");
}

#[rstest]
#[case(&["--engine-version", "9.9"], "the keys are known for 0.11.0")]
#[case(&["--host-memory", "-1"], "`-1` is not a byte size")]
#[case(&["--tp", "0"], "0 is not in 1..=4096")]
fn a_wrong_flag_is_wrong_usage(#[case] flags: &[&str], #[case] says: &str) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plan.json");
    let file = file.to_str().unwrap();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/configs/Qwen__Qwen3-8B.json");
    assert!(cacheplan(&["plan", model.to_str().unwrap(), "--out", file]).status.success());
    let output = cacheplan(&[&["export", file, "--to", "vllm"][..], flags].concat());
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && message.contains(says), "{message}");
}
