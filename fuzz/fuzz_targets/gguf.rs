//! Any bytes as a `.gguf` file. Run with `cargo +nightly fuzz run gguf`.
#![no_main]

mod read_file;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| read_file::read_file(bytes, ".gguf"));
