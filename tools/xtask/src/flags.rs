//! The tables of flags that engines' own parsers take: `planner/serve/src/flags/*.tsv`.

use std::fs;
use std::process::Command;

use crate::cuda_toolkit::target;
use crate::sh;

/// What is read: several versions of the two that change the most.
const WHEELS: [&str; 17] = [
    "vllm==0.11.0",
    "vllm==0.18.0",
    "vllm==0.24.0",
    "vllm==0.28.0",
    "vllm==0.33.0",
    "sglang==0.4.1",
    "sglang==0.4.4",
    "sglang==0.4.6",
    "sglang==0.4.9",
    "sglang==0.5.1",
    "sglang==0.5.4",
    "sglang==0.5.9",
    "sglang==0.5.14",
    "sglang==0.5.18",
    "sglang==0.5.23",
    "ai-dynamo==1.6.1",
    "xllamacpp==2026.10.11549",
];

/// llama.cpp's sources, as a crate carries them; names are held to those in the library of the wheel.
const SOURCES: &str = "[package]\nname = \"sources\"\nversion = \"0.0.0\"\nedition = \"2024\"\n[workspace]\n[lib]\npath = \"lib.rs\"\n\
                       [dependencies]\nllama-cpp-sys-2 = \"=0.1.161\"\n";

/// Fetches wheels without installing them, and writes the tables of their parsers. TensorRT-LLM's stays as it was read.
pub(crate) fn run() -> Result<(), String> {
    let folder = target("flags/wheels")?;
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    for wheel in WHEELS {
        let quietly = ["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest"];
        sh(Command::new("python3").args(quietly).arg(&folder).arg(wheel))?;
    }
    let crates = target("flags/sources")?;
    let write = |name: &str, text: &str| {
        fs::create_dir_all(&crates).and_then(|()| fs::write(crates.join(name), text)).map_err(|error| error.to_string())
    };
    write("Cargo.toml", SOURCES)?;
    write("lib.rs", "")?;
    sh(Command::new("cargo").args(["vendor", "--quiet", "vendored"]).current_dir(&crates))?;
    let source = crates.join("vendored/llama-cpp-sys-2/llama.cpp/common/arg.cpp");
    fs::copy(&source, folder.join("arg.cpp")).map_err(|error| format!("{}: {error}", source.display()))?;
    let script = "tools/xtask/serve/flags.py";
    sh(Command::new("python3").arg(script).arg(&folder).arg("planner/serve/src/flags"))
}
