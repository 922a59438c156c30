//! Flags stand above the environment, that above the file.

use std::process::Command;

use rstest::rstest;
use serde_json::Value;

use super::{GEMMA, NANO, cacheplan, config, plan, stdout};

#[test]
fn flags_size_a_plan_without_a_budget_file() {
    let flags = ["--max-seq-len", "4096", "--memory-bytes", "4GiB", "--prompt", "1000", "--output", "24"];
    let long = plan(NANO, &flags[..4]);
    let short = plan(NANO, &flags);
    let sequences = |plan: &Value| plan["capacity"]["sequences"].as_u64().unwrap();
    assert!(sequences(&short) > sequences(&long));
    let checkpoints = plan(NANO, &[&flags[..], &["--checkpoints", "2", "--checkpoint-dtype", "int8"]].concat());
    assert!(checkpoints["pools"].as_array().unwrap().iter().any(|pool| pool["id"] == "checkpoint.ssm.0"));
    let tiered = plan(NANO, &[&flags[..], &["--host-bytes", "1GiB"]].concat());
    assert!(tiered["host"]["sequences"].as_u64().unwrap() > 0);
    let drafting = plan(NANO, &[&flags[..], &["--draft-tokens", "3", "--draft-scheme", "replay"]].concat());
    assert_eq!(drafting["limits"]["draft_positions"], 4);
}

#[test]
fn a_flag_stands_above_the_environment_that_above_the_file_and_origins_say_so() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("b.toml");
    std::fs::write(&file, "max_seq_len = 1000\nmax_batch_size = 2\nmax_num_tokens = 512\n").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_cacheplan"))
        .args(["config", "show", "--origin", "--budget"])
        .arg(&file)
        .args(["--max-seq-len", "3000", "--cache-bytes", "1GiB", "--device-memory", "80GiB"])
        .env("CACHEPLAN__MAX_SEQ_LEN", "2000")
        .env("CACHEPLAN__MAX_BATCH_SIZE", "5")
        .output()
        .unwrap();
    let text = stdout(&output);
    let line = |key: &str| {
        let line = text.lines().find(|line| line.split_whitespace().next() == Some(key)).unwrap();
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(line("max_seq_len"), "max_seq_len 3000 flag --max-seq-len");
    assert_eq!(line("max_batch_size"), "max_batch_size 5 environment CACHEPLAN__MAX_BATCH_SIZE");
    assert!(line("max_num_tokens").ends_with("b.toml:3"), "{text}");
    assert_eq!(line("engine.cache_bytes"), "engine.cache_bytes 1073741824 flag --cache-bytes");
    assert_eq!(line("memory.fraction"), "memory.fraction 0.9 default for the stated device");
    assert_eq!(line("tokens_per_block"), "tokens_per_block 16 default");
}

#[test]
fn keys_without_a_short_story_have_flags_too() {
    let flags = ["--layout", "NHD", "--kv-dtype", "f32", "--memory-fraction", "0.5", "--memory-of", "total"];
    let planned = plan(GEMMA, &[&flags[..], &["--device-memory", "24GiB", "--weights", "2GB"]].concat());
    let resources = planned["resources"].as_array().unwrap();
    let paged = resources.iter().find(|resource| resource["kind"] == "kv_paged").unwrap();
    assert_eq!(paged["handler"]["layout"], "NHD");
    let sum: u64 = planned["ledger"].as_array().unwrap().iter().map(|line| line["bytes"].as_u64().unwrap()).sum();
    assert_eq!(sum, (24u64 << 30) / 2);
    let folder = tempfile::tempdir().unwrap();
    for (flag, value) in [("--prefix-caching", "true"), ("--prefix-caching=false", "false")] {
        let shown = stdout(&cacheplan(&["config", "show"], None, &[flag], folder.path()));
        assert_eq!(shown, format!("engine.prefix_caching = {value}\n"));
    }
}

/// What `fit` looks for nobody states; what holds of every device anybody may.
#[rstest]
#[case(
    "CACHEPLAN__MEMORY__BYTES",
    "10GiB",
    2,
    "environment CACHEPLAN__MEMORY__BYTES: `memory.bytes` is what fit looks for"
)]
#[case("CACHEPLAN__MAX_BATCH_SIZE", "4", 2, "`max_batch_size` is what fit looks for")]
#[case("CACHEPLAN__MEMORY__SAFE", "true", 0, "")]
#[case("CACHEPLAN__MEMORY__RESERVE", "200GiB", 3, "nothing tried holds")]
fn fit_takes_of_the_environment_what_holds_of_every_device(
    #[case] name: &str,
    #[case] value: &str,
    #[case] code: i32,
    #[case] said: &str,
) {
    let mut run = Command::new(env!("CARGO_BIN_EXE_cacheplan"));
    let fit = run.arg("fit").arg(config(NANO)).args(["--context", "4096", "--sequences", "4", "--gpus", "h200"]);
    let output = fit.args(["--max-gpus", "1"]).env(name, value).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(code) && error.contains(said), "{error}");
}

#[cfg(unix)]
#[test]
fn a_variable_of_ours_that_is_no_text_is_an_error() {
    use std::os::unix::ffi::OsStrExt;
    let value = std::ffi::OsStr::from_bytes(b"2\xff");
    let mut run = Command::new(env!("CARGO_BIN_EXE_cacheplan"));
    let output = run.arg("plan").arg(config(NANO)).env("CACHEPLAN__MAX_BATCH_SIZE", value).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("CACHEPLAN__MAX_BATCH_SIZE"), "{said}");
}
