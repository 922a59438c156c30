//! The pinned CUDA compiler, from Python packages, in `target/cuda-toolkit`.
//!
//! It needs Python with pip and a C++ compiler, and neither a GPU nor a driver. Once installed it needs no network.

use std::path::PathBuf;
use std::process::Command;

use crate::files::{install, is_installed, target, text};
use crate::sh;

/// The packages and their hashes, as pip reads them.
const PACKAGES: &str = "tools/xtask/cuda-toolkit.txt";

const HOME: &str = "cuda-toolkit";

/// An installed toolkit.
pub(crate) struct Toolkit {
    bin: PathBuf,
}

impl Toolkit {
    /// The installed toolkit, or what to do where there is none.
    pub(crate) fn installed() -> Result<Self, String> {
        let home = target(HOME)?;
        if is_installed(&home, &text(PACKAGES)?) {
            return Ok(Self { bin: home.join("nvidia/cu13/bin") });
        }
        Err(format!("no CUDA toolkit of {PACKAGES} in {}: run `cargo xtask cuda-toolkit`", home.display()))
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
    let home = target(HOME)?;
    install(&home, &text(PACKAGES)?, || {
        let quietly = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"];
        let pinned = ["--only-binary", ":all:", "--require-hashes", "--requirement", PACKAGES, "--target"];
        sh(Command::new("python3").args(quietly).args(pinned).arg(&home))
    })
}
