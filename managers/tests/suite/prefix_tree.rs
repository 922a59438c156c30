//! The tree against tables of the behaviour that engines agree on.

use crate::prefix_common::{Harness, config, tokens};
use cacheplan_managers::book::{BlockId, SlotId};
use cacheplan_managers::prefix::{
    Hold, Insert, Key, Namespace, PrefixError, Released, TenantId, Token, Tree, TreeConfig,
};
use rstest::rstest;

const PATH: [Token; 7] = [1, 2, 3, 4, 5, 60, 70];

/// Rows A1 to A4.
fn table_a(config: TreeConfig) -> Harness {
    let mut h = Harness::new(config, 128, 20);
    assert_eq!(h.insert(&[1, 2, 3]).prefix, 0, "A1");
    assert_eq!(h.free(), (125, 19), "A1");
    let second = h.insert(&tokens(1..=7));
    assert_eq!((second.prefix, second.state_taken), (3, true), "A2");
    assert_eq!(h.free(), (121, 18), "A2");
    assert_eq!(h.insert(&[10, 11, 12]).prefix, 0, "A3");
    assert_eq!(h.free().0, 118, "A3");
    assert_eq!(h.insert(&PATH).prefix, 5, "A4");
    assert_eq!(h.free(), (116, 16), "A4");
    assert_eq!(h.tree.usage().nodes, 5, "A4: [1 2 3] [4 5] [6 7] [60 70] [10 11 12]");
    h
}

#[test]
fn a_prefixes_states_and_evictions_follow_the_engines() {
    let mut h = table_a(config());
    let a5 = h.evict_kv(1);
    assert_eq!((a5.tokens, a5.states), (3, 1), "A5");
    assert_eq!(h.find(&[10, 11, 12]).kv_hit, 0, "A5");
    let a6 = h.evict_state(1);
    assert_eq!((a6.tokens, a6.states), (0, 1), "A6");
    let a7 = h.find(&[1, 2, 3, 4, 5]);
    assert_eq!((a7.hit, a7.kv_hit), (0, 5), "A7");
    assert_eq!(h.hit(&PATH), 7, "A8");
    assert_eq!(h.hit(&tokens(1..=7)), 7, "A9");
    let a10 = h.evict_state(1);
    assert_eq!((a10.tokens, a10.states), (2, 1), "A10");
    let a11 = h.find(&PATH);
    assert_eq!((a11.hit, a11.kv_hit, a11.state), (0, 5, None), "A11");
    let a12 = h.find(&tokens(1..=7));
    assert_eq!((a12.hit, a12.state), (7, Some(SlotId(1))), "A12: the second state inserted");
}

#[test]
fn b_duplicate_blocks_are_released_except_those_the_tree_owned_before() {
    let mut h = Harness::new(config(), 64, 8);
    for (last, owned, prefix, taken) in [(3, 0, 0, 3), (7, 0, 3, 4), (8, 2, 7, 3), (9, 8, 8, 9)] {
        let before = h.free().0;
        let inserted = h.insert_owned(&tokens(1..=last), true, owned);
        assert_eq!(inserted.prefix, prefix, "[1..={last}]");
        assert_eq!(before - h.free().0, taken, "[1..={last}]");
    }
}

#[test]
fn a_block_of_the_tree_is_never_released_as_a_duplicate_of_itself() {
    let mut h = Harness::new(config(), 16, 2);
    h.insert(&[1, 2, 3]);
    let receipt = h.lock(&[1, 2, 3]);
    let mut blocks = Vec::new();
    h.tree.held_blocks(&receipt, &mut blocks);
    blocks.push(h.blocks.pop().unwrap());
    let insert = Insert {
        key: Key { namespace: &Namespace::default(), tokens: &[1, 2, 3, 4] },
        blocks: &blocks,
        owned: 0,
        state: h.slots.pop(),
        window: None,
        tenant: TenantId::default(),
    };
    let mut out = Released::default();
    h.tree.insert(&insert, &mut out).unwrap();
    assert_eq!(out, Released::default());
    h.unlock(receipt);
    h.audit();
}

#[test]
fn c1_c2_a_finished_request_moves_its_slot_and_a_duplicate_is_freed() {
    let mut h = Harness::new(config(), 4096, 8);
    let prompt = tokens(1..=100);
    let first = h.slots.pop().unwrap();
    assert!(h.insert_slot(&prompt, Some(first), 0).state_taken, "C1");
    assert!(!h.slots.contains(&first), "C1");
    let second = h.slots.pop().unwrap();
    let inserted = h.insert_slot(&prompt, Some(second), 0);
    assert!(!inserted.state_taken, "C2");
    assert!(h.slots.contains(&second), "C2");
    assert_eq!(h.find(&prompt).state, Some(first), "C2");
    assert_eq!(h.free().0, 3996, "C2");
    h.audit();
}

#[test]
fn c3_a_second_state_for_a_node_is_refused_and_comes_back() {
    let mut h = Harness::new(config(), 16, 9);
    assert!(h.insert_slot(&[1, 2], Some(SlotId(7)), 0).state_taken);
    let again = h.insert_slot(&[1, 2], Some(SlotId(8)), 0);
    assert!(!again.state_taken);
    assert_eq!(h.tree.state(again.node.unwrap()), Some(SlotId(7)));
    assert_eq!(h.tree.usage().states.evictable, 1);
}

#[test]
fn c5_c6_a_state_serves_no_shorter_prefix_than_it_has_absorbed() {
    let mut h = Harness::new(TreeConfig { chunk: 64, ..config() }, 2048, 4);
    let prompt = tokens(1..=1008);
    h.insert(&prompt);
    let c5 = h.find(&prompt[..1007]);
    assert_eq!((c5.hit, c5.branch, c5.state), (0, Some(960), None), "C5");
    assert_eq!(h.find(&prompt).hit, 1008, "C6");
    assert_eq!(h.find(&tokens(1..=1100)).hit, 1008, "C6");
}

#[test]
fn d1_a_childless_prefix_stays_as_kv() {
    let mut h = Harness::new(config(), 128, 20);
    h.insert(&tokens(1..=7));
    h.insert(&PATH);
    let evicted = h.evict_state(2);
    assert_eq!((evicted.tokens, evicted.states), (4, 2));
    let found = h.find(&[1, 2, 3, 4, 5, 9]);
    assert_eq!((found.hit, found.kv_hit), (0, 5));
    assert_eq!(h.evict_kv(1).tokens, 5);
}

#[rstest]
#[case::below_the_end(999, 0, Some(960))]
#[case::below_the_grid(63, 0, None)]
#[case::on_the_grid(64, 0, Some(64))]
fn d2_the_branch_is_the_deepest_grid_position_of_the_resident_kv(
    #[case] len: usize,
    #[case] hit: usize,
    #[case] branch: Option<usize>,
) {
    let mut h = Harness::new(TreeConfig { chunk: 64, ..config() }, 2048, 4);
    let prompt = tokens(1..=1000);
    h.insert(&prompt);
    let found = h.find(&prompt[..len]);
    assert_eq!((found.hit, found.branch), (hit, branch));
    let mut diverging = prompt[..130].to_vec();
    diverging.extend(5000..5010);
    assert_eq!(h.find(&diverging).branch, Some(128));
}

#[test]
fn d3_a_checkpoint_at_the_branch_turns_the_next_lookup_into_a_hit() {
    let mut h = Harness::new(TreeConfig { chunk: 64, ..config() }, 2048, 4);
    h.insert(&tokens(1..=64));
    h.insert(&tokens(1..=300));
    let mut diverging = tokens(1..=200);
    diverging.extend(9000..9050);
    let found = h.find(&diverging);
    assert_eq!((found.hit, found.kv_hit, found.branch), (64, 200, Some(192)));
    h.insert(&diverging[..192]);
    let found = h.find(&diverging);
    assert_eq!((found.hit, found.branch), (192, None));
}

#[rstest]
#[case::chunk_3(3, false, 2, Some(3))]
#[case::chunk_8(8, false, 2, None)]
#[case::both_with_a_state(3, true, 4, None)]
fn d4_only_states_on_the_grid_above_the_hit_are_worth_a_branch(
    #[case] chunk: usize,
    #[case] second: bool,
    #[case] hit: usize,
    #[case] branch: Option<usize>,
) {
    let mut h = Harness::new(TreeConfig { chunk, ..config() }, 16, 4);
    h.insert(&[1, 2]);
    h.insert_owned(&[1, 2, 3, 4], second, 0);
    let found = h.find(&[1, 2, 3, 4]);
    assert_eq!((found.hit, found.branch), (hit, branch));
}

#[test]
fn d5_the_grid_is_the_least_common_multiple_of_chunk_and_page() {
    let mut h = Harness::new(TreeConfig { page: 3, chunk: 2, ..config() }, 18, 4);
    h.insert_kv(&tokens(1..=9));
    let found = h.find(&tokens(1..=9));
    assert_eq!((found.kv_hit, found.branch), (9, Some(6)));
    assert_eq!(TreeConfig { page: 6, chunk: 4, ..config() }.grid(), 12);
}

#[test]
fn d6_pages_align_what_matches() {
    let mut h = Harness::new(TreeConfig { page: 4, ..config() }, 32, 4);
    h.insert(&tokens(1..=8));
    for (key, hit, kv, branch) in
        [(tokens(1..=7), 0, 4, Some(4)), (tokens(1..=8), 8, 8, None), (vec![1, 2, 3, 4, 5, 6, 70, 80], 0, 4, Some(4))]
    {
        let found = h.find(&key);
        assert_eq!((found.hit, found.kv_hit, found.branch), (hit, kv, branch), "{key:?}");
    }
}

#[test]
fn d7_a_path_keeps_at_most_its_cap_of_states_shallowest_first() {
    let capped = |cap| TreeConfig { states_per_path: cap, ..config() };
    let grow = |cap| {
        let mut h = Harness::new(capped(cap), 64, 8);
        for len in [2, 4, 6] {
            h.insert(&tokens(1..=len));
        }
        h
    };
    let h = grow(Some(2));
    assert!(h.slots.contains(&SlotId(0)), "the shallowest state was the first slot");
    assert_eq!((h.find(&tokens(1..=3)).hit, h.find(&tokens(1..=5)).hit), (0, 4));
    h.audit();
    let h = grow(None);
    assert_eq!(h.tree.usage().states.evictable, 3);

    // A fork at 2 and a locked state at 4: neither is freed.
    let mut h = Harness::new(capped(Some(1)), 64, 8);
    h.insert_kv(&[1, 2, 9]);
    h.insert(&[1, 2]);
    let fork = h.insert(&tokens(1..=4)).node.unwrap();
    let receipt = h.tree.lock_node(fork, Hold::PathAndState).unwrap();
    h.insert(&tokens(1..=6));
    assert_eq!(h.free().1, 8 - 3);
    h.unlock(receipt);
}

#[test]
fn d8_a_locked_leaf_protects_its_path_and_its_own_state_only() {
    let mut h = Harness::new(config(), 16, 4);
    h.insert(&[1, 2]);
    h.insert(&tokens(1..=4));
    let receipt = h.lock(&tokens(1..=4));
    let usage = h.tree.usage();
    assert_eq!((usage.kv.evictable, usage.kv.protected), (0, 4));
    assert_eq!((usage.states.evictable, usage.states.protected), (1, 1));
    let evicted = h.evict_state(5);
    assert_eq!((evicted.states, evicted.tokens), (1, 0));
    let evicted = h.evict_state(5);
    assert_eq!(evicted.states, 0);
    assert_eq!(h.evict_kv(10).tokens, 0);
    assert_eq!(h.find(&[1, 2]).hit, 0);
    assert_eq!(h.find(&tokens(1..=4)).hit, 4);
    h.unlock(receipt);
}

#[test]
fn d9_an_inner_state_goes_alone_and_the_leaf_after_it_goes_whole() {
    let mut h = Harness::new(config(), 16, 4);
    h.insert(&[1, 2]);
    h.insert(&tokens(1..=4));
    let first = h.evict_state(1);
    assert_eq!((first.states, first.tokens), (1, 0));
    let second = h.evict_state(1);
    assert_eq!((second.states, second.tokens), (1, 2));
}

#[test]
fn d10_a_locked_state_is_passed_over_without_being_looked_at() {
    let mut h = Harness::new(config(), 16, 4);
    h.insert(&[1, 2]);
    h.insert(&tokens(1..=4));
    let receipt = h.lock(&[1, 2]);
    let evicted = h.evict_state(1);
    assert_eq!((evicted.states, evicted.tokens, evicted.examined), (1, 2, 1));
    assert_eq!(h.find(&[1, 2]).hit, 2);
    h.unlock(receipt);
}

#[test]
fn d11_a_lock_on_a_tombstone_holds_the_state_that_comes_later() {
    let mut h = Harness::new(config(), 16, 4);
    let node = h.insert_kv(&[1, 2]).node.unwrap();
    let first = h.tree.lock_node(node, Hold::PathAndState).unwrap();
    h.insert(&[1, 2]);
    assert_eq!(h.tree.usage().states.protected, 1, "revived under a lock");
    let second = h.lock(&[1, 2]);
    h.unlock(first);
    assert_eq!(h.tree.usage().states.protected, 1, "one lock left");
    h.unlock(second);
    assert_eq!((h.tree.usage().states.protected, h.tree.usage().states.evictable), (0, 1));
}

#[test]
fn d12_a_split_leaves_the_state_on_the_rear() {
    let mut h = Harness::new(config(), 16, 4);
    h.insert(&[1, 2]);
    h.insert_kv(&[1, 9]);
    let front = h.find(&[1]);
    assert_eq!((front.hit, front.kv_hit), (0, 1));
    assert_eq!(h.find(&[1, 2]).state, Some(SlotId(0)));
}

#[test]
fn d13_only_the_consumed_state_becomes_recent() {
    let mut h = Harness::new(config(), 16, 4);
    h.insert(&[1]);
    h.insert(&[1, 2]);
    h.insert(&[1, 2, 3]);
    // Order of eviction is now 1, 2, 3. Walking over a state or ending an insert at it must not change that.
    h.insert_kv(&[1, 2, 3]);
    h.insert_kv(&[1]);
    assert_eq!(h.hit(&[1]), 1);
    h.evict_state(1);
    assert_eq!((h.find(&[1]).hit, h.find(&[1, 2]).hit), (1, 1), "the state at 2 went, the used one stayed");
    assert_eq!(h.find(&[1, 2, 3]).hit, 3);
}

#[test]
fn d16_a_window_takes_the_state_with_it_but_a_state_goes_alone() {
    let windowed = TreeConfig { window: Some(2), ..config() };
    let mut h = Harness::new(windowed.clone(), 32, 4);
    h.insert_window(&tokens(1..=4), true, 0);
    h.insert_window(&tokens(1..=8), true, 0);
    let evicted = h.evict_window(1);
    assert_eq!((evicted.window_tokens, evicted.states, evicted.tokens), (4, 1, 0));

    let mut h = Harness::new(windowed, 32, 4);
    h.insert_window(&tokens(1..=4), true, 0);
    h.insert_window(&tokens(1..=8), true, 0);
    let evicted = h.evict_state(1);
    assert_eq!((evicted.window_tokens, evicted.states, evicted.tokens), (0, 1, 0));
    assert_eq!(h.tree.usage().window.evictable, 8);
}

#[test]
fn d18_a_lock_without_the_state_leaves_the_state_evictable() {
    let mut h = Harness::new(config(), 16, 4);
    h.insert(&[1, 2]);
    let found = h.find(&[1, 2]);
    let receipt = h.tree.lock(&found, Hold::Path).unwrap();
    assert_eq!(h.tree.usage().states.evictable, 1);
    let evicted = h.evict_state(1);
    assert_eq!((evicted.states, evicted.tokens), (1, 0), "the path is held, the state is not");
    h.unlock(receipt);
    assert_eq!(h.tree.usage().kv.evictable, 2);
}

#[test]
fn a_window_is_usable_when_it_is_whole_or_reaches_the_start() {
    let mut h = Harness::new(TreeConfig { window: Some(3), ..config() }, 64, 8);
    h.insert_window(&[1, 2], true, 0);
    assert_eq!(h.find(&[1, 2]).hit, 2, "shorter than the window, but nothing lies before it");
    h.insert_window(&tokens(1..=8), true, 6);
    let found = h.find(&tokens(1..=8));
    assert_eq!((found.hit, found.kv_hit, found.window_hit), (2, 8, 2), "two window tokens are not three");
    h.insert_window(&tokens(1..=8), false, 4);
    let found = h.find(&tokens(1..=8));
    assert_eq!((found.hit, found.window_hit), (8, 8), "the tombstone from 4 was recovered");
}

#[test]
fn a_lock_holds_the_window_it_reads_and_no_more() {
    let mut h = Harness::new(TreeConfig { window: Some(3), ..config() }, 64, 8);
    for len in [2, 4, 6, 8] {
        h.insert_window(&tokens(1..=len), true, 0);
    }
    let receipt = h.lock(&tokens(1..=8));
    assert_eq!(h.tree.usage().window.protected, 4, "whole nodes that cover three tokens");
    // A split inside the held segment must not lose the hold.
    h.insert_kv(&[1, 2, 3, 4, 5, 99]);
    assert_eq!(h.tree.usage().window.protected, 4);
    let evicted = h.evict_window(100);
    assert_eq!(evicted.window_tokens, 4);
    assert_eq!(h.find(&tokens(1..=8)).hit, 8);
    h.unlock(receipt);
    assert_eq!(h.tree.usage().window.protected, 0);
}

#[test]
fn namespaces_share_nothing_and_leave_nothing_behind() {
    let mut h = Harness::new(config(), 64, 8);
    h.insert(&[1, 2, 3]);
    h.namespace = Namespace { salt: "other".into(), adapter: String::new() };
    assert_eq!(h.find(&[1, 2, 3]).kv_hit, 0);
    h.insert(&[1, 2, 3]);
    assert_eq!(h.find(&[1, 2, 3]).hit, 3);
    h.evict_kv(6);
    assert_eq!(h.tree.usage(), Default::default());
    assert_eq!(h.free(), (64, 8));
}

#[test]
fn without_states_every_page_of_resident_kv_is_a_hit() {
    let mut h = Harness::new(TreeConfig { states: false, page: 4, ..config() }, 64, 0);
    h.insert_kv(&tokens(1..=16));
    let found = h.find(&tokens(1..=11));
    assert_eq!((found.hit, found.kv_hit, found.branch), (8, 8, None));
    let receipt = h.lock(&tokens(1..=11));
    let usage = h.tree.usage();
    assert_eq!((usage.kv.protected, usage.kv.evictable), (8, 8), "the lock split the edge where it ends");
    h.unlock(receipt);
}

#[test]
fn locks_survive_splits_inserts_and_evictions() {
    let mut h = Harness::new(config(), 64, 8);
    h.insert(&tokens(1..=10));
    let before = h.tree.usage();
    let receipt = h.lock(&tokens(1..=10));
    h.insert(&[1, 2, 3, 4, 77]);
    h.insert(&[1, 2, 88]);
    h.evict_kv(64);
    assert_eq!(h.tree.usage().kv.protected, 10);
    assert_eq!(h.tree.held_tokens(&receipt), 10);
    h.unlock(receipt);
    let after = h.tree.usage();
    assert_eq!((after.kv, after.states), (before.kv, before.states));
}

#[test]
fn a_match_that_was_evicted_since_is_stale_not_wrong() {
    let mut h = Harness::new(config(), 64, 8);
    h.insert(&[1, 2]);
    let found = h.find(&[1, 2]);
    h.evict_kv(1);
    h.insert(&[5, 6]);
    assert_eq!(h.tree.lock(&found, Hold::PathAndState), Err(PrefixError::StaleMatch { what: "node" }));

    let found = h.find(&[5, 6]);
    h.insert(&[5, 6, 7]);
    h.evict_state(1);
    assert_eq!(h.tree.lock(&found, Hold::PathAndState), Err(PrefixError::StaleMatch { what: "state" }));
}

#[test]
fn a_receipt_of_another_tree_is_refused() {
    let mut a = Harness::new(config(), 64, 8);
    let mut b = Harness::new(config(), 64, 8);
    a.insert(&[1, 2]);
    b.insert(&[1, 2]);
    let receipt = a.lock(&[1, 2]);
    assert_eq!(b.tree.unlock(receipt), Err(PrefixError::ForeignReceipt));
}

#[rstest]
#[case::unaligned_key(3, 1, PrefixError::Unaligned { what: "a key", len: 3, page: 2 })]
#[case::blocks_missing(4, 1, PrefixError::BlockCount { what: "kv", expected: 2, found: 1 })]
fn lengths_that_do_not_fit_are_refused(#[case] len: u32, #[case] blocks: u32, #[case] error: PrefixError) {
    let mut tree = Tree::new(TreeConfig { page: 2, ..config() }).unwrap();
    let blocks: Vec<BlockId> = (0..blocks).map(BlockId).collect();
    let insert = Insert {
        key: Key { namespace: &Namespace::default(), tokens: &tokens(1..=len) },
        blocks: &blocks,
        owned: 0,
        state: None,
        window: None,
        tenant: TenantId::default(),
    };
    assert_eq!(tree.insert(&insert, &mut Released::default()), Err(error));
    assert_eq!(tree.usage().nodes, 0);
}

#[test]
fn the_tenant_furthest_above_its_share_is_evicted_first() {
    let mut h = Harness::new(TreeConfig { tenants: vec![1, 3], ..config() }, 256, 32);
    let namespace = Namespace::default();
    let put = |h: &mut Harness, tenant, tokens: &[Token]| {
        let blocks: Vec<BlockId> = tokens.iter().map(|_| h.blocks.pop().unwrap()).collect();
        let insert = Insert {
            key: Key { namespace: &namespace, tokens },
            blocks: &blocks,
            owned: 0,
            state: h.slots.pop(),
            window: None,
            tenant: TenantId(tenant),
        };
        let _ = h.tree.insert(&insert, &mut Released::default()).unwrap();
    };
    // The patient tenant is older, so plain recency would evict it first.
    for i in 0..3 {
        put(&mut h, 1, &[1000 + i, 1, 2, 3]);
    }
    for i in 0..12 {
        put(&mut h, 0, &[2000 + i, 1, 2, 3]);
    }
    h.evict_kv(40);
    assert_eq!(h.tree.tenant_usage(TenantId(0)), Some([8, 0, 2]));
    assert_eq!(h.tree.tenant_usage(TenantId(1)), Some([12, 0, 3]));
    h.evict_state(3);
    assert_eq!(h.tree.tenant_usage(TenantId(1)), Some([8, 0, 2]), "twice the load per share loses first");
}
