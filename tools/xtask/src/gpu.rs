//! The runner `cacheplan-gpu`: its kernels, its build, and what is asked of it.

use crate::cuda_build::{self, architectures, oldest, ptx};
use crate::cuda_toolkit::Toolkit;
use crate::files::{at, target};
use crate::said;
use crate::sh;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

/// Makes a fat binary of each source in `target/cuda`. What lies there and is newer than its source is not made anew, so
/// that after `cuda-prove` it holds the very machine code that was checked.
pub(crate) fn kernels() -> Result<(), String> {
    let toolkit = Toolkit::installed()?;
    let folder = target("cuda")?;
    fs::create_dir_all(&folder).map_err(at(&folder))?;
    let headers = newest(cuda_build::headers()?)?;
    for source in cuda_build::kernels()? {
        let age = headers.max(newest([&source])?);
        let made = |path: &Path| fs::metadata(path).and_then(|file| file.modified()).is_ok_and(|time| time > age);
        let text = folder.join(source.file_stem().unwrap_or_default()).with_extension("ptx");
        if !made(&text) {
            fs::write(&text, ptx(&toolkit, &source)?).map_err(at(&text))?;
        }
        let mut cubins = Vec::new();
        for architecture in architectures() {
            let cubin = text.with_extension(format!("{architecture}.cubin"));
            if !made(&cubin) {
                let mut ptxas = toolkit.command("ptxas");
                sh(ptxas.args(["--gpu-name", architecture, "--output-file"]).arg(&cubin).arg(&text))?;
            }
            cubins.push((architecture, cubin));
        }
        let binary = text.with_extension("fatbin");
        let parts = newest(cubins.iter().map(|(_, cubin)| cubin).chain([&text]))?;
        if fs::metadata(&binary).and_then(|file| file.modified()).is_ok_and(|time| time > parts) {
            continue;
        }
        let mut pack = toolkit.command("fatbinary");
        pack.args(["-64", "--compress-all"]).arg(format!("--create={}", binary.display()));
        for (architecture, cubin) in &cubins {
            let number = architecture.trim_start_matches("sm_");
            pack.arg(format!("--image3=kind=elf,sm={number},file={}", cubin.display()));
        }
        sh(pack.arg(format!("--image3=kind=ptx,sm={},file={}", oldest(), text.display())))?;
    }
    Ok(())
}

/// When the newest of these files was written.
fn newest(files: impl IntoIterator<Item = impl AsRef<Path>>) -> Result<SystemTime, String> {
    let mut newest = SystemTime::UNIX_EPOCH;
    for file in files {
        let file = file.as_ref();
        let written = fs::metadata(file).and_then(|file| file.modified());
        newest = newest.max(written.map_err(at(&file))?);
    }
    Ok(newest)
}

/// `cargo` in the runner's workspace, which has a folder of its own for what it builds.
fn cargo(command: &str) -> Result<Command, String> {
    let mut cargo = Command::new("cargo");
    cargo.args([command, "--manifest-path", "kernels/gpu/Cargo.toml", "--locked"]);
    cargo.env("CACHEPLAN_GPU_KERNELS", target("cuda")?).env("CARGO_TARGET_DIR", target("gpu")?);
    Ok(cargo)
}

/// Builds the runner, and says where it is.
pub(crate) fn build() -> Result<PathBuf, String> {
    kernels()?;
    sh(cargo("build")?.arg("--release"))?;
    Ok(target("gpu")?.join("release/cacheplan-gpu"))
}

/// The newest symbols of glibc that the binary may ask for, so that it starts where Debian 12 does.
const GLIBC: (u32, u32) = (2, 36);

/// Builds the runner, lints and tests it, and has it check every op in the emulator; needs no GPU.
pub(crate) fn check() -> Result<(), String> {
    kernels()?;
    sh(Command::new("cargo").args(["fmt", "--manifest-path", "kernels/gpu/Cargo.toml", "--check"]))?;
    let binary = build()?;
    starts_alone(&binary)?;
    sh(Command::new(&binary).args(["doctor", "--device", "emulator"]))?;
    sh(cargo("test")?.args(["--release", "--quiet"]))?;
    // In release as well: what is built of candle for it is there already.
    sh(cargo("clippy")?.args(["--release", "--all-targets", "--", "-D", "warnings"]))?;
    sh(Command::new("python3").args(["-m", "py_compile", PEERS]))?;
    let sizes = target("gpu")?.join("sizes.json");
    sh(Command::new(&binary).args(["bench", "--list", "--json"]).arg(&sizes))?;
    sh(Command::new("python3").args([PEERS, "--dry-run", "--sizes"]).arg(&sizes))
}

/// The same sizes through other projects' kernels.
pub(crate) const PEERS: &str = "benches/peers/cuda.py";

/// That a binary needs glibc alone, and none newer than is promised.
fn starts_alone(binary: &Path) -> Result<(), String> {
    let says = |options: &str| said(Command::new("objdump").arg(options).arg(binary));
    let needed = says("-p")?;
    let needed = needed.lines().filter_map(|line| line.trim().strip_prefix("NEEDED")).map(str::trim);
    let usual = ["libc.so.6", "libm.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2"];
    if let Some(other) = needed.clone().find(|library| !usual.contains(library)) {
        return Err(format!("{} needs {other}, which is not everywhere", binary.display()));
    }
    let newer = |version: &str| {
        let (major, minor) = version.split_once('.')?;
        let found = (major.parse().ok()?, minor.split('.').next()?.parse().ok()?);
        (found > GLIBC).then_some(found)
    };
    let symbols = says("-T")?;
    let mut versions = symbols.split("GLIBC_").skip(1).filter_map(|text| text.split(')').next());
    match versions.find_map(newer) {
        None => Ok(()),
        Some((major, minor)) => Err(format!("{} asks for glibc {major}.{minor}", binary.display())),
    }
}
