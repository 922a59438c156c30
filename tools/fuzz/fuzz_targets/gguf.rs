//! Any bytes as a `.gguf` file.
#![no_main]

mod limits;

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tempfile::TempDir;

static FOLDER: LazyLock<TempDir> = LazyLock::new(|| TempDir::new().expect("a folder for the input"));

fuzz_target!(|bytes: &[u8]| limits::walk_file(&FOLDER.path().join("fuzzed.gguf"), bytes));
