//! The cache says what it achieved, and why it did not achieve more.

use crate::book::{BlockId, SlotId};
use crate::prefix::cache::{Final, PrefixCache, Progress};
use crate::prefix::{Key, Misses, Namespace, Released, Reuse, Strategy, TenantId, Token, TreeConfig, WindowSpan};
use rstest::rstest;

/// Runs a prompt through admission and finish; the state is kept if `state` says so.
fn serve(cache: &mut PrefixCache, prompt: &[Token], state: Final, window_from: usize) {
    let namespace = Namespace::default();
    let key = Key { namespace: &namespace, tokens: prompt };
    let found = cache.lookup(key);
    let requests = cache.metrics().requests as u32;
    let lease = cache.admit(key, &found, SlotId(requests), TenantId::default()).unwrap();
    let unit = |i: usize| BlockId(requests * 1000 + i as u32);
    let blocks: Vec<BlockId> = (0..prompt.len()).map(unit).collect();
    let windowed = cache.tree().config().window.is_some();
    let window = windowed.then_some(WindowSpan { from: window_from, blocks: &blocks[window_from..] });
    cache.finish(lease, Progress { key, blocks: &blocks, window }, state, &mut Released::default()).unwrap();
}

fn misses(window: Option<usize>, prompts: &[(&[Token], Final, usize)]) -> Misses {
    let config = TreeConfig { window, ..TreeConfig::default() };
    let mut cache = PrefixCache::new(config, Strategy::NO_BUFFER).unwrap();
    for &(prompt, state, window_from) in prompts {
        serve(&mut cache, prompt, state, window_from);
    }
    cache.metrics().misses
}

#[test]
fn a_miss_has_a_reason() {
    let first: &[Token] = &[1, 2, 3, 4, 5, 6];
    assert_eq!(misses(None, &[(first, Final::Move, 0)]), Misses { cold: 1, ..Misses::default() });
    assert_eq!(
        misses(None, &[(first, Final::Discard, 0), (&[1, 2, 3, 9], Final::Discard, 0)]),
        Misses { cold: 1, no_state: 1, ..Misses::default() }
    );
    assert_eq!(
        misses(None, &[(first, Final::Move, 0), (first, Final::Discard, 0)]),
        Misses { cold: 1, only_at_end: 1, ..Misses::default() }
    );
    assert_eq!(
        misses(Some(3), &[(first, Final::Move, 5), (&[1, 2, 3, 4, 5, 6, 7], Final::Discard, 4)]),
        Misses { cold: 1, no_window: 1, ..Misses::default() }
    );
}

#[test]
fn a_prompt_of_one_page_that_is_all_there_is_no_cold_miss() {
    let config = TreeConfig { page: 4, ..TreeConfig::default() };
    let mut cache = PrefixCache::new(config, Strategy::NO_BUFFER).unwrap();
    let namespace = Namespace::default();
    let key = Key { namespace: &namespace, tokens: &[1, 2, 3, 4] };
    for request in 0..2 {
        let found = cache.lookup(key);
        let lease = cache.admit(key, &found, SlotId(request), TenantId::default()).unwrap();
        let at = Progress { key, blocks: &[BlockId(request)], window: None };
        cache.finish(lease, at, Final::Move, &mut Released::default()).unwrap();
    }
    assert_eq!(cache.metrics().misses, Misses { cold: 1, only_at_end: 1, ..Misses::default() });
}

#[test]
fn recompute_for_want_of_a_state_is_counted_apart() {
    let mut cache = PrefixCache::new(TreeConfig::default(), Strategy::NO_BUFFER).unwrap();
    serve(&mut cache, &[1, 2, 3], Final::Move, 0);
    serve(&mut cache, &[1, 2, 3, 4, 5, 6], Final::Discard, 0);
    serve(&mut cache, &[1, 2, 3, 4, 5, 6, 7], Final::Discard, 0);
    let metrics = cache.metrics();
    assert_eq!((metrics.prompt_tokens, metrics.hit_tokens, metrics.kv_hit_tokens), (16, 6, 9));
    assert_eq!(metrics.recomputed_for_state, 3);
    assert_eq!((metrics.hit_rate(), metrics.kv_hit_rate()), (6.0 / 16.0, 9.0 / 16.0));
}

#[rstest]
#[case::works(64, 16, 8, 1000, Reuse::On)]
#[case::no_slots(64, 16, 0, 1000, Reuse::NoCheckpointSlots)]
#[case::prompts_too_short(1024, 528, 8, 500, Reuse::PromptsBelowGrid { grid: 33_792, prompt: 500 })]
fn the_cache_says_when_reuse_cannot_work(
    #[case] chunk: usize,
    #[case] page: usize,
    #[case] slots: usize,
    #[case] prompt: usize,
    #[case] expected: Reuse,
) {
    let config = TreeConfig { chunk, page, ..TreeConfig::default() };
    let cache = PrefixCache::new(config, Strategy::complete(None)).unwrap();
    assert_eq!(cache.reuse(slots, prompt), expected);
}
