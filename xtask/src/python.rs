//! The Python package: built, installed in a virtual environment of its own, tested and typed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cuda_toolkit::target;
use crate::sh;

/// The tools and their versions, as pip reads them.
const TOOLS: &str = "xtask/python.txt";

const MANIFEST: &str = "python/Cargo.toml";

/// Builds and tests the package. Plans are compared with those of the command where it was built.
pub(crate) fn run() -> Result<(), String> {
    let home = environment()?;
    let tool = |name: &str| Command::new(home.join("bin").join(name));
    sh(Command::new("cargo").args(["fmt", "--check", "--manifest-path", MANIFEST]))?;
    let lints = ["clippy", "--locked", "--release", "--manifest-path", MANIFEST, "--", "-D", "warnings"];
    sh(Command::new("cargo").args(lints))?;
    let wheels = home.join("wheels");
    if wheels.exists() {
        fs::remove_dir_all(&wheels).map_err(|error| format!("{}: {error}", wheels.display()))?;
    }
    sh(tool("maturin").args(["build", "--release", "--locked", "--manifest-path", MANIFEST, "--out"]).arg(&wheels))?;
    sh(tool("pip")
        .args(["install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index", "--force-reinstall"])
        .args(["--find-links".as_ref(), wheels.as_os_str(), "cacheplan".as_ref()]))?;
    sh(tool("ruff").args(["check", "python"]))?;
    sh(tool("ruff").args(["format", "--check", "python"]))?;
    let config = ["--config-file", "python/pyproject.toml"];
    sh(tool("mypy").args(config).args(["python/python", "python/examples"]).env("MYPYPATH", "python/examples"))?;
    let mut tests = tool("pytest");
    let command = target("debug/cacheplan")?;
    if command.exists() {
        tests.env("CACHEPLAN_COMMAND", command);
    }
    sh(tests.args(["--quiet", "--rootdir", "python", "python/tests"]))?;
    // Only the native half has a stub; beside the sources the package would be found without it.
    let mut stubs = tool("stubtest");
    stubs.args(["cacheplan._native", "--mypy-config-file"]).arg(absolute("python/pyproject.toml")?).current_dir(&home);
    sh(&mut stubs)
}

/// The virtual environment, made anew where it has other tools.
fn environment() -> Result<PathBuf, String> {
    let home = target("python")?;
    let wanted = fs::read_to_string(TOOLS).map_err(|error| format!("{TOOLS}: {error}"))?;
    let installed = home.join("installed.txt");
    if fs::read_to_string(&installed).is_ok_and(|found| found == wanted) {
        return Ok(home);
    }
    let on_disk = |error: std::io::Error| format!("{}: {error}", home.display());
    if home.exists() {
        fs::remove_dir_all(&home).map_err(on_disk)?;
    }
    sh(Command::new("python3").args(["-m", "venv"]).arg(&home))?;
    let install = ["install", "--quiet", "--disable-pip-version-check", "--no-deps", "--requirement", TOOLS];
    sh(Command::new(home.join("bin/pip")).args(install))?;
    // Written last: without it, an installation that was broken off is none.
    fs::write(installed, wanted).map_err(on_disk)?;
    Ok(home)
}

fn absolute(path: &str) -> Result<PathBuf, String> {
    std::path::absolute(Path::new(path)).map_err(|error| error.to_string())
}
