//! Virtual environments of Python below `target/`, with tools of pinned versions.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::cuda_toolkit::target;
use crate::sh;

/// The environment of that name, with what the file `tools` lists for pip and nothing that these would pull in beside it;
/// made anew where it has other tools.
pub(crate) fn environment(name: &str, tools: &str) -> Result<PathBuf, String> {
    let home = target(name)?;
    let wanted = fs::read_to_string(tools).map_err(|error| format!("{tools}: {error}"))?;
    let installed = home.join("installed.txt");
    if fs::read_to_string(&installed).is_ok_and(|found| found == wanted) {
        return Ok(home);
    }
    let on_disk = |error: std::io::Error| format!("{}: {error}", home.display());
    if home.exists() {
        fs::remove_dir_all(&home).map_err(on_disk)?;
    }
    sh(Command::new("python3").args(["-m", "venv"]).arg(&home))?;
    let install = ["install", "--quiet", "--disable-pip-version-check", "--no-deps", "--requirement", tools];
    sh(Command::new(home.join("bin/pip")).args(install))?;
    // Written last: without it, an installation that was broken off is none.
    fs::write(installed, wanted).map_err(on_disk)?;
    Ok(home)
}
