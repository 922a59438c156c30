//! Engines as oracles: each is installed from its pinned package and asked on a CPU, and its answers are written as rows
//! that a test replays without it.

mod llama_cpp;
mod sglang;
mod vllm;
mod vllm_groups;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::files::at;

const SCRIPTS: &str = "tools/xtask/oracle";
const CONFIGS: &str = "tests/fixtures/configs";
const ROWS: &str = "tests/fixtures/oracles";

/// Asks `engine` about the zoo, and vLLM about `random` hybrids more.
pub(crate) fn run(engine: &str, random: u64) -> Result<(), String> {
    match engine {
        "vllm" => vllm::run(random),
        "vllm-commands" => vllm::commands(random),
        "vllm-events" => vllm::events(),
        "vllm-groups" => vllm_groups::run(random),
        "sglang" => sglang::run(),
        "sglang-commands" => sglang::commands(),
        "sglang-events" => sglang::events(),
        "sglang-tiers" => sglang::tiers(),
        "llama.cpp" => llama_cpp::run(),
        other => Err(format!(
            "`{other}` cannot be asked; vllm, vllm-commands, vllm-events, vllm-groups, sglang, sglang-commands, sglang-events, sglang-tiers and llama.cpp can"
        )),
    }
}

fn write(name: &str, text: &str) -> Result<(), String> {
    let path = Path::new(ROWS).join(name);
    fs::create_dir_all(ROWS).and_then(|()| fs::write(&path, text)).map_err(at(&path))
}

fn script(name: &str) -> PathBuf {
    Path::new(SCRIPTS).join(name)
}

/// What `command` prints when it reads `questions`.
fn answers(command: &mut Command, questions: &str) -> Result<String, String> {
    let program = format!("{command:?}");
    let failed = |error: std::io::Error| format!("{program}: {error}");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(failed)?;
    let mut stdin = child.stdin.take().ok_or("no pipe to the script")?;
    let questions = questions.to_owned();
    // Both pipes are of a few kilobytes: who writes all before reading would wait forever.
    let writing = std::thread::spawn(move || stdin.write_all(questions.as_bytes()));
    let output = child.wait_with_output().map_err(failed)?;
    let written = writing.join().map_err(|_| "the script's input was not written".to_owned())?;
    if !output.status.success() {
        return Err(format!("{program}: {}", output.status));
    }
    written.map_err(|error| error.to_string())?;
    String::from_utf8(output.stdout).map_err(|error| error.to_string())
}
