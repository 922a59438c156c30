//! Any content of a snapshot of the prefix cache whose header and checksum are right.
#![no_main]

#[path = "../../tests/readers/prefix_files.rs"]
mod files;
mod limits;

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tempfile::TempDir;

static FOLDER: LazyLock<TempDir> = LazyLock::new(|| TempDir::new().expect("a folder for the input"));

fuzz_target!(|bytes: &[u8]| limits::within(|| files::check_snapshot(&FOLDER.path().join("cache"), bytes)));
