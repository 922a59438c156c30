//! Prefixes in files outlive the command, however it ends.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rstest::rstest;
use serde_json::{Value, json};

fn command(model: &str, folder: &Path, disk: bool, states: bool) -> Command {
    let model = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models").join(model);
    let mut command = Command::new(env!("CARGO_BIN_EXE_cacheplan"));
    command.arg("run").arg(model).current_dir(folder).stdout(Stdio::null()).stderr(Stdio::piped());
    command.args(["--requests", "in.jsonl", "--out", "out.jsonl", "--ignore-eos", "--max-seq-len", "96"]);
    command.args(["--max-batch-size", "2", "--tokens-per-block", "8"]);
    command.args(if states { &["--checkpoints", "2"][..] } else { &[] });
    command.args(if disk { &["--disk", "kept", "--disk-bytes", "2MiB"][..] } else { &[] });
    command
}

/// The outputs by line: tokens, and how many of the prompt were cached.
fn serve(mut command: Command, folder: &Path) -> Vec<(Value, u64)> {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = fs::read_to_string(folder.join("out.jsonl")).unwrap();
    let mut lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    lines.sort_by_key(|line| line["line"].as_u64());
    lines.iter().map(|line| (line["tokens"].clone(), line["cached_tokens"].as_u64().unwrap())).collect()
}

#[rstest]
#[case::whole_contexts("llama", false)]
#[case::states("nemotron_h", true)]
fn whenever_it_is_killed_the_next_run_finds_what_is_whole_and_says_the_same(#[case] model: &str, #[case] states: bool) {
    let folder = tempfile::TempDir::new().unwrap();
    let folder = folder.path();
    let prompt = |from: u32| (0..30).map(|token| 1 + (from * 11 + token * 7) % 90).collect::<Vec<u32>>();
    let lines = (0..24).map(|from| json!({ "prompt_ids": prompt(from), "max_tokens": 6 }).to_string() + "\n");
    fs::write(folder.join("in.jsonl"), lines.collect::<String>()).unwrap();
    let tokens = |outputs: &[(Value, u64)]| outputs.iter().map(|(tokens, _)| tokens.clone()).collect::<Vec<Value>>();
    let plain = tokens(&serve(command(model, folder, false, states), folder));

    let begun = Instant::now();
    assert_eq!(tokens(&serve(command(model, folder, true, states), folder)), plain);
    let whole = begun.elapsed();
    let again = serve(command(model, folder, true, states), folder);
    assert_eq!(tokens(&again), plain);
    assert!(again.iter().filter(|(_, cached)| *cached >= 24).count() > 6, "{again:?}");

    let mut found = 0;
    for part in 1..8 {
        fs::remove_dir_all(folder.join("kept")).unwrap();
        let mut killed = command(model, folder, true, states).spawn().unwrap();
        // The later ones while files are written, on whatever machine.
        sleep(whole * part / 8 + Duration::from_millis(u64::from(part)));
        killed.kill().unwrap();
        killed.wait().unwrap();
        fs::create_dir_all(folder.join("kept")).unwrap();
        let left = fs::read_dir(folder.join("kept")).unwrap().count();
        let outputs = serve(command(model, folder, true, states), folder);
        assert_eq!(tokens(&outputs), plain, "killed after {part} of 8 parts, {left} files");
        found += outputs.iter().filter(|(_, cached)| *cached > 0).count();
        let partial = fs::read_dir(folder.join("kept")).unwrap();
        let partial = partial.filter(|entry| entry.as_ref().unwrap().path().to_string_lossy().ends_with(".partial"));
        assert_eq!(partial.count(), 0);
    }
    assert!(found > 0, "no run that was killed has left anything");
}

#[test]
fn a_bound_without_a_folder_is_wrong_usage() {
    let folder = tempfile::TempDir::new().unwrap();
    fs::write(folder.path().join("in.jsonl"), "{\"prompt_ids\": [1, 2, 3]}\n").unwrap();
    let output = command("llama", folder.path(), false, false).args(["--disk-bytes", "1MiB"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--disk"));
}
