//! SGLang's argument parser, its pool sizes, and its tree.
//!
//! They need about 6 GB in `target/oracles`.

use std::process::Command;

use super::{CONFIGS, ROWS, answers, script, write};
use crate::files::text;
use crate::{sh, venv};

const VERSION: &str = "0.5.23";

/// Asks about the exports that the planner's tests have written, about models with compressed caches, and about every config.
pub(super) fn run() -> Result<(), String> {
    let python = venv::environment("oracles/sglang", "tools/xtask/oracle/sglang.txt")?.join("bin/python");
    let every = answers(Command::new(&python).arg(script("questions.py")).args(["pools", CONFIGS]), "")?;
    write("pools.sglang.jsonl", &every)?;
    for what in ["exports", "compressed", "pools"] {
        let path = format!("{ROWS}/{what}.sglang.jsonl");
        let questions = text(path)?;
        let said = answers(Command::new(&python).arg(script("sglang_pools.py")).arg(CONFIGS), &questions)?;
        write(&format!("sglang-{VERSION}.{what}.txt"), &said)?;
    }
    Ok(())
}

/// Asks its parser, its checks and its pools about the commands in the fixtures.
pub(super) fn commands() -> Result<(), String> {
    let python = venv::environment("oracles/sglang", "tools/xtask/oracle/sglang.txt")?.join("bin/python");
    for what in ["commands", "devices"] {
        let questions = text(format!("{ROWS}/{what}.sglang.jsonl"))?;
        let said =
            answers(Command::new(&python).arg(script("sglang_commands.py")).args([CONFIGS, "short"]), &questions)?;
        write(&format!("sglang-{VERSION}.{what}.txt"), &said)?;
    }
    Ok(())
}

/// Records events of its tree, and the tokens that it goes on from.
pub(super) fn events() -> Result<(), String> {
    let python = venv::environment("oracles/sglang", "tools/xtask/oracle/sglang.txt")?.join("bin/python");
    let out = format!("tests/fixtures/events/sglang-{VERSION}.jsonl.gz");
    sh(Command::new(python).arg(script("sglang_events.py")).arg(out))
}

/// Asks its tree what it hits of small traces, with host memory below a device.
pub(super) fn tiers() -> Result<(), String> {
    let python = venv::environment("oracles/sglang", "tools/xtask/oracle/sglang.txt")?.join("bin/python");
    let said = answers(Command::new(python).arg(script("sglang_tiers.py")), "")?;
    write(&format!("sglang-{VERSION}.tiers.jsonl"), &said)
}
