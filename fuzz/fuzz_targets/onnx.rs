//! Any bytes as a `.onnx` file. Run with `cargo +nightly fuzz run onnx`.
#![no_main]

mod read_file;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| read_file::read_file(bytes, ".onnx"));
