//! Any text as a `config.json`. Run with `cargo +nightly fuzz run config`; seeds: `../tests/fixtures/configs`.
#![no_main]

use cacheplan_transforms::{PassContext, ReadOptions, collect, read_config_str};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(mut model) = read_config_str("fuzzed", text, &ReadOptions::default()) {
        let _ = collect(&mut model.graph, &PassContext::default());
    }
});
