//! What reading may take, and a reader that is held to it for as long as one likes.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cacheplan::files::Limit;
use cpu_time::ThreadTime;

use crate::mutation::{Random, mutated};

const MIB: u64 = 1 << 20;
/// Of a processor, so that a machine that does other things accuses nobody; in a debug build as in any other.
const MAX_TIME: Duration = Duration::from_secs(2);
/// What a refused file may take, and an accepted one besides 4 times its length.
const MAX_BYTES: u64 = 64 * MIB;
/// What may follow: to walk the graph of a model, to show a plan and say it to every engine.
const MAX_USE_BYTES: u64 = 128 * MIB;
/// The longest files that the suite tries; a soak tries those of the limit of their kind and a little beyond.
const LONGEST: u64 = 4 * MIB;

/// Reads mutated `seeds` for as long as the test is to take.
pub(crate) fn survive<T>(
    name: &str,
    limit: Limit,
    seeds: &[Vec<u8>],
    read: impl Fn(&[u8]) -> Option<T>,
    use_it: impl Fn(T),
) {
    let longest = if is_soak() { u64::MAX } else { LONGEST };
    let most = (limit.bytes + limit.bytes / 16).min(longest) as usize;
    for seed in seeds {
        assert!(read(seed).is_some(), "{name}: a seed is not read: {:.300}", String::from_utf8_lossy(seed));
    }
    survive_all(name, |random| mutated(seeds, most, random), read, use_it);
}

fn seconds() -> u64 {
    std::env::var("CACHEPLAN_SOAK_SECONDS").map_or(1, |text| text.parse().unwrap())
}

/// Whether other files are tried each time, and the longest ones. In less than a minute they are always the same, so that
/// a machine finds nothing that no other has found.
fn is_soak() -> bool {
    seconds() >= 60
}

/// Reads what `make` makes, and gives how many were read. Of what is refused there must be some.
#[expect(clippy::print_stdout, reason = "a soak says how much it did")]
pub(crate) fn survive_all<T>(
    name: &str,
    make: impl Fn(&mut Random) -> Vec<u8>,
    read: impl Fn(&[u8]) -> Option<T>,
    use_it: impl Fn(T),
) -> u64 {
    let deadline = Instant::now() + Duration::from_secs(seconds());
    // The suite tries the same files each time, a soak others.
    let other = if is_soak() { u64::from(std::process::id()) } else { 0 };
    let mut random = Random(0x9E37_79B9_7F4A_7C15 ^ other);
    let (mut cases, mut accepted, mut worst) = (0u64, 0u64, Cost::default());
    while Instant::now() < deadline || cases < 20 {
        let bytes = make(&mut random);
        let length = bytes.len() as u64;
        let (found, cost) = measured(name, &bytes, || read(&bytes));
        let most = MAX_BYTES + if found.is_some() { 4 * length } else { 0 };
        if cost.time > MAX_TIME || cost.bytes > most {
            let (what, kept) = (if found.is_some() { "accept" } else { "refuse" }, keep(name, &bytes));
            panic!("{name}: to {what} {length} bytes took {cost:?}; the file is {kept}");
        }
        worst.include(&cost);
        if let Some(found) = found {
            accepted += 1;
            let (_, cost) = measured(name, &bytes, || use_it(found));
            if cost.time > MAX_TIME || cost.bytes > MAX_USE_BYTES {
                panic!("{name}: what follows took {cost:?}; the file is {}", keep(name, &bytes));
            }
        }
        cases += 1;
    }
    println!("{name}: {cases} files, {accepted} read; at most {worst}");
    assert!(accepted < cases, "{name}: all files were read");
    accepted
}

/// What something took, once or at most.
#[derive(Debug, Default)]
struct Cost {
    bytes: u64,
    time: Duration,
}

impl Cost {
    fn include(&mut self, other: &Self) {
        self.bytes = self.bytes.max(other.bytes);
        self.time = self.time.max(other.time);
    }
}

impl std::fmt::Display for Cost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.1} MiB and {:.2} s", self.bytes as f64 / MIB as f64, self.time.as_secs_f64())
    }
}

/// What `run` took of this thread; where it panics the file is kept.
#[expect(clippy::print_stderr, reason = "a panic does not say with what file")]
fn measured<T>(name: &str, bytes: &[u8], run: impl FnOnce() -> T) -> (T, Cost) {
    let result = Cell::new(None);
    // A stack that overflows ends the process without a word: a soak keeps every file before it is read.
    if is_soak() {
        keep(name, bytes);
    }
    let start = ThreadTime::now();
    let memory = allocation_counter::measure(|| result.set(Some(catch_unwind(AssertUnwindSafe(run)))));
    let cost = Cost { bytes: memory.bytes_max, time: start.elapsed() };
    match result.take() {
        Some(Ok(found)) => {
            if is_soak() {
                let _ = std::fs::remove_file(kept(name));
            }
            (found, cost)
        }
        Some(Err(panic)) => {
            eprintln!("{name}: the file is {}", keep(name, bytes));
            resume_unwind(panic)
        }
        None => unreachable!("it was measured"),
    }
}

/// Keeps a file that a test fails with; says where.
fn keep(name: &str, bytes: &[u8]) -> String {
    let path = kept(name);
    std::fs::write(&path, bytes).unwrap();
    path.display().to_string()
}

fn kept(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}.failed", name.replace(' ', "-")))
}
