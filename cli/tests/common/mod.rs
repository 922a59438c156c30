//! The command, asked by tests.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

pub(crate) fn config(model: &str) -> String {
    root().join(format!("tests/fixtures/configs/{model}.json")).display().to_string()
}

pub(crate) fn cacheplan(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_cacheplan")).args(args).env("NO_COLOR", "1").output().unwrap()
}

pub(crate) fn said(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}
