//! CUDA sources to PTX and to machine code.

use crate::cuda_toolkit::Toolkit;
use crate::files::{at, with_ending};
use crate::said;
use std::fs;
use std::path::{Path, PathBuf};

/// The PTX of a source for the oldest architecture there is, from which that of all others is assembled.
///
/// Lines refer to files by name alone, so that the text does not depend on where it was made.
pub(crate) fn ptx(toolkit: &Toolkit, source: &Path) -> Result<String, String> {
    let mut nvcc = toolkit.command("nvcc");
    nvcc.args(["-O3", "-std=c++17", "-lineinfo", "-ptx", "-o", "/dev/stdout"]);
    nvcc.arg(format!("-arch=compute_{}", oldest())).arg(source);
    let text = said(&mut nvcc)?;
    Ok(text.lines().map(without_folder).collect::<Vec<_>>().join("\n") + "\n")
}

fn without_folder(line: &str) -> String {
    match line.trim_start().strip_prefix(".file").and_then(|file| file.split_once('"')) {
        Some((number, path)) => {
            let path = path.trim_end().trim_end_matches('"');
            format!("\t.file{number}\"{}\"", path.rsplit('/').next().unwrap_or(path))
        }
        None => line.trim_end().to_owned(),
    }
}

/// Machine code is made for each of these, `sm_80`, from the PTX of the first.
pub(crate) fn architectures() -> impl Iterator<Item = &'static str> {
    include_str!("../../../kernels/cuda/architectures.txt").lines()
}

/// The number of the oldest.
pub(crate) fn oldest() -> &'static str {
    architectures().next().unwrap_or_default().trim_start_matches("sm_")
}

/// The sources of all kernels: those of ops, and those that the runner measures a device with.
pub(crate) fn kernels() -> Result<Vec<PathBuf>, String> {
    Ok([with_ending("kernels/cuda", "cu")?, with_ending("kernels/gpu/cuda", "cu")?].concat())
}

/// What they include.
pub(crate) fn headers() -> Result<Vec<PathBuf>, String> {
    with_ending("kernels/cuda", "cuh")
}

/// Writes the PTX that the emulator's own tests run, with the hash of its source on top.
pub(crate) fn write_test_ptx() -> Result<(), String> {
    let toolkit = Toolkit::installed()?;
    for source in with_ending("kernels/emulator/tests/ptx", "cu")? {
        let on_disk = at(&source);
        let hash = blake3::hash(&fs::read(&source).map_err(on_disk)?);
        // Behind the code stand the mangled names of inlined functions, which only the assembler reads.
        let text = ptx(&toolkit, &source)?;
        let code = text.split("\t.section").next().unwrap_or(&text);
        let text = format!("// blake3 of the source: {hash}\n{code}");
        fs::write(source.with_extension("ptx"), text).map_err(on_disk)?;
    }
    Ok(())
}
