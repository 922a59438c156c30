//! The command as its users meet it: exit codes, messages, and the JSON contract.

mod fit;
mod plan;
mod refusals;
mod run;
mod runner;
mod simulate;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const NANO: &str = "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16.json";

fn config(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/configs").join(name)
}

fn cacheplan<S: AsRef<std::ffi::OsStr>>(args: &[S]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_cacheplan")).args(args).env("NO_COLOR", "1").output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
