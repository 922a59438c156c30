//! What reading a file may take. More is a crash, so that the fuzzer keeps the input.

#![allow(dead_code, reason = "each target uses a part of it")]

use std::alloc::System;
use std::path::Path;
use std::time::Duration;

use cacheplan_transforms::{FrontendError, Model, PassContext, ReadOptions, };
use cap::Cap;
use cpu_time::ThreadTime;

/// What reading may take.
const READING: usize = 64 << 20;
/// What reading and walking may take together.
const WALKING: usize = READING + (128 << 20);

/// An allocation beyond the limit fails, and that aborts.
#[global_allocator]
static MEMORY: Cap<System> = Cap::new(System, READING);

/// Processor time, so that a machine that is busy, or asleep, accuses nobody.
const MAX_TIME: Duration = Duration::from_secs(2);

/// Runs what must not take longer.
pub fn within<R>(read: impl FnOnce() -> R) {
    let start = ThreadTime::now();
    read();
    assert!(start.elapsed() < MAX_TIME, "took {:?}", start.elapsed());
}

/// Reads a model and walks its graph, if there is one.
pub fn walk(read: impl FnOnce() -> Result<Model, FrontendError>) {
    within(|| {
        if let Ok(mut model) = read() {
            MEMORY.set_limit(WALKING).expect("more than is in use");
            let _ = model.graph.collect(&PassContext::default());
            drop(model);
            MEMORY.set_limit(READING).expect("the model is gone");
        }
    });
}

/// Walks what a file of this name holds.
pub fn walk_file(path: &Path, bytes: &[u8]) {
    if std::fs::write(path, bytes).is_ok() {
        walk(|| Model::read(path, &ReadOptions::default()));
    }
}
