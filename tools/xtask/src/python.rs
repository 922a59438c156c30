//! The Python package: built, installed in a virtual environment of its own, tested and typed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::files::{absolute, at, only, remove, target};
use crate::sh;
use crate::venv::{environment, put_wheel};

/// The tools and their versions, as pip reads them.
pub(crate) const TOOLS: &str = "tools/xtask/python.txt";

const MANIFEST: &str = "python/Cargo.toml";

/// Builds and tests the package. Plans are compared with those of the command where it was built.
pub(crate) fn run() -> Result<(), String> {
    let home = environment("python", TOOLS)?;
    let tool = |name: &str| Command::new(home.join("bin").join(name));
    sh(Command::new("cargo").args(["fmt", "--check", "--manifest-path", MANIFEST]))?;
    let lints = ["clippy", "--locked", "--release", "--manifest-path", MANIFEST, "--", "-D", "warnings"];
    sh(Command::new("cargo").args(lints))?;
    let wheel = wheel_of_source(&home)?;
    put_wheel(&home, &wheel)?;
    sh(tool("ruff").args(["check", "python"]))?;
    sh(tool("ruff").args(["format", "--check", "python"]))?;
    let config = ["--config-file", "python/pyproject.toml"];
    sh(tool("mypy").args(config).args(["python/python", "python/examples"]).env("MYPYPATH", "python/examples"))?;
    let mut tests = tool("pytest");
    let command = target("debug/cacheplan")?;
    if command.exists() {
        tests.env("CACHEPLAN_COMMAND", command);
    }
    // A cluster of two nodes on this machine, one of which is killed.
    tests.env("CACHEPLAN_RAY", "1");
    sh(tests.args(["--quiet", "--rootdir", "python", "python/tests"]))?;
    // Only the native half has a stub; beside the sources the package would be found without it.
    let mut stubs = tool("stubtest");
    stubs.args(["cacheplan._native", "--mypy-config-file"]).arg(absolute("python/pyproject.toml")?).current_dir(&home);
    sh(&mut stubs)
}

/// The wheel, built of the source distribution and nothing else.
pub(crate) fn wheel_of_source(home: &Path) -> Result<PathBuf, String> {
    let tool = |name: &str| Command::new(home.join("bin").join(name));
    let build = home.join("build");
    remove(&build)?;
    let [packed, unpacked, wheels] = ["packed", "unpacked", "wheels"].map(|folder| build.join(folder));
    sh(tool("maturin").args(["sdist", "--manifest-path", MANIFEST, "--out"]).arg(&packed))?;
    fs::create_dir_all(&unpacked).map_err(at(&unpacked))?;
    // With times of now (`-m`): all that the archive has are alike, by which cargo would take an older build for fresh.
    sh(Command::new("tar").arg("-xmf").arg(only(&packed)?).arg("-C").arg(&unpacked))?;
    let manifest = only(&unpacked)?.join(MANIFEST);
    let mut maturin = tool("maturin");
    maturin.args(["build", "--release", "--locked", "--target-dir"]).arg(absolute("python/target")?);
    sh(maturin.arg("--manifest-path").arg(manifest).arg("--out").arg(&wheels))?;
    only(&wheels)
}
