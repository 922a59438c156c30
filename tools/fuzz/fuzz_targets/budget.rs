//! Any text as a budget.
#![no_main]

mod limits;

use cacheplan_planner::Budget;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| limits::within(|| {
    let _ = Budget::from_toml(text, "fuzzed");
}));
