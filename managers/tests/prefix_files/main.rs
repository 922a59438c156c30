//! Snapshots and traces with any content never make the prefix cache panic, lose a unit or take a lie.
//!
//! Each runs for a second; `CACHEPLAN_SOAK_SECONDS` runs each longer.

mod files;

use std::time::{Duration, Instant};

use files::{check_snapshot, check_trace};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, TestRunner};

/// Checks values of a strategy until the time is up. `check` says whether a value was taken for what it pretends to be;
/// of either kind there must be some.
#[expect(clippy::print_stdout, reason = "a soak says how much it did")]
fn soak<S: Strategy>(strategy: &S, check: impl Fn(S::Value) -> bool) {
    let seconds = std::env::var("CACHEPLAN_SOAK_SECONDS").map_or(1, |text| text.parse().unwrap());
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::default() });
    let (mut cases, taken) = (0_u64, std::cell::Cell::new(0_u64));
    while Instant::now() < deadline {
        let tree = strategy.new_tree(&mut runner).unwrap();
        let checked = runner.run_one(tree, |value| {
            taken.set(taken.get() + u64::from(check(value)));
            Ok(())
        });
        if let Err(error) = checked {
            panic!("after {cases} cases: {error}");
        }
        cases += 1;
    }
    println!("{cases} cases, {} of them taken", taken.get());
    assert!(taken.get() > 0 && taken.get() < cases);
}

#[test]
fn any_snapshot_is_restored_or_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    soak(&prop::collection::vec(any::<u8>(), 0..200), |bytes| check_snapshot(&path, &bytes));
}

#[test]
fn any_trace_is_read_or_refused() {
    let seeds = [include_str!("seeds/ours.jsonl"), include_str!("seeds/mooncake.jsonl")];
    let edits = prop::collection::vec((any::<Index>(), any::<Index>(), 0..4_u8, any::<u8>()), 0..4);
    soak(&(0..seeds.len(), edits), |(seed, edits)| {
        let mut bytes = seeds[seed].as_bytes().to_vec();
        for (at, to, kind, byte) in edits {
            let (at, to) = (at.index(bytes.len()), to.index(bytes.len()));
            match kind {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                2 => drop(bytes.drain(at.min(to)..at.max(to))),
                _ => drop(bytes.splice(at..at, bytes[at.min(to)..at.max(to)].to_vec())),
            }
            if bytes.is_empty() {
                break;
            }
        }
        check_trace(&bytes)
    });
}
