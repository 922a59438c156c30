//! Type-checks and lints the `cuda` feature where no CUDA toolkit exists.
//!
//! The build scripts of candle's kernels and of cudarc only ask `nvcc` for its version and for files; a stub that
//! answers both is enough for `cargo clippy`. Nothing that is built this way can be linked or run.

use crate::files::{at, target};
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::{sh, stub};

/// cudarc reads the release from the fourth line of the version text.
const STUB_NVCC: &str = r#"#!/bin/sh
out= dir=. mode=object last=
while [ $# -gt 0 ]; do
  case "$1" in
    --version|-V)
      echo "nvcc: NVIDIA (R) Cuda compiler driver"
      echo "Stub for type-checking"
      echo "Built never"
      echo "Cuda compilation tools, release 13.0, V13.0.88"
      exit 0 ;;
    --list-gpu-code) echo sm_80; echo sm_90; exit 0 ;;
    --list-gpu-arch) echo compute_80; echo compute_90; exit 0 ;;
    --ptx|-ptx) mode=ptx ;;
    --lib|-lib) mode=lib ;;
    -o) shift; out=$1 ;;
    --output-directory|-odir) shift; dir=$1 ;;
    *.cu) last=$1 ;;
  esac
  shift
done
case $mode in
  ptx) : > "${out:-$dir/$(basename "$last" .cu).ptx}" ;;
  lib) printf '!<arch>\n' > "$out" ;;
  *) [ -n "$out" ] && : > "$out" ;;
esac
exit 0
"#;

/// The crates with a CUDA path.
const CRATES: [&str; 5] =
    ["cacheplan-kernels", "cacheplan-managers", "cacheplan-runtime", "cacheplan", "cacheplan-cli"];

pub(crate) fn run() -> Result<(), String> {
    let home = target("stub-cuda")?;
    let nvcc = install_stub(&home).map_err(at(&home))?;
    let path = std::env::var("PATH").unwrap_or_default();
    sh(Command::new("cargo")
        .arg("clippy")
        .args(CRATES.iter().flat_map(|name| ["-p", name]))
        .args(["--all-targets", "--features", "cuda", "--", "-D", "warnings"])
        .env("PATH", format!("{}:{path}", home.join("bin").display()))
        .env("NVCC", nvcc)
        .env("CUDA_HOME", &home)
        .env("CUDA_PATH", &home)
        .env("CUDA_ROOT", &home)
        .env("CUDA_COMPUTE_CAP", "90")
        // Its own folder, so that switching between the two feature sets rebuilds nothing.
        .env("CARGO_TARGET_DIR", home.join("target")))
}

/// Writes the stub as `bin/nvcc` below `home`, with the folders that the build scripts look for.
fn install_stub(home: &Path) -> std::io::Result<std::path::PathBuf> {
    for folder in ["include", "lib64"] {
        fs::create_dir_all(home.join(folder))?;
    }
    let nvcc = home.join("bin/nvcc");
    stub::install(&nvcc, STUB_NVCC)?;
    Ok(nvcc)
}
