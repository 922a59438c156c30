//! How close each op comes to what this machine can do.
//!
//! Every figure is measured beside the machine's own: bytes per second over the rate of a plain copy or a plain
//! read, or floating-point operations per second over the rate of a large matrix product, in the same run.
//! A copy counts the bytes it reads and the bytes it writes.

mod cases;
mod machine;

use crate::error::Result;
use std::time::{Duration, Instant};

pub use machine::Machine;

/// What bounds an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Reading and writing memory.
    Copy,
    /// Reading memory.
    Read,
    /// Floating-point operations.
    Compute,
}

/// One measured op.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// The op.
    pub op: &'static str,
    /// Its sizes.
    pub shape: String,
    /// What bounds it.
    pub bound: Bound,
    /// Bytes or floating-point operations of one call.
    pub work: f64,
    /// Seconds of one call in the best round.
    pub seconds: f64,
    /// The machine's own rate in bytes or operations per second in its best round.
    pub peak: f64,
}

impl Measurement {
    /// Bytes or operations per second.
    pub fn rate(&self) -> f64 {
        self.work / self.seconds
    }

    /// Part of the machine's own rate.
    pub fn fraction(&self) -> f64 {
        self.rate() / self.peak
    }
}

/// Rounds of each op. Each takes the machine's own rate too, since other load comes and goes; the best of both count.
const ROUNDS: usize = 15;
/// Least time of one round of an op.
const ROUND: Duration = Duration::from_millis(30);

/// Measures the ops whose name contains `filter`, and hands each result to `report` as soon as it is there.
pub fn run(filter: &str, mut report: impl FnMut(&Measurement)) -> Result<()> {
    let machine = Machine::new()?;
    for case in cases::all() {
        if !case.op.contains(filter) {
            continue;
        }
        let mut call = (case.prepare)()?;
        call()?;
        let (mut seconds, mut peak) = (f64::INFINITY, 0f64);
        for _ in 0..ROUNDS {
            peak = peak.max(machine.rate(case.bound)?);
            let start = Instant::now();
            let mut calls = 0;
            while start.elapsed() < ROUND {
                call()?;
                calls += 1;
            }
            seconds = seconds.min(start.elapsed().as_secs_f64() / f64::from(calls));
        }
        report(&Measurement { op: case.op, shape: case.shape, bound: case.bound, work: case.work, seconds, peak });
    }
    Ok(())
}
