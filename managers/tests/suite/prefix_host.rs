//! The host tier: what moves out, what comes back, and what is lost when the host is full.

use crate::prefix_common::{Harness, config, tokens};
use cacheplan_managers::book::BlockId;
use cacheplan_managers::prefix::{Hold, HostBlockId, HostTier, Load, Offload, PrefixError, Released, TreeConfig};

fn tiered(blocks: u32, slots: u32) -> TreeConfig {
    TreeConfig { host: Some(HostTier { blocks, slots, windows: 0 }), chunk: 2, ..config() }
}

#[test]
fn d14_a_hit_on_the_host_is_a_hit_that_has_to_be_loaded() {
    let mut h = Harness::new(tiered(8, 2), 16, 4);
    h.insert(&tokens(1..=4));
    h.evict_kv(1);
    let found = h.find(&tokens(1..=4));
    assert_eq!((found.hit, found.kv_hit, found.resident, found.branch), (4, 4, 0, None));
    assert!(found.host_state.is_some() && found.state.is_none());
    let resident = h.tree.match_resident(h.key(&tokens(1..=4)));
    assert_eq!((resident.hit, resident.kv_hit), (0, 0));

    let refused = h.tree.lock(&found, Hold::Path);
    assert_eq!(refused, Err(PrefixError::NotLoaded { resident: 0, hit: 4 }));
    let blocks: Vec<BlockId> = (0..4).map(|_| h.blocks.pop().unwrap()).collect();
    let mut loads = Vec::new();
    h.tree.load(&found, &blocks, &[], &mut loads).unwrap();
    assert_eq!(loads.len(), 4);
    assert_eq!(loads[0], Load::Block { from: HostBlockId(3), to: blocks[0] });
    let found = h.find(&tokens(1..=4));
    assert_eq!((found.hit, found.resident), (4, 4));
    let receipt = h.tree.lock(&found, Hold::PathAndState).unwrap();
    assert_eq!(h.tree.usage().host_states.protected, 1);
    h.unlock(receipt);
    h.audit();
}

#[test]
fn d15_kv_on_the_host_counts_and_a_checkpoint_at_the_branch_makes_it_a_hit() {
    let mut h = Harness::new(tiered(16, 0), 32, 8);
    h.insert(&tokens(1..=3));
    h.insert(&tokens(1..=7));
    h.evict_kv(1);
    let found = h.find(&tokens(1..=7));
    assert_eq!((found.hit, found.kv_hit, found.resident, found.branch), (3, 7, 3, Some(6)));
    h.insert(&tokens(1..=6));
    let found = h.find(&tokens(1..=7));
    assert_eq!((found.hit, found.resident, found.branch), (6, 6, None));
    h.audit();
}

#[test]
fn d17_a_state_moves_out_alone_and_leaves_no_list_entry_when_it_is_gone() {
    let mut h = Harness::new(tiered(16, 4), 32, 8);
    h.insert(&tokens(1..=2));
    h.insert(&tokens(1..=4));
    let evicted = h.evict_state(1);
    assert_eq!((evicted.states, evicted.tokens), (1, 0));
    assert_eq!((h.tree.usage().host_states.evictable, h.tree.usage().kv.evictable), (1, 4));
    assert!(h.find(&tokens(1..=2)).host_state.is_some());
    h.evict_kv(4);
    assert_eq!((h.tree.usage().host_kv.evictable, h.tree.usage().host_states.evictable), (4, 2));
    h.tree.evict_host(usize::MAX, usize::MAX);
    assert_eq!(h.tree.usage(), Default::default());
    h.audit();
}

#[test]
fn copies_are_told_in_the_order_in_which_they_must_be_made() {
    let mut h = Harness::new(tiered(2, 1), 16, 4);
    h.insert(&[1, 2]);
    h.insert(&[5, 6]);
    let mut out = Released::default();
    h.tree.evict_kv(4, &mut out);
    // The second span takes the place of the first.
    let to: Vec<u32> = out
        .offloads
        .iter()
        .filter_map(|offload| match offload {
            Offload::Block { to, .. } => Some(to.0),
            _ => None,
        })
        .collect();
    assert_eq!(to.len(), 4);
    assert_eq!(to.iter().max(), Some(&1));
    assert_eq!((h.find(&[1, 2]).kv_hit, h.find(&[5, 6]).hit), (0, 2));
}

#[test]
fn a_span_that_the_host_cannot_hold_is_dropped_with_what_hangs_below_it() {
    let mut h = Harness::new(tiered(3, 2), 32, 4);
    h.insert(&tokens(1..=8));
    h.insert(&tokens(1..=10));
    h.evict_kv(1);
    assert_eq!(h.tree.usage().host_kv.evictable, 2);
    h.evict_kv(1);
    assert_eq!(h.tree.usage(), Default::default(), "eight tokens do not fit three blocks");
    h.audit();
}

#[test]
fn what_the_host_cannot_hold_drives_nothing_out_of_it() {
    let mut h = Harness::new(tiered(3, 2), 32, 4);
    h.insert(&[50, 51]);
    h.evict_kv(1);
    h.insert(&tokens(1..=8));
    h.evict_kv(1);
    assert_eq!((h.find(&[50, 51]).hit, h.find(&tokens(1..=8)).kv_hit), (2, 0));
    h.audit();
}

fn windowed(windows: u32) -> TreeConfig {
    let host = HostTier { blocks: 16, slots: 2, windows };
    TreeConfig { window: Some(4), host: Some(host), chunk: 2, ..config() }
}

#[test]
fn a_window_goes_to_the_host_with_its_span_and_comes_back_with_it() {
    let mut h = Harness::new(windowed(8), 16, 4);
    h.insert_window(&tokens(1..=8), true, 4);
    h.evict_kv(4);
    let found = h.find(&tokens(1..=8));
    assert_eq!((found.hit, found.resident, found.host_window), (8, 4, 4), "the span without a window is still there");
    let blocks: Vec<BlockId> = (0..4).map(|_| h.blocks.pop().unwrap()).collect();
    let window: Vec<BlockId> = (0..4).map(|_| h.window.pop().unwrap()).collect();
    let mut loads = Vec::new();
    let short = h.tree.load(&found, &blocks, &window[1..], &mut loads);
    assert_eq!(short, Err(PrefixError::BlockCount { what: "window to load", expected: 4, found: 3 }));
    h.tree.load(&found, &blocks, &window, &mut loads).unwrap();
    let to_window = loads.iter().filter(|load| matches!(load, Load::Window { .. })).count();
    assert_eq!((loads.len(), to_window), (8, 4));
    let found = h.find(&tokens(1..=8));
    assert_eq!((found.hit, found.resident, found.host_window), (8, 8, 0));
    let receipt = h.tree.lock(&found, Hold::PathAndState).unwrap();
    assert_eq!(h.tree.usage().window.protected, 4);
    h.unlock(receipt);
    h.audit();
}

#[test]
fn a_window_that_the_host_cannot_hold_is_lost_and_the_hit_with_it() {
    let mut h = Harness::new(windowed(3), 16, 4);
    h.insert_window(&tokens(1..=8), true, 4);
    h.evict_kv(4);
    let found = h.find(&tokens(1..=8));
    assert_eq!((found.hit, found.kv_hit, found.window_hit), (0, 8, 0));
    h.audit();
}
