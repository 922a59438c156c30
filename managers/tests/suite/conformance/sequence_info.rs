//! T2: the metadata of a step, `SequenceInfo` in the original.

use cacheplan_managers::book::{Accepted, CacheBook, PassedPages, SequenceId, StepMetadata, Work};
use cacheplan_planner::{Limits, SlotDomain};

use crate::support::{Setup, kv};

fn book(tokens_per_block: u64) -> CacheBook {
    let mut setup = Setup::new().with(0, kv(2, 8)).blocks(64);
    setup.tokens_per_block = tokens_per_block;
    setup.slots = SlotDomain { padding: 1, live: 4, checkpoints: 0 };
    setup.limits = Limits { max_seq_len: 256, max_batch_size: 4, max_num_tokens: 256, draft_positions: 8 };
    CacheBook::new(&setup.plan()).unwrap()
}

fn grow(book: &mut CacheBook, parts: &[(SequenceId, u32)]) -> StepMetadata {
    let work: Vec<_> = parts.iter().map(|&(sequence, tokens)| Work { sequence, tokens }).collect();
    let mut step = StepMetadata::default();
    book.step(&work, &mut step).unwrap();
    step
}

/// Sequences that have these lengths already.
fn sequences(book: &mut CacheBook, lengths: &[u32]) -> Vec<SequenceId> {
    let ids: Vec<_> = lengths.iter().map(|&length| book.admit(length).unwrap()).collect();
    for (&id, &length) in ids.iter().zip(lengths) {
        grow(book, &[(id, length)]);
    }
    ids
}

/// The first position of each sequence in a step.
fn input_positions(step: &StepMetadata) -> Vec<u32> {
    step.cu_seqlens[..step.batch()].iter().map(|&first| step.positions[first as usize]).collect()
}

#[test]
fn t2_41_the_last_page_of_25_tokens_in_pages_of_16_holds_9() {
    let mut book = book(16);
    let ids = sequences(&mut book, &[25]);
    assert_eq!(book.ragged_pages(&ids, 0, PassedPages::Cut).unwrap().last_page_len, [9]);
}

#[test]
fn t2_42_lengths_10_and_20_take_one_page_and_two() {
    let mut book = book(16);
    let ids = sequences(&mut book, &[10, 20]);
    let pages = book.ragged_pages(&ids, 0, PassedPages::Cut).unwrap();
    // Page 0 is padding here.
    assert_eq!((pages.pages, pages.cu_num_pages), (vec![1, 2, 3], vec![0, 1, 3]));
}

#[test]
fn t2_43_two_sequences_with_three_drafts_each_are_two_extends_of_four_tokens() {
    let mut book = book(16);
    let ids = sequences(&mut book, &[1, 1]);
    let work: Vec<_> = ids.iter().map(|&sequence| Work { sequence, tokens: 4 }).collect();
    let mut step = StepMetadata::default();
    book.speculate(&work, &mut step).unwrap();
    assert_eq!((step.batch(), step.total_tokens()), (2, 8));
    assert_eq!(step.cu_seqlens, [0, 4, 8]);
}

/// Opens a speculative step of 4 candidates for each sequence and accepts these many.
fn speculate(book: &mut CacheBook, accepted: &[(SequenceId, u32)]) {
    let work: Vec<_> = accepted.iter().map(|&(sequence, _)| Work { sequence, tokens: 4 }).collect();
    book.speculate(&work, &mut StepMetadata::default()).unwrap();
    let accepted: Vec<_> = accepted.iter().map(|&(id, count)| (id, Accepted::First(count))).collect();
    book.commit(&accepted).unwrap();
}

#[test]
fn t2_44_accepted_tokens_move_the_next_positions() {
    let mut book = book(16);
    let ids = sequences(&mut book, &[10, 20, 30, 40]);
    speculate(&mut book, &[(ids[0], 1), (ids[1], 2), (ids[2], 3), (ids[3], 4)]);
    let step = grow(&mut book, &[(ids[0], 4), (ids[1], 4), (ids[2], 1), (ids[3], 1)]);
    assert_eq!(input_positions(&step), [11, 22, 33, 44]);
    assert_eq!(step.kv_lens, [15, 26, 34, 45]);
}

#[test]
fn t2_45_prefills_start_at_0_beside_sequences_that_go_on() {
    let mut book = book(16);
    let old = sequences(&mut book, &[9, 19]);
    speculate(&mut book, &[(old[0], 3), (old[1], 4)]);
    let new: Vec<_> = (0..2).map(|_| book.admit(5).unwrap()).collect();
    let step = grow(&mut book, &[(new[0], 5), (new[1], 5), (old[0], 4), (old[1], 1)]);
    assert_eq!(input_positions(&step), [0, 0, 12, 23]);
}

#[test]
fn t2_60_the_last_token_of_a_prompt_of_3_gives_the_logits() {
    let mut book = book(16);
    let id = book.admit(3).unwrap();
    let step = grow(&mut book, &[(id, 3)]);
    assert_eq!(step.last_rows().collect::<Vec<_>>(), [2]);
    // All logits need no gathering: they are the rows themselves.
    assert_eq!((0..step.total_tokens()).collect::<Vec<_>>(), [0, 1, 2]);
}
