//! A prompt asked twice must hit, and the obvious ways to make it hit must not be taken.

use crate::book::{BlockId, SlotId};
use crate::prefix::cache::{Final, PrefixCache, Progress};
use crate::prefix::{
    CheckpointFormat, Extend, Key, Namespace, PrefixError, Released, Strategy, TenantId, Token, TreeConfig,
};
use rstest::rstest;

const KERNEL_CHUNK: usize = 64;

/// Asks a prompt once with all its chunks and checkpoints, and returns the hit of the second time.
fn ask_twice(strategy: Strategy, prompt_len: u32, prefill_chunk: usize) -> usize {
    let config = TreeConfig { chunk: KERNEL_CHUNK, ..TreeConfig::default() };
    let mut cache = PrefixCache::new(config.clone(), strategy).unwrap();
    let namespace = Namespace::default();
    let prompt: Vec<Token> = (0..prompt_len).collect();
    let key = |len: usize| Key { namespace: &namespace, tokens: &prompt[..len] };
    let mut blocks: Vec<BlockId> = (0..prompt_len).map(BlockId).collect();
    let mut slots = (1..).map(SlotId);
    let mut out = Released::default();
    let len = prompt.len();

    let found = cache.lookup(key(len));
    let mut lease = cache.admit(key(len), &found, SlotId(0), TenantId::default()).unwrap();
    let mut start = 0;
    while start < len {
        let end = len.min(start + prefill_chunk);
        let extend = Extend { start, end, prompt: len, branch: lease.branch() };
        for checkpoint in strategy.checkpoints(&config, extend) {
            let at = Progress { key: key(checkpoint.position), blocks: &blocks[..checkpoint.position], window: None };
            cache.store(&mut lease, at, slots.next(), &mut out).unwrap();
            blocks.clear();
            cache.held_blocks(&lease, &mut blocks);
            blocks.extend((blocks.len() as u32..prompt_len).map(BlockId));
        }
        start = end;
    }
    let state = if strategy.finish { Final::Move } else { Final::Discard };
    cache.finish(lease, Progress { key: key(len), blocks: &blocks, window: None }, state, &mut out).unwrap();
    cache.tree().check().unwrap();
    cache.lookup(key(len)).hit
}

#[rstest]
#[case::one_thousand(1000, 960)]
#[case::nine_thousand(9000, 8960)]
#[case::on_the_grid(1024, 960)]
#[case::shorter_than_the_grid(64, 0)]
fn a_prompt_asked_twice_hits_at_its_deepest_aligned_checkpoint(#[case] len: u32, #[case] hit: usize) {
    assert_eq!(ask_twice(Strategy::complete(None), len, 8192), hit);
}

#[test]
fn without_an_interior_checkpoint_only_chunk_ends_serve_a_resend() {
    assert_eq!(ask_twice(Strategy::NO_BUFFER, 1000, 8192), 0);
    assert_eq!(ask_twice(Strategy::NO_BUFFER, 9000, 8192), 8192);
}

/// A gated linear recurrence: the state decays by a gate of the token and takes in an outer product.
#[derive(Clone, Default, PartialEq)]
struct State([[f64; 4]; 4]);

impl State {
    fn absorb(&mut self, token: u32) {
        let x = |i: u32| f64::from((token * 16 + i).wrapping_mul(0x9E37_79B1) >> 16) / 65536.0 - 0.5;
        let gate = 0.9 + 0.1 * x(0);
        for (i, row) in self.0.iter_mut().enumerate() {
            for (j, value) in row.iter_mut().enumerate() {
                *value = gate * *value + x(1 + i as u32) * x(5 + j as u32);
            }
        }
    }

    fn after(tokens: std::ops::Range<u32>, from: &Self) -> Self {
        let mut state = from.clone();
        tokens.for_each(|token| state.absorb(token));
        state
    }

    /// Largest difference relative to the largest magnitude.
    fn error(&self, truth: &Self) -> f64 {
        let pairs = || self.0.iter().flatten().zip(truth.0.iter().flatten());
        let scale = pairs().map(|(_, t)| t.abs()).fold(0.0, f64::max);
        pairs().map(|(s, t)| (s - t).abs()).fold(0.0, f64::max) / scale
    }
}

#[test]
fn serving_a_state_one_token_short_of_what_it_absorbed_applies_a_token_twice() {
    let truth = State::after(0..100, &State::default());
    // "Use the state of the child after a split": 100 tokens absorbed, served to a prefix of 99.
    let served = State::after(99..100, &truth);
    assert!(served.error(&truth) > 0.01, "{}", served.error(&truth));
}

#[test]
fn cutting_the_key_to_the_grid_does_not_cut_the_state() {
    let running = State::after(0..100, &State::default());
    let at_64 = State::after(0..64, &State::default());
    assert!(running.error(&at_64) > 0.1, "{}", running.error(&at_64));
    // What the interior checkpoint holds instead is exact, and so is going on from it.
    assert!(State::after(64..100, &at_64) == running);
}

#[test]
fn a_state_off_the_grid_is_as_good_as_one_on_it() {
    let truth = State::after(0..150, &State::default());
    let at_100 = State::after(0..100, &State::default());
    assert!(State::after(100..150, &at_100) == truth);
}

#[test]
fn a_finished_request_moves_its_state_so_that_no_copy_is_needed() {
    let mut cache = PrefixCache::new(TreeConfig::default(), Strategy::NO_BUFFER).unwrap();
    let namespace = Namespace::default();
    let key = Key { namespace: &namespace, tokens: &[1, 2, 3] };
    let mut out = Released::default();
    let mut finish = |live, first_block: u32| {
        let blocks = [0, 1, 2].map(|i| BlockId(first_block + i));
        let found = cache.lookup(key);
        let lease = cache.admit(key, &found, live, TenantId::default()).unwrap();
        cache.finish(lease, Progress { key, blocks: &blocks, window: None }, Final::Move, &mut out).unwrap()
    };
    assert_eq!(finish(SlotId(1), 0), None, "the slot is the tree's now");
    assert_eq!(finish(SlotId(2), 10), Some(SlotId(2)), "the duplicate comes back");
    assert!(out.slots.is_empty());
    assert_eq!(cache.tree().match_prefix(key).state, Some(SlotId(1)));
}

#[test]
fn a_live_slot_does_not_become_an_int8_checkpoint() {
    let config = TreeConfig { checkpoints: CheckpointFormat::Int8, ..TreeConfig::default() };
    let mut cache = PrefixCache::new(config, Strategy::NO_BUFFER).unwrap();
    let namespace = Namespace::default();
    let key = Key { namespace: &namespace, tokens: &[1, 2] };
    let blocks = [0, 1].map(BlockId);
    let at = Progress { key, blocks: &blocks, window: None };
    let mut out = Released::default();
    let mut finish = |state| {
        let found = cache.lookup(key);
        let lease = cache.admit(key, &found, SlotId(0), TenantId::default()).unwrap();
        let result = cache.finish(lease, at, state, &mut out);
        let mut live = Vec::new();
        cache.reclaim(&mut live).unwrap();
        (result, live)
    };
    assert_eq!(finish(Final::Move), (Err(PrefixError::NotMovable), vec![SlotId(0)]));
    assert_eq!(finish(Final::Checkpoint(SlotId(7))), (Ok(Some(SlotId(0))), vec![]));
    assert_eq!(cache.tree().match_prefix(key).state, Some(SlotId(7)));
}
