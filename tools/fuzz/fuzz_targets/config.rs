//! Any text as a `config.json`.
#![no_main]

mod limits;

use cacheplan_transforms::{Model, ReadOptions};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| limits::walk(|| Model::read_config("fuzzed", text, &ReadOptions::default())));
