//! Flags that stand above the budget file, and the plans they lead to.

mod check;
mod devices;
mod engines;
mod help;
mod model;
mod origins;
mod suggestions;
mod values;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

const NANO: &str = "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16.json";

const GEMMA: &str = "google__gemma-3-1b-it.json";

fn config(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/configs").join(name)
}

/// Runs `cacheplan COMMAND… MODEL FLAGS…`; `FILE` among the flags is a path in `folder`.
fn cacheplan(command: &[&str], model: Option<&str>, flags: &[&str], folder: &Path) -> Output {
    let mut run = Command::new(env!("CARGO_BIN_EXE_cacheplan"));
    run.args(command).env("NO_COLOR", "1");
    run.args(model.map(config));
    for flag in flags {
        match flag.strip_prefix("FILE:") {
            Some(name) => run.arg(folder.join(name)),
            None => run.arg(flag),
        };
    }
    run.output().unwrap()
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn plan(model: &str, flags: &[&str]) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let output = cacheplan(&["plan"], Some(model), &[flags, &["--format", "json"]].concat(), folder.path());
    serde_json::from_str(&stdout(&output)).unwrap()
}
