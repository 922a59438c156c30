//! What `export-graph` writes, held to the tools of others: `onnx.checker` and ONNX Runtime.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::files::{entries, target};
use crate::sh;
use crate::venv::environment;

/// The tools and their versions, as pip reads them.
const TOOLS: &str = "tools/xtask/onnx.txt";

const FIXTURES: &str = "tests/fixtures";

/// Checks what the command exports of each family, and runs the tests that want ONNX Runtime's library.
pub(crate) fn run() -> Result<(), String> {
    let home = environment("onnx", TOOLS)?;
    // As the tests build it, so that after them nothing is compiled again.
    sh(Command::new("cargo").args(["test", "--workspace", "--no-run", "--quiet", "--test", "cli"]))?;
    let mut check = Command::new(home.join("bin/python"));
    check.arg("tests/fixtures/onnx/check_export.py").arg(target("debug/cacheplan")?);
    sh(check.args(models()?))?;
    let tests = ["test", "--workspace", "--features", "ort", "--test", "exported", "onnx_runtime"];
    sh(Command::new("cargo").args(tests).env("ORT_DYLIB_PATH", library(&home)?))
}

/// The folders of tiny models, at least one of each family.
fn models() -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    for folder in ["models", "static_cache", "variants"] {
        let models = entries(Path::new(FIXTURES).join(folder))?.into_iter();
        found.extend(models.filter(|model| model.join("model.safetensors").exists()));
    }
    Ok(found)
}

/// The library inside the Python package.
fn library(home: &Path) -> Result<PathBuf, String> {
    let mut files = Vec::new();
    for python in entries(home.join("lib"))? {
        files.extend(entries(python.join("site-packages/onnxruntime/capi"))?);
    }
    let is_library =
        |file: &PathBuf| file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libonnxruntime.so"));
    let lacks = || format!("{}: its package onnxruntime has no libonnxruntime.so", home.display());
    files.into_iter().find(is_library).ok_or_else(lacks)
}
