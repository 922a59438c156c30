//! Virtual environments of Python below `target/`, with tools of pinned versions.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::files::{install, target, text};
use crate::sh;

/// The environment of that name, with what the file `tools` lists for pip and nothing that these would pull in beside it;
/// made anew where it has other tools.
pub(crate) fn environment(name: &str, tools: &str) -> Result<PathBuf, String> {
    let home = target(name)?;
    install(&home, &text(tools)?, || {
        sh(Command::new("python3").args(["-m", "venv"]).arg(&home))?;
        let quietly = ["install", "--quiet", "--disable-pip-version-check", "--no-deps", "--requirement", tools];
        sh(Command::new(home.join("bin/pip")).args(quietly))
    })?;
    Ok(home)
}

/// Puts a wheel that was built here into an environment, whatever it has of that name.
pub(crate) fn put_wheel(home: &Path, wheel: &Path) -> Result<(), String> {
    let quietly = ["install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index", "--force-reinstall"];
    sh(Command::new(home.join("bin/python")).args(["-m", "pip"]).args(quietly).arg(wheel))
}
