//! vLLM's own groups of caches beside those that our plugin gives it, in vLLM's planner and block pool.

use std::fs;
use std::process::Command;

use super::{CONFIGS, answers, script, vllm};
use crate::files::{at, text};
use crate::python;
use crate::venv::{environment, put_wheel};

const DOCS: &str = "docs/engines.md";
const BEGIN: &str = "<!-- measured by `cargo xtask oracle vllm-groups` -->\n";
const END: &str = "<!-- end of measured -->\n";

/// Fills the block pool with the zoo's sequences under either grouping, counts those of `random` hybrids, and writes both down
/// where the docs have them.
pub(super) fn run(random: u64) -> Result<(), String> {
    let home = vllm::newest()?;
    let python = home.join("bin/python");
    let wheel = python::wheel_of_source(&environment("python", python::TOOLS)?)?;
    put_wheel(&home, &wheel)?;
    let random = random.to_string();
    let asked = |set: &str, arguments: &[&str]| {
        let questions = answers(Command::new(&python).arg(script("questions.py")).arg(set).args(arguments), "")?;
        let mut groups = Command::new(&python);
        groups.arg(script("vllm_groups.py")).args([CONFIGS, set]).env("LD_LIBRARY_PATH", &home);
        answers(&mut groups, &questions)
    };
    let table = asked("zoo", &[CONFIGS])?;
    let line = asked("random", &[CONFIGS, &random])?;
    fs::write(DOCS, written(&text(DOCS)?, &format!("{table}{line}"))?).map_err(at(&DOCS))
}

/// The docs with `measured` in the part that is ours.
fn written(text: &str, measured: &str) -> Result<String, String> {
    let lacks = |what: &str| format!("{DOCS}: has no line `{}`", what.trim_end());
    let (before, rest) = text.split_once(BEGIN).ok_or_else(|| lacks(BEGIN))?;
    let (_, after) = rest.split_once(END).ok_or_else(|| lacks(END))?;
    Ok(format!("{before}{BEGIN}{measured}{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_part_of_the_docs_is_written() {
        let text = format!("a\n{END}{BEGIN}old\n{END}b\n");
        assert_eq!(written(&text, "new\n"), Ok(format!("a\n{END}{BEGIN}new\n{END}b\n")));
        assert_eq!(written("a\n", "new\n"), Err(format!("{DOCS}: has no line `{}`", BEGIN.trim_end())));
    }

    #[test]
    fn the_docs_have_our_part() {
        let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(DOCS);
        let text = fs::read_to_string(docs).expect("the docs are there");
        assert!(written(&text, "").is_ok());
    }
}
