//! With the feature `cuda`, one fat binary of each kernel file: machine code for some architectures, and PTX for later
//! ones. Without it there is nothing to do, and no compiler is asked for.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// Oldest first; from the PTX of that all others are made.
const ARCHITECTURES: &str = include_str!("cuda/architectures.txt");

fn main() -> Result<(), String> {
    println!("cargo::rerun-if-changed=cuda");
    println!("cargo::rerun-if-env-changed=NVCC");
    if env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return Ok(());
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("no OUT_DIR")?);
    let entries = fs::read_dir("cuda").map_err(|error| format!("cuda: {error}"))?;
    let mut sources: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    sources.retain(|path| path.extension().is_some_and(|extension| extension == "cu"));
    sources.sort();
    let oldest = ARCHITECTURES.lines().next().unwrap_or_default().replace("sm_", "compute_");
    let mut list = String::from("static MODULES: &[&[u8]] = &[\n");
    for source in sources {
        let binary = out.join(source.with_extension("fatbin").file_name().unwrap_or_default());
        let mut nvcc = Command::new(env::var_os("NVCC").unwrap_or_else(|| "nvcc".into()));
        nvcc.args(["-O3", "-std=c++17", "-fatbin"]);
        for code in ARCHITECTURES.lines().chain([&*oldest]) {
            nvcc.args(["-gencode".to_owned(), format!("arch={oldest},code={code}")]);
        }
        let status = nvcc.arg("-o").arg(&binary).arg(&source).status();
        if !status.map_err(|error| format!("{nvcc:?}: {error}"))?.success() {
            return Err(format!("{nvcc:?} failed"));
        }
        writeln!(list, "    include_bytes!({:?}),", binary.display().to_string()).map_err(|error| error.to_string())?;
    }
    list.push_str("];\n");
    fs::write(out.join("modules.rs"), list).map_err(|error| format!("{}: {error}", out.display()))
}
