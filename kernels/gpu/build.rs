//! Embeds the kernels that `cargo xtask gpu-kernels` has built: a fat binary and the PTX of each source.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::{env, fs};

/// Where they are, from this folder, unless the variable says otherwise.
const FOLDER: (&str, &str) = ("CACHEPLAN_GPU_KERNELS", "../../target/cuda");

fn main() -> Result<(), String> {
    let (variable, usual) = FOLDER;
    println!("cargo::rerun-if-env-changed={variable}");
    let folder = PathBuf::from(env::var_os(variable).unwrap_or_else(|| usual.into()));
    let folder = std::path::absolute(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    // New ones too.
    println!("cargo::rerun-if-changed={}", folder.display());
    let entries = fs::read_dir(&folder).map(|entries| entries.flatten().map(|entry| entry.path()).collect());
    let mut binaries: Vec<PathBuf> = entries.unwrap_or_default();
    binaries.retain(|path| path.extension().is_some_and(|extension| extension == "fatbin"));
    binaries.sort();
    if binaries.is_empty() {
        return Err(format!("no kernels in {}: run `cargo xtask gpu-kernels`", folder.display()));
    }
    let mut list = String::from("pub(crate) static MODULES: &[Compiled] = &[\n");
    for binary in binaries {
        let ptx = binary.with_extension("ptx");
        println!("cargo::rerun-if-changed={}", binary.display());
        println!("cargo::rerun-if-changed={}", ptx.display());
        let (binary, ptx) = (binary.display().to_string(), ptx.display().to_string());
        let name = binary.rsplit('/').next().unwrap_or_default().trim_end_matches(".fatbin");
        writeln!(
            list,
            "    Compiled {{ name: {name:?}, binary: include_bytes!({binary:?}), ptx: include_str!({ptx:?}) }},"
        )
        .map_err(|error| error.to_string())?;
    }
    list.push_str("];\n");
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("no OUT_DIR")?).join("modules.rs");
    fs::write(&out, list).map_err(|error| format!("{}: {error}", out.display()))
}
