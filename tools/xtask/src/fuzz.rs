//! Runs every fuzz target, from seeds that are the real files of the fixtures.
//!
//! Needs a nightly toolchain and `cargo install cargo-fuzz`; nothing else in the project does, `check` included.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::sh;

/// A target and the files that it starts from.
struct Target {
    name: &'static str,
    seeds: &'static [(&'static str, &'static str)],
}

const ARCHITECTURES: &str = "transforms/src/frontend/config/architectures";

/// Folders of seeds, each with the end of the names that count.
const TARGETS: [Target; 10] = [
    Target { name: "config", seeds: &[("tests/fixtures", ".json")] },
    Target { name: "description", seeds: &[(ARCHITECTURES, ".toml")] },
    Target { name: "safetensors", seeds: &[("tests/fixtures/models", "model.safetensors")] },
    Target { name: "gguf", seeds: &[("tests/fixtures/gguf", ".gguf")] },
    Target { name: "onnx", seeds: &[("tests/fixtures", ".onnx")] },
    Target { name: "builder", seeds: &[] },
    Target { name: "plan", seeds: &[] },
    Target { name: "budget", seeds: &[] },
    Target { name: "stats", seeds: &[] },
    Target { name: "trace", seeds: &[("tests/readers/seeds", ".jsonl")] },
];

/// Headers are at the beginning; weights teach the fuzzer nothing.
const MAX_SEED: u64 = 64 << 10;

/// Type-checks and lints the targets, which no other build looks at.
pub(crate) fn check() -> Result<(), String> {
    sh(Command::new("cargo")
        .args(["clippy", "--manifest-path", "tools/fuzz/Cargo.toml", "--", "-D", "warnings"])
        // Nothing is linked, so libFuzzer need not be built.
        .env("CUSTOM_LIBFUZZER_PATH", "not-linked/libfuzzer.a"))
}

pub(crate) fn run(seconds_per_target: u32) -> Result<(), String> {
    let installed = Command::new("cargo").args(["+nightly", "fuzz", "--version"]).output();
    if !installed.is_ok_and(|output| output.status.success()) {
        check()?;
        return Err("the targets compile; to run them install a nightly toolchain and `cargo install cargo-fuzz`. \
                    `cargo xtask soak` holds the same readers to the same limits without either"
            .into());
    }
    for target in &TARGETS {
        let corpus = corpus(target).map_err(|error| format!("seeds of {}: {error}", target.name))?;
        sh(Command::new("cargo")
            // The code under test forbids unsafe code, so that a sanitizer would only slow it down.
            .args(["+nightly", "fuzz", "run", "--fuzz-dir", "tools/fuzz", "--sanitizer", "none", target.name])
            .arg(corpus)
            .args(["--", "-timeout=60", "-rss_limit_mb=1024"])
            .arg(format!("-max_len={MAX_SEED}"))
            .arg(format!("-max_total_time={seconds_per_target}")))?;
    }
    Ok(())
}

/// The target's corpus folder, with the seeds added to what earlier runs found.
fn corpus(target: &Target) -> std::io::Result<PathBuf> {
    let corpus = PathBuf::from("tools/fuzz/corpus").join(target.name);
    fs::create_dir_all(&corpus)?;
    for (folder, ending) in target.seeds {
        copy_seeds(Path::new(folder), ending, &corpus)?;
    }
    fs::canonicalize(corpus)
}

fn copy_seeds(folder: &Path, ending: &str, corpus: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            copy_seeds(&path, ending, corpus)?;
        } else if path.to_string_lossy().ends_with(ending) {
            let mut seed = Vec::new();
            fs::File::open(&path)?.take(MAX_SEED).read_to_end(&mut seed)?;
            // Files of one name lie in many folders.
            fs::write(corpus.join(path.to_string_lossy().replace('/', "_")), seed)?;
        }
    }
    Ok(())
}
