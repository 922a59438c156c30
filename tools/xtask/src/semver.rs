//! From the first release on: whether the version says what has changed for those who build on the crates.

use std::process::Command;

use crate::files::target;
use crate::sh;

/// The tool's version; each reads the rustdoc of certain compilers.
const VERSION: &str = "0.51.0";

/// What is not published.
const PRIVATE: [&str; 3] = ["xtask", "cacheplan-emulator", "cacheplan-wasm"];

/// Compares the crates with the newest tag `v…` behind this commit; without one there is nothing to compare with.
pub(crate) fn run() -> Result<(), String> {
    let mut describe = Command::new("git");
    describe.args(["describe", "--tags", "--abbrev=0", "--match", "v*"]);
    let found = describe.output().map_err(|error| format!("{describe:?}: {error}"))?;
    if !found.status.success() {
        return Ok(());
    }
    let tag = String::from_utf8_lossy(&found.stdout).trim().to_owned();
    let home = target("semver-checks")?;
    let install = ["install", "--quiet", "--locked", "--version", VERSION, "cargo-semver-checks", "--root"];
    sh(Command::new("cargo").args(install).arg(&home))?;
    let mut check = Command::new(home.join("bin/cargo-semver-checks"));
    check.args(["semver-checks", "--workspace", "--baseline-rev", &tag]);
    sh(check.args(PRIVATE.iter().flat_map(|name| ["--exclude", name])))
}
