//! What evictions cost and what they choose.

use crate::prefix_common::{Harness, config, tokens};
use cacheplan_managers::prefix::{Eviction, Token, TreeConfig};
use rstest::rstest;

fn coverage() -> TreeConfig {
    TreeConfig { eviction: Eviction::Coverage, ..config() }
}

/// `leaves` prompts below a common prefix, each with a state.
fn wide(config: TreeConfig, leaves: u32) -> Harness {
    let mut h = Harness::new(config, leaves * 8 + 64, leaves + 8);
    for leaf in 0..leaves {
        h.insert_unchecked(&[1, 2, 3, 1000 + leaf, 5]);
    }
    h
}

#[rstest]
fn an_eviction_looks_at_a_constant_number_of_nodes(
    #[values(Eviction::Lru, Eviction::Coverage)] eviction: Eviction,
    #[values(100, 3000)] leaves: u32,
    #[values(false, true)] locked: bool,
) {
    let mut h = wide(TreeConfig { eviction, ..config() }, leaves);
    let held: Vec<_> = (0..leaves * 9 / 10)
        .filter(|_| locked)
        .map(|leaf| {
            let found = h.find(&[1, 2, 3, 1000 + leaf, 5]);
            h.tree.lock(&found, Default::default()).unwrap()
        })
        .collect();
    let limit = if eviction == Eviction::Lru { 1 } else { 32 };
    for _ in 0..4 {
        let state = h.evict_state(1);
        assert!(state.states == 1 && state.examined <= limit, "{state:?}");
        let leaf = h.evict_kv(1);
        assert!(leaf.tokens > 0 && leaf.examined == 1, "{leaf:?}");
    }
    held.into_iter().for_each(|receipt| h.tree.unlock(receipt).unwrap());
    h.audit();
}

#[test]
fn a_superseded_state_goes_before_an_older_tail() {
    let mut h = Harness::new(coverage(), 512, 128);
    let tail: Vec<Token> = tokens(100..=110);
    h.insert(&tail);
    h.insert(&tokens(1..=10));
    h.insert(&tokens(1..=20));
    // Experience: sequences go on from their tails and not from what lies above.
    for i in 0..20 {
        h.insert(&[200 + i]);
        h.insert(&[200 + i, 1]);
        h.hit(&[200 + i, 1]);
    }
    while h.find(&tokens(1..=10)).hit > 0 {
        h.evict_state(1);
    }
    assert_eq!((h.find(&tail).hit, h.find(&tokens(1..=20)).hit), (11, 20));
}

#[test]
fn of_equals_the_one_that_covers_less_goes() {
    let mut h = Harness::new(coverage(), 256, 8);
    h.insert(&tokens(1..=100));
    h.insert(&tokens(201..=203));
    h.evict_state(1);
    assert_eq!((h.find(&tokens(1..=100)).hit, h.find(&tokens(201..=203)).hit), (100, 0));
}

#[test]
fn a_fork_in_use_outlives_everything_that_passes_it() {
    let mut h = Harness::new(coverage(), 512, 8);
    h.insert(&tokens(1..=10));
    for i in 0..40 {
        let prompt = [tokens(1..=10), vec![1000 + i, 7, 7, 7]].concat();
        assert_eq!(h.hit(&prompt), 10, "request {i}");
        while h.slots.is_empty() {
            h.evict_state(1);
        }
        h.insert(&prompt);
    }
}

#[test]
fn a_state_where_a_request_turns_off_outlives_a_newer_tail_that_covers_as_much() {
    let mut h = Harness::new(coverage(), 1024, 32);
    // Experience: nobody goes on from tails.
    for i in 0..20 {
        h.insert(&[1000 + i]);
    }
    h.evict_state(20);
    h.insert_kv(&tokens(1..=100));
    h.insert(&tokens(1..=50));
    h.insert(&tokens(201..=250));
    h.evict_state(1);
    assert_eq!((h.find(&tokens(1..=50)).hit, h.find(&tokens(201..=250)).hit), (50, 0));
}
