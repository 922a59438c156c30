//! What the config classes of Hugging Face transformers say, written down for the front-end and its tests.

use std::process::Command;

use crate::sh;
use crate::venv::environment;

/// The tools and their versions, as pip reads them.
const TOOLS: &str = "tools/xtask/transformers.txt";

/// Scripts that each write one file: what is cached, how many parameters there are, which keys a class has, and what each of
/// them changes.
const SCRIPTS: [&str; 4] = ["make.py", "count.py", "classes.py", "keys.py"];

/// Asks transformers anew.
pub(crate) fn run() -> Result<(), String> {
    let python = environment("transformers", TOOLS)?.join("bin/python");
    SCRIPTS.iter().try_for_each(|script| sh(Command::new(&python).arg(format!("tests/fixtures/transformers/{script}"))))
}
