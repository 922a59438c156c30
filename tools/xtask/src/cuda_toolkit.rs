//! The pinned CUDA compiler, from Python packages, in `target/cuda-toolkit`.
//!
//! It needs Python with pip and a C++ compiler, and neither a GPU nor a driver. Once installed it needs no network.

use crate::sh;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The packages and their hashes, as pip reads them.
const PACKAGES: &str = "tools/xtask/cuda-toolkit.txt";

/// An installed toolkit.
pub(crate) struct Toolkit {
    bin: PathBuf,
}

impl Toolkit {
    /// The installed toolkit, or what to do where there is none.
    pub(crate) fn installed() -> Result<Self, String> {
        let home = home()?;
        let (found, wanted) = (fs::read_to_string(home.join("installed.txt")), packages()?);
        match found {
            Ok(found) if found == wanted => Ok(Self { bin: home.join("nvidia/cu13/bin") }),
            _ => Err(format!("no CUDA toolkit of {PACKAGES} in {}: run `cargo xtask cuda-toolkit`", home.display())),
        }
    }

    /// A program of the toolkit.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.bin.join(program));
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", self.bin.display()));
        command
    }
}

/// Installs the toolkit, unless it is there already.
pub(crate) fn run() -> Result<(), String> {
    if Toolkit::installed().is_ok() {
        return Ok(());
    }
    let home = home()?;
    let on_disk = |error: std::io::Error| format!("{}: {error}", home.display());
    if home.exists() {
        fs::remove_dir_all(&home).map_err(on_disk)?;
    }
    sh(Command::new("python3")
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:"])
        .args(["--require-hashes", "--requirement", PACKAGES, "--target"])
        .arg(&home))?;
    // Written last: without it, an installation that was broken off is none.
    fs::write(home.join("installed.txt"), packages()?).map_err(on_disk)
}

fn packages() -> Result<String, String> {
    fs::read_to_string(PACKAGES).map_err(|error| format!("{PACKAGES}: {error}"))
}

fn home() -> Result<PathBuf, String> {
    target("cuda-toolkit")
}

/// A folder below cargo's target folder.
pub(crate) fn target(folder: &str) -> Result<PathBuf, String> {
    let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".into());
    std::path::absolute(Path::new(&target).join(folder)).map_err(|error| error.to_string())
}
