//! The tables of flags that engines' own parsers take: `planner/serve/src/flags/*.tsv`.

use std::fs;
use std::process::Command;

use crate::files::{at, target};
use crate::sh;

/// The versions that are read of wheels: a release of each series, and of SGLang the last that has its number.
const WHEELS: [(&str, &str); 4] = [
    (
        "vllm",
        "0.8.5 0.9.2 0.10.0 0.10.2 0.11.0 0.12.0 0.13.0 0.14.0 0.15.0 0.16.0 0.17.0 0.18.0 0.19.0 0.20.0 0.21.0 0.22.0 0.23.0 \
         0.24.0 0.25.0 0.26.0 0.27.0 0.28.0 0.29.0 0.30.0 0.31.0 0.32.0 0.33.0",
    ),
    (
        "sglang",
        "0.4.1 0.4.1.post7 0.4.4 0.4.4.post4 0.4.6 0.4.6.post5 0.4.8 0.4.8.post1 0.4.9 0.4.9.post6 0.4.10 0.4.10.post2 0.5.1 \
         0.5.1.post3 0.5.2 0.5.3 0.5.3.post3 0.5.4 0.5.4.post3 0.5.5 0.5.5.post3 0.5.6 0.5.6.post2 0.5.7 0.5.8 0.5.8.post1 0.5.9 \
         0.5.10 0.5.10.post1 0.5.11 0.5.12 0.5.12.post1 0.5.13 0.5.13.post1 0.5.14 0.5.15 0.5.15.post1 0.5.16 0.5.17 0.5.18 \
         0.5.19 0.5.20 0.5.21 0.5.22 0.5.23",
    ),
    ("ai-dynamo", "1.6.1"),
    ("xllamacpp", "2026.4.8672 2026.5.9093 2026.6.9538 2026.7.9873 2026.8.10229 2026.9.10809 2026.10.11549"),
];

/// Versions of a crate that carries llama.cpp's sources, and the build that each is about, by its date; from the wheels' builds on
/// names are held to those in the library.
const SOURCES: [(&str, u32); 16] = [
    ("0.1.103", 5260),
    ("0.1.109", 5850),
    ("0.1.118", 6195),
    // b6325 gave `-fa` a value.
    ("0.1.120", 6324),
    ("0.1.122", 6325),
    ("0.1.125", 7060),
    ("0.1.130", 7390),
    ("0.1.133", 7940),
    ("0.1.137", 8190),
    ("0.1.142", 8672),
    ("0.1.146", 9093),
    ("0.1.147", 9538),
    ("0.1.151", 9873),
    ("0.1.154", 10229),
    ("0.1.156", 10809),
    ("0.1.161", 11549),
];

/// Fetches the parsers' modules, and writes the tables of their flags. TensorRT-LLM's stays as it was read.
pub(crate) fn run() -> Result<(), String> {
    let folder = target("flags/modules")?;
    fs::create_dir_all(&folder).map_err(at(&folder))?;
    let wheels = WHEELS.iter().flat_map(|(name, versions)| versions.split(' ').map(move |of| format!("{name}=={of}")));
    sh(Command::new("python3").arg("tools/xtask/serve/wheels.py").arg(&folder).args(wheels))?;
    for (version, build) in SOURCES {
        let kept = folder.join(format!("b{build}.cpp"));
        if kept.exists() {
            continue;
        }
        let sources = target(&format!("flags/sources/{version}"))?;
        let manifest = format!(
            "[package]\nname = \"sources\"\nversion = \"0.0.0\"\nedition = \"2024\"\n[workspace]\n[lib]\npath = \"lib.rs\"\n\
             [dependencies]\nllama-cpp-sys-2 = \"={version}\"\n"
        );
        fs::create_dir_all(&sources)
            .and_then(|()| fs::write(sources.join("Cargo.toml"), manifest))
            .and_then(|()| fs::write(sources.join("lib.rs"), ""))
            .map_err(at(&sources))?;
        sh(Command::new("cargo").args(["vendor", "--quiet", "vendored"]).current_dir(&sources))?;
        let source = sources.join("vendored/llama-cpp-sys-2/llama.cpp/common/arg.cpp");
        fs::copy(&source, &kept).map_err(at(&source))?;
    }
    sh(Command::new("python3").arg("tools/xtask/serve/flags.py").arg(&folder).arg("planner/serve/src/flags"))
}
