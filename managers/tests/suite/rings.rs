//! Cyclic windows: each sequence decodes in a ring of blocks that it keeps.

use std::collections::HashMap;

use crate::support::{Setup, kv};
use cacheplan_managers::book::{Accepted, CacheBook, PassedPages, SequenceId, SlotRole, StepMetadata, Windows, Work};
use cacheplan_managers::{BookError, Lack, Scarce};
use cacheplan_planner::{Limits, SlotDomain};
use rstest::rstest;

const WINDOW: u32 = 10;
const PAGE: u32 = 4;
/// 9 keys before a query, 3 candidates: 12 tokens, which touch 4 pages at most.
const RING: u32 = 4;

fn book(blocks: u64) -> CacheBook {
    let mut setup = Setup::new().with(0, kv(2, 8).with_window(WINDOW).unwrap()).blocks(blocks);
    setup.tokens_per_block = PAGE.into();
    setup.slots = SlotDomain { padding: 1, live: 8, checkpoints: 0 };
    setup.limits = Limits { max_seq_len: 1 << 20, max_batch_size: 8, max_num_tokens: 256, draft_positions: 3 };
    CacheBook::with_windows(&setup.plan(), Windows::Cyclic).unwrap()
}

fn step(book: &mut CacheBook, sequence: SequenceId, tokens: u32) -> StepMetadata {
    let mut step = StepMetadata::default();
    book.step(&[Work { sequence, tokens }], &mut step).unwrap();
    step
}

fn ring(book: &CacheBook, sequence: SequenceId) -> Vec<u32> {
    book.ragged_pages(&[sequence], 0, PassedPages::Ring).unwrap().pages
}

#[test]
fn sequences_in_their_rings_never_wait_for_a_block() {
    let mut book = book(3 * u64::from(RING));
    let ids: Vec<_> = (1..4).map(|prompt| book.admit(prompt).unwrap()).collect();
    assert!(matches!(book.admit(1), Err(BookError::Lack(Lack { of: Scarce::Blocks { .. }, needed: 4, free: 0, .. }))));
    for round in 0..200 {
        for (&id, stride) in ids.iter().zip(1..) {
            // Every sequence at its own pace.
            if round % stride == 0 {
                step(&mut book, id, 1);
            }
        }
    }
    assert_eq!(book.blocks(0).unwrap().high_water(), 3 * RING);
}

#[test]
fn a_position_lies_where_the_ring_says_and_wraps_onto_the_same_block() {
    let mut book = book(9);
    let sequence = book.admit(1).unwrap();
    let mut written = HashMap::new();
    for position in 0..100u32 {
        let slot = step(&mut book, sequence, 1).pools[0].slot_mapping[0] as u32;
        written.insert(position, slot / PAGE);
        let ring = ring(&book, sequence);
        assert_eq!(ring.len() as u32, (position / PAGE + 1).min(RING));
        for seen in (position + 1).saturating_sub(WINDOW)..=position {
            assert_eq!(ring[(seen / PAGE) as usize % ring.len()], written[&seen]);
        }
        if let Some(earlier) = position.checked_sub(RING * PAGE) {
            assert_eq!(written[&position], written[&earlier]);
        }
    }
}

#[test]
fn a_long_chunk_takes_more_and_gives_it_back() {
    let mut book = book(40);
    let sequence = book.admit(100).unwrap();
    step(&mut book, sequence, 100);
    assert_eq!(book.blocks(0).unwrap().used(), 25);
    step(&mut book, sequence, 1);
    assert_eq!(book.blocks(0).unwrap().used(), RING);
}

#[rstest]
fn candidates_that_are_rejected_leave_the_ring_whole(#[values(0, 1, 3)] accepted: u32) {
    let mut book = book(RING.into());
    let sequence = book.admit(7).unwrap();
    step(&mut book, sequence, 7);
    for _ in 0..30 {
        let work = [Work { sequence, tokens: 3 }];
        book.speculate(&work, &mut StepMetadata::default()).unwrap();
        book.commit(&[(sequence, Accepted::First(accepted))]).unwrap();
        assert_eq!(book.blocks(0).unwrap().used(), RING);
    }
    assert_eq!(book.tokens(sequence).unwrap(), 7 + 30 * accepted);
}

#[test]
fn a_block_that_a_prefix_cache_holds_is_not_written_again() {
    let mut book = book(2 * u64::from(RING));
    let sequence = book.admit(4).unwrap();
    step(&mut book, sequence, 4);
    let shared = book.held_blocks(sequence).unwrap()[0][0];
    book.retain_block(0, shared).unwrap();
    for _ in 0..60 {
        let slot = step(&mut book, sequence, 1).pools[0].slot_mapping[0] as u32;
        assert_ne!(slot / PAGE, shared.0);
    }
    assert_eq!(book.blocks(0).unwrap().references(shared), 1);
    assert_eq!(book.blocks(0).unwrap().used(), RING + 1);
}

#[test]
fn a_sliding_pool_has_no_rings() {
    let setup = Setup::new().with(0, kv(2, 8).with_window(WINDOW).unwrap());
    let mut book = CacheBook::new(&setup.plan()).unwrap();
    let sequence = book.admit(1).unwrap();
    let refused = book.ragged_pages(&[sequence], 0, PassedPages::Ring).unwrap_err();
    assert_eq!(refused, BookError::NoRing { pool: "kv_paged.0".into() });
    assert_eq!(book.slots().used(SlotRole::Live), 0);
}
