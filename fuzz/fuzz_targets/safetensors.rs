//! Any bytes as a `.safetensors` file. Run with `cargo +nightly fuzz run safetensors`.
#![no_main]

mod read_file;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| read_file::read_file(bytes, ".safetensors"));
