//! Any text as a plan, and what is exported of those that prove themselves.
#![no_main]

mod limits;

use cacheplan_planner::{CachePlan, Serving, Target, };
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| limits::within(|| {
    if let Ok(plan) = CachePlan::from_json(text, "fuzzed") {
        let _ = (plan.table(), plan.markdown(), plan.svg(), plan.yaml());
        for target in Target::all() {
            let _ = plan.export(target, None, &Serving::default());
        }
    }
}));
