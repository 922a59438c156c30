//! Prompts at the edges, and many readers.

use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::book::{BlockId, SlotId};
use crate::prefix::cache::{Final, PrefixCache, Progress};
use crate::prefix::{Eviction, Key, Match, Namespace, PrefixError, Released, Strategy, TenantId, Token, TreeConfig};
use rstest::rstest;

fn config() -> TreeConfig {
    TreeConfig { eviction: Eviction::Lru, ..TreeConfig::default() }
}

fn tokens(range: std::ops::RangeInclusive<Token>) -> Vec<Token> {
    range.collect()
}

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
