//! The poisoning oracle: random operations against a dictionary.
//!
//! Every slot and block carries what it was computed from. A state that is ever served at another length, or to
//! another prefix, than it has absorbed is found at once; so is a unit in two places or in none.
//!
//! `CACHEPLAN_SOAK_OPS` sets the number of operations, 20,000 by default.

mod world;

use crate::prefix::{Eviction, HostTier, Strategy, TreeConfig};
use proptest::prelude::{Just, any, prop, prop_oneof};
use proptest::strategy::Strategy as Generator;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use world::{Op, World};

/// On average: lengths vary, so that a failure can be shrunk.
const OPS_PER_CASE: usize = 500;

fn tree_config() -> impl Generator<Value = TreeConfig> {
    let window = prop_oneof![Just(None), (1..12usize).prop_map(Some)];
    let eviction = prop_oneof![Just(Eviction::Lru), Just(Eviction::Coverage)];
    let host = prop_oneof![
        Just(None),
        (0..40u32, 0..8u32, 0..16u32).prop_map(|(blocks, slots, windows)| Some(HostTier { blocks, slots, windows }))
    ];
    let cap = prop_oneof![4 => Just(None), 1 => (1..4usize).prop_map(Some)];
    (
        prop_oneof![Just(1usize), Just(2), Just(4)],
        1..5usize,
        window,
        any::<bool>(),
        cap,
        prop::collection::vec(1..5u32, 1..4),
        eviction,
        host,
    )
        .prop_map(|(page, chunk, window, states, states_per_path, tenants, eviction, host)| TreeConfig {
            page,
            chunk,
            window,
            states,
            states_per_path,
            tenants,
            eviction,
            host,
            ..TreeConfig::default()
        })
}

fn strategy() -> impl Generator<Value = Strategy> {
    prop_oneof![
        Just(Strategy::NO_BUFFER),
        (1..8usize).prop_map(Strategy::double_buffered),
        (1..8usize).prop_map(|interval| Strategy::complete(Some(interval))),
    ]
}

fn op() -> impl Generator<Value = Op> {
    prop_oneof![
        120 => any::<u64>().prop_map(Op::Start),
        160 => any::<(u8, u8)>().prop_map(|(r, n)| Op::Prefill(r, n)),
        160 => any::<(u8, u8)>().prop_map(|(r, n)| Op::Decode(r, n)),
        80 => any::<u8>().prop_map(Op::Finish),
        20 => any::<u8>().prop_map(Op::Abort),
        20 => any::<u8>().prop_map(Op::Drop),
        20 => any::<u8>().prop_map(Op::EvictKv),
        40 => any::<u8>().prop_map(Op::EvictState),
        20 => any::<u8>().prop_map(Op::EvictWindow),
        20 => any::<u64>().prop_map(Op::Touch),
        20 => any::<u8>().prop_map(Op::EvictHost),
    ]
}

#[test]
fn no_state_is_served_at_another_length_and_no_unit_is_lost() {
    let soak = std::env::var("CACHEPLAN_SOAK_OPS").ok().map(|ops| ops.parse::<usize>().unwrap());
    // The suite repeats itself; a soak looks for what it has not seen yet.
    let rng_seed = if soak.is_some() { RngSeed::Random } else { RngSeed::Fixed(0) };
    let cases = soak.unwrap_or(20_000).div_ceil(OPS_PER_CASE);
    let config = Config {
        cases: cases as u32,
        failure_persistence: None,
        max_shrink_iters: 2000,
        rng_seed,
        ..Config::default()
    };
    let case = (tree_config(), strategy(), prop::collection::vec(op(), 0..=2 * OPS_PER_CASE));
    TestRunner::new(config)
        .run(&case, |(tree, strategy, ops)| {
            let mut world = World::new(tree, strategy);
            for op in ops {
                world.apply(op);
                world.audit();
            }
            world.drain();
            Ok(())
        })
        .unwrap();
}
