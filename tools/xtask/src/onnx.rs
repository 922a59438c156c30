//! What `export-graph` writes, held to the tools of others: `onnx.checker` and ONNX Runtime.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cuda_toolkit::target;
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
        let folder = Path::new(FIXTURES).join(folder);
        let entries = fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let models = entries.flatten().map(|entry| entry.path());
        found.extend(models.filter(|model| model.join("model.safetensors").exists()));
    }
    found.sort();
    Ok(found)
}

/// The library inside the Python package.
fn library(home: &Path) -> Result<PathBuf, String> {
    let on_disk = |error: std::io::Error| format!("{}: {error}", home.display());
    let entries = |folder: PathBuf| Ok::<_, String>(fs::read_dir(folder).map_err(on_disk)?.flatten());
    for python in entries(home.join("lib"))? {
        for file in entries(python.path().join("site-packages/onnxruntime/capi"))? {
            if file.file_name().to_string_lossy().starts_with("libonnxruntime.so") {
                return Ok(file.path());
            }
        }
    }
    Err(format!("{}: its package onnxruntime has no libonnxruntime.so", home.display()))
}
