//! Builds the CUDA kernels for every architecture, reads what the compiler made of them, and runs their proofs in the
//! emulator.

use crate::cuda_build::{architectures, kernels as sources, ptx};
use crate::cuda_toolkit::Toolkit;
use crate::files::{at, target, text};
use crate::{output, said, sh};
use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Proves the kernels: all shapes, schedules and mutants and whole models, or a fixed sample of the former.
pub(crate) fn run(all: bool) -> Result<(), String> {
    let toolkit = Toolkit::installed()?;
    let folder = target("cuda")?;
    let on_disk = at(&folder);
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(on_disk)?;
    }
    fs::create_dir_all(folder.join("proven")).map_err(on_disk)?;
    let mut kernels = Vec::new();
    for source in sources()? {
        let name = source.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let text = ptx(&toolkit, &source)?;
        let file = folder.join(&name).with_extension("ptx");
        fs::write(&file, &text).map_err(on_disk)?;
        let limits = limits(&source)?;
        for (place, architecture) in architectures().enumerate() {
            let found = assemble(&toolkit, &file, architecture)?;
            for (kernel, code) in &found {
                let limit = limits.iter().find(|limit| kernel.starts_with(&limit.prefix));
                let limit = limit.ok_or_else(|| format!("{}: no `// prove` line for {kernel}", source.display()))?;
                check(kernel, architecture, code, limit)?;
            }
            if place == 0 {
                kernels.extend(found.into_keys());
            }
        }
    }
    // Of the whole workspace, so that nothing is compiled for this alone; other crates have no such tests.
    let mut tests = Command::new("cargo");
    tests.args(["test", "--workspace", "--lib", "--locked", "--", "--ignored", "tests::cuda"]);
    tests.env("CACHEPLAN_CUDA_PTX", &folder);
    if all {
        tests.env("CACHEPLAN_PROVE_ALL", "1");
    }
    sh(&mut tests)?;
    if all {
        // Whole models.
        let mut models = Command::new("cargo");
        models.args(["test", "--workspace", "--test", "emulated", "--locked", "--", "--ignored"]);
        sh(models.env("CACHEPLAN_CUDA_PTX", &folder))?;
    }
    kernels.retain(|kernel| !folder.join("proven").join(kernel).exists());
    if kernels.is_empty() { Ok(()) } else { Err(format!("no proof executes {}", kernels.join(", "))) }
}

/// What a source states of its kernels: `// prove PREFIX: 64 registers, LDG.E.128, HMMA`.
struct Limits {
    prefix: String,
    registers: u32,
    instructions: Vec<String>,
}

fn limits(source: &Path) -> Result<Vec<Limits>, String> {
    let text = text(source)?;
    let lines = text.lines().filter_map(|line| line.strip_prefix("// prove "));
    lines
        .map(|line| {
            let parsed = line.split_once(": ").and_then(|(prefix, wanted)| {
                let mut wanted = wanted.split(", ");
                let registers = wanted.next()?.strip_suffix(" registers")?.parse().ok()?;
                Some(Limits { prefix: prefix.to_owned(), registers, instructions: wanted.map(str::to_owned).collect() })
            });
            parsed.ok_or_else(|| format!("{}: cannot read `{line}`", source.display()))
        })
        .collect()
}

/// What the assembler made of one kernel.
struct Code {
    registers: u32,
    /// Bytes of spills and of any other local memory.
    local_bytes: u32,
    text: String,
}

/// Machine code of a PTX file, by kernel.
fn assemble(toolkit: &Toolkit, ptx: &Path, architecture: &str) -> Result<HashMap<String, Code>, String> {
    let cubin = ptx.with_extension(format!("{architecture}.cubin"));
    let mut ptxas = toolkit.command("ptxas");
    ptxas.args(["--verbose", "--gpu-name", architecture, "--output-file"]).arg(&cubin).arg(ptx);
    let assembled = output(&mut ptxas)?;
    let messages = String::from_utf8_lossy(&assembled.stderr);
    let listing = said(toolkit.command("nvdisasm").arg("--print-code").arg(&cubin))?;
    let mut kernels = HashMap::new();
    // "Compiling entry function 'NAME' for ..", then lines with its numbers.
    for message in messages.split("Compiling entry function '").skip(1) {
        let name = message.split('\'').next().unwrap_or("").to_owned();
        let number_before = |word: &str| -> Option<u32> {
            message
                .split(word)
                .next()
                .filter(|before| before.len() < message.len())?
                .split_whitespace()
                .last()?
                .parse()
                .ok()
        };
        let registers = number_before(" registers").ok_or_else(|| format!("{name}: no registers in {message}"))?;
        let local = ["bytes stack frame", "bytes spill stores", "bytes spill loads"].map(number_before);
        let local_bytes = local.into_iter().flatten().sum();
        let section = format!(".text.{name},");
        let text = listing.split(".section\t").find(|part| part.trim_start().starts_with(&section));
        let text = text.ok_or_else(|| format!("{name}: no code in {}", cubin.display()))?.to_owned();
        kernels.insert(name, Code { registers, local_bytes, text });
    }
    Ok(kernels)
}

fn check(kernel: &str, architecture: &str, code: &Code, limit: &Limits) -> Result<(), String> {
    let refuse = |what: String| Err(format!("{kernel} on {architecture}: {what}"));
    if code.local_bytes > 0 {
        return refuse(format!("{} bytes of spills and local memory", code.local_bytes));
    }
    if code.registers > limit.registers {
        return refuse(format!("{} registers, at most {} are stated", code.registers, limit.registers));
    }
    match limit.instructions.iter().find(|instruction| !code.text.contains(instruction.as_str())) {
        Some(missing) => refuse(format!("no {missing} in its code")),
        None => Ok(()),
    }
}
