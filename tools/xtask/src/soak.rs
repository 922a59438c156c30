//! Runs the randomised tests long. In the suite the same tests run short.

use std::process::Command;

use crate::sh;

/// Random models × budgets that the planner and its checker agree on.
const PLANNER_CASES: u32 = 100_000;
/// Random operations on the managers and on the prefix tree.
const STATE_MACHINE_OPS: u32 = 1_000_000;

/// Requests that are served at once by a tiny hybrid with all that makes a run hard.
const REQUESTS: u32 = 10_000;

/// What is read and written: each reader for so many seconds, two at a time; all changes of the tampered plans; writers
/// that are killed. In a debug build, whose arithmetic is checked, and whose limits of time are the same.
pub(crate) fn files(seconds_per_reader: u32, kills: u32) -> Result<(), String> {
    sh(Command::new("cargo")
        .args(["test", "--workspace", "--test", "readers", "--test", "tampered_plans", "--test", "replace"])
        .args(["--", "--nocapture", "--test-threads", "2"])
        .env("CACHEPLAN_SOAK_SECONDS", seconds_per_reader.to_string())
        .env("CACHEPLAN_SOAK_KILLS", kills.to_string()))
}

/// A model under more requests than its pools hold.
pub(crate) fn requests() -> Result<(), String> {
    sh(Command::new("cargo")
        .args(["test", "--workspace", "--test", "soak", "--", "--nocapture"])
        .env("CACHEPLAN_SOAK_REQUESTS", REQUESTS.to_string()))
}

/// The planner against its checker, and the managers against their models.
pub(crate) fn machines() -> Result<(), String> {
    sh(Command::new("cargo")
        .args(["test", "--release", "-p", "cacheplan-planner", "-p", "cacheplan-managers", "--", "--nocapture"])
        .env("CACHEPLAN_SOAK_CASES", PLANNER_CASES.to_string())
        .env("CACHEPLAN_SOAK_OPS", STATE_MACHINE_OPS.to_string()))
}
