//! Runs the randomised tests long. In the suite the same tests run short.

use std::process::Command;

use crate::sh;

/// Random models × budgets that the planner and its checker agree on.
const PLANNER_CASES: u32 = 100_000;
/// Random operations on the managers and on the prefix tree.
const STATE_MACHINE_OPS: u32 = 1_000_000;

pub(crate) fn run(seconds_per_front_end: u32) -> Result<(), String> {
    sh(Command::new("cargo")
        .args(["test", "--release"])
        .args(["-p", "cacheplan-transforms", "-p", "cacheplan-planner", "-p", "cacheplan-managers"])
        .args(["--", "--nocapture"])
        .env("CACHEPLAN_SOAK_SECONDS", seconds_per_front_end.to_string())
        .env("CACHEPLAN_SOAK_CASES", PLANNER_CASES.to_string())
        .env("CACHEPLAN_SOAK_OPS", STATE_MACHINE_OPS.to_string()))
}
