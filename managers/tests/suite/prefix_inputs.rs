//! Inputs at the edges, and many tenants and namespaces.

use crate::prefix_common::{Harness, config, tokens};
use cacheplan_managers::book::{BlockId, SlotId};
use cacheplan_managers::prefix::{
    Extend, Hold, Insert, Key, Namespace, PrefixError, Released, Strategy, TenantId, Tree, TreeConfig,
};

#[test]
fn positions_of_degenerate_forwards_are_none() {
    let extend = Extend { start: 0, end: 0, prompt: 0, branch: Some(7) };
    assert_eq!(Strategy::complete(Some(0)).checkpoints(&config(), extend), []);
}

#[test]
fn a_grid_of_numbers_that_make_no_tree_is_a_number() {
    let grid = |chunk, page| TreeConfig { chunk, page, ..TreeConfig::default() }.grid();
    assert_eq!([grid(0, 0), grid(0, 16), grid(64, 0), grid(usize::MAX, 2)], [0, 0, 0, usize::MAX]);
    assert_eq!(grid(64, 48), 192);
}

#[test]
fn what_a_caller_claims_to_own_beyond_the_key_is_passed_over() {
    let mut h = Harness::new(config(), 64, 4);
    h.insert(&tokens(1..=8));
    let inserted = h.insert_slot(&tokens(1..=8), None, usize::MAX);
    assert_eq!((inserted.prefix, h.free().0), (8, 64 - 16), "blocks that are owned elsewhere are not released");
}

#[test]
fn a_match_of_another_tree_is_refused() {
    let (mut here, mut there) = (Harness::new(config(), 64, 4), Harness::new(config(), 64, 4));
    here.insert(&tokens(1..=8));
    there.insert(&tokens(11..=18));
    let found = there.find(&tokens(11..=18));
    assert_eq!(here.tree.lock(&found, Hold::Path), Err(PrefixError::StaleMatch { what: "tree" }));
    assert_eq!(here.tree.lock(&there.find(&[1]), Hold::Path).map(|receipt| here.tree.unlock(receipt)), Ok(Ok(())));
}

#[test]
fn tens_of_thousands_of_namespaces_and_thousands_of_tenants_leave_nothing_behind() {
    let tenants = 2000;
    let mut tree = Tree::new(TreeConfig { tenants: vec![1; tenants], ..config() }).unwrap();
    let mut out = Released::default();
    for i in 0..20_000 {
        let namespace = Namespace { salt: format!("user {i}"), adapter: String::new() };
        let insert = Insert {
            key: Key { namespace: &namespace, tokens: &[1, 2] },
            blocks: &[BlockId(2 * i), BlockId(2 * i + 1)],
            owned: 0,
            state: Some(SlotId(i)),
            window: None,
            tenant: TenantId(i as u16 % tenants as u16),
        };
        tree.insert(&insert, &mut out).unwrap();
    }
    tree.check().unwrap();
    assert_eq!(tree.evict_kv(2, &mut out).tokens, 2);
    assert_eq!(tree.evict_kv(usize::MAX, &mut out).tokens, 39_998);
    tree.check().unwrap();
    assert_eq!((tree.usage(), out.blocks.len(), out.slots.len()), (Default::default(), 40_000, 20_000));
}
