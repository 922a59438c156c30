//! Any text as a `config.json`.
#![no_main]

mod limits;

use cacheplan_transforms::{ReadOptions, read_config_str};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| limits::walk(|| read_config_str("fuzzed", text, &ReadOptions::default())));
