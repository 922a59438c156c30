//! Inputs at the edges, many tenants and namespaces, and many readers.

use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::prefix_common::{Harness, config, tokens};
use cacheplan_managers::book::prefix::{
    BlockAligned, Extend, Final, Hold, Insert, Key, Match, Namespace, PrefixCache, PrefixError, Progress, Released,
    Strategy, TenantId, Token, Tree, TreeConfig,
};
use cacheplan_managers::book::{BlockId, SlotId};
use rstest::rstest;

/// Serves one prompt with fresh blocks from `first` on, and returns the hit.
fn serve(cache: &mut PrefixCache, prompt: &[Token], first: u32) -> usize {
    let namespace = Namespace::default();
    let key = Key { namespace: &namespace, tokens: prompt };
    let found = cache.lookup(key);
    let mut lease = cache.admit(key, &found, SlotId(first), TenantId::default()).unwrap();
    cache.copied(&mut lease).unwrap();
    let mut blocks = Vec::new();
    cache.held_blocks(&lease, &mut blocks);
    let pages = prompt.len().div_ceil(cache.tree().config().page);
    blocks.extend((blocks.len()..pages).map(|i| BlockId(first + i as u32)));
    let at = Progress { key, blocks: &blocks, window: None };
    cache.finish(lease, at, Final::Move, &mut Released::default()).unwrap();
    cache.tree().check().unwrap();
    found.hit
}

#[rstest]
#[case::empty(vec![], 1, [0, 0])]
#[case::one_token(vec![5], 1, [0, 0])]
#[case::shorter_than_a_page(vec![5, 6, 7], 16, [0, 0])]
#[case::one_token_beyond_a_page(vec![5; 17], 16, [0, 0])]
#[case::the_largest_token(vec![Token::MAX; 8], 1, [0, 0])]
#[case::a_million_tokens((0..1_000_000).collect(), 16, [0, 0])]
fn a_prompt_at_the_edge_is_served_twice(#[case] prompt: Vec<Token>, #[case] page: usize, #[case] hits: [usize; 2]) {
    let mut cache = PrefixCache::new(TreeConfig { page, ..config() }, Strategy::complete(Some(64))).unwrap();
    assert_eq!([serve(&mut cache, &prompt, 0), serve(&mut cache, &prompt, 2_000_000)], hits);
    // What follows on it hits all of it, if it can be named at all.
    let next = [prompt.clone(), vec![1]].concat();
    let named = if prompt.len().is_multiple_of(page) { prompt.len() } else { 0 };
    assert_eq!(serve(&mut cache, &next, 4_000_000), named);
}

#[test]
fn positions_of_degenerate_forwards_are_none() {
    let extend = Extend { start: 0, end: 0, prompt: 0, branch: Some(7) };
    assert_eq!(Strategy::complete(Some(0)).checkpoints(&config(), extend), []);
    let rule = BlockAligned { block: 0, drops_last: true, look_ahead: 0 };
    assert_eq!((rule.last_position(0), rule.replay_positions(0)), (0, vec![0]));
    assert_eq!(rule.schedule(5, 2, usize::MAX, true, None), 3);
    assert_eq!(rule.kept(3, Some(0), None), [1, 2]);
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

#[test]
fn readers_look_up_side_by_side_and_a_match_that_went_stale_is_refused() {
    let cache = RwLock::new(PrefixCache::new(config(), Strategy::NO_BUFFER).unwrap());
    let done = AtomicBool::new(false);
    let namespace = Namespace::default();
    let prompt =
        |i: u32| -> Vec<Token> { [tokens(1..=20), tokens(100 * (i % 7) + 100..=100 * (i % 7) + 140)].concat() };
    std::thread::scope(|scope| {
        for reader in 0..4 {
            let (cache, done, namespace) = (&cache, &done, &namespace);
            scope.spawn(move || {
                let mut i = reader;
                while !done.load(Ordering::Relaxed) {
                    i += 1;
                    let prompt = prompt(i);
                    let key = Key { namespace, tokens: &prompt };
                    let found: Match = cache.read().unwrap().lookup(key);
                    assert!(found.hit <= found.kv_hit && found.kv_hit < prompt.len());
                    // Between the two locks the writer may have evicted what was found.
                    let mut cache = cache.write().unwrap();
                    match cache.admit(key, &found, SlotId(reader), TenantId::default()) {
                        Ok(lease) => drop(lease),
                        Err(error) => assert!(matches!(error, PrefixError::StaleMatch { .. }), "{error}"),
                    }
                    cache.reclaim(&mut Vec::new()).unwrap();
                }
            });
        }
        for i in 0..400 {
            serve(&mut cache.write().unwrap(), &prompt(i), 1000 * (i + 1));
            let _ = cache.write().unwrap().evict_kv(30, &mut Released::default());
        }
        done.store(true, Ordering::Relaxed);
    });
    cache.read().unwrap().tree().check().unwrap();
}
