//! Rows of the prefix cache's tables that speak of the books of blocks and slots.

use crate::support::{Setup, hybrid, kv};
use cacheplan_managers::BookError;
use cacheplan_managers::book::{Accepted, CacheBook, SlotRole, StepMetadata, Work};
use cacheplan_planner::Limits;

#[test]
fn e16_fewer_candidates_after_more_take_no_further_blocks_behind_null_columns() {
    let mut setup = Setup::new().with(0, kv(2, 8).with_window(16).unwrap());
    setup.tokens_per_block = 16;
    setup.limits = Limits { max_seq_len: 128, max_batch_size: 1, max_num_tokens: 64, draft_positions: 16 };
    let mut book = CacheBook::new(&setup.plan()).unwrap();
    let sequence = book.admit(55).unwrap();
    for tokens in [54, 1] {
        book.step(&[Work { sequence, tokens }], &mut StepMetadata::default()).unwrap();
    }
    let table = |book: &CacheBook| book.block_table(sequence, 0).unwrap().to_vec();
    assert!(table(&book).starts_with(&[-1, -1]), "columns that the window has passed are null");

    book.speculate(&[Work { sequence, tokens: 16 }], &mut StepMetadata::default()).unwrap();
    book.commit(&[(sequence, Accepted::First(0))]).unwrap();
    let (used, before) = (book.blocks(0).unwrap().used(), table(&book));
    book.speculate(&[Work { sequence, tokens: 1 }], &mut StepMetadata::default()).unwrap();
    assert_eq!((book.blocks(0).unwrap().used(), table(&book)), (used, before));
}

#[test]
fn c7_a_finished_sequence_returns_its_slot_and_a_slot_that_is_kept_stays_taken_and_is_seen() {
    let mut book = CacheBook::new(&hybrid().plan()).unwrap();
    let live = book.slots().available(SlotRole::Live);
    let sequence = book.admit(8).unwrap();
    assert_eq!(book.slots().available(SlotRole::Live), live - 1);
    book.finish(sequence).unwrap();
    assert_eq!(book.slots().available(SlotRole::Live), live);
    assert_eq!(book.ensure_idle(), Ok(()));

    let sequence = book.admit(8).unwrap();
    book.step(&[Work { sequence, tokens: 8 }], &mut StepMetadata::default()).unwrap();
    let kept = book.finish_into_checkpoint(sequence).unwrap();
    assert_eq!((book.blocks(0).unwrap().used(), book.slots().used(SlotRole::Checkpoint)), (0, 1));
    assert_eq!(book.ensure_idle(), Err(BookError::Busy { sequences: 0, blocks: 0, slots: 1 }));
    book.release_checkpoint(kept).unwrap();
    assert_eq!(book.ensure_idle(), Ok(()));
}
