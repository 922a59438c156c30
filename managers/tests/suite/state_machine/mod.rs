//! Random operations over the books, beside a model that only knows tokens.
//!
//! The suite runs 20,000 operations; `CACHEPLAN_SOAK_OPS` asks for more.

mod op;
mod world;

use crate::support::{Setup, conv, kv, ssm};
use cacheplan_managers::book::Windows;
use cacheplan_planner::SlotDomain;
use op::Op;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use world::World;

const OPS_PER_CASE: usize = 250;

/// Pools small enough that every kind of shortage occurs.
fn setups() -> Vec<(Setup, Windows)> {
    let twins = |setup: Setup| setup.with(0, ssm().intermediate().unwrap()).with(0, conv().intermediate().unwrap());
    let windowed = |window| kv(2, 8).with_window(window).unwrap();
    let mut scarce = twins(Setup::new().with(0, ssm()).with(0, conv()).with(1, kv(2, 8)).with(2, windowed(6)));
    scarce.blocks = 14;
    scarce.host_bytes = Some(4096);
    scarce.slots = SlotDomain { padding: 1, live: 4, checkpoints: 2 };
    let mut paged = Setup::new().with(0, kv(2, 8)).with(1, kv(1, 16)).with(2, windowed(9));
    paged.blocks = 20;
    paged.tokens_per_block = 3;
    paged.host_bytes = Some(1 << 20);
    let states = twins(Setup::new().with(0, ssm()).with(0, conv())).host(300);
    let mut rings = Setup::new().with(1, kv(2, 8)).with(2, windowed(6)).with(3, windowed(10)).blocks(30);
    rings.tokens_per_block = 3;
    let sliding = [scarce, paged, states].map(|setup| (setup, Windows::Sliding));
    sliding.into_iter().chain([(rings, Windows::Cyclic)]).collect()
}

#[test]
fn random_operations_never_lose_alias_or_leak() {
    let ops: usize = std::env::var("CACHEPLAN_SOAK_OPS").ok().and_then(|ops| ops.parse().ok()).unwrap_or(20_000);
    let setups = setups();
    let cases = (ops.div_ceil(OPS_PER_CASE * setups.len())) as u32;
    for (setup, windows) in &setups {
        let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
        let operations = proptest::collection::vec(any::<Op>(), OPS_PER_CASE);
        let outcome = runner.run(&operations, |operations| {
            let mut world = World::new(setup, *windows);
            for op in operations {
                world.apply(op);
                world.check();
            }
            world.finish();
            Ok::<(), TestCaseError>(())
        });
        if let Err(failure) = outcome {
            panic!("{failure}");
        }
    }
}
