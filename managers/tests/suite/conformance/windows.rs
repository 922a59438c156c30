//! T4: pages of a window of 64 tokens in pages of 32.

use cacheplan_managers::book::{CacheBook, PassedPages, RaggedPages, SequenceId, StepMetadata, Work};
use cacheplan_planner::{Limits, SlotDomain};
use rstest::rstest;

use crate::support::{Setup, kv};

fn book() -> CacheBook {
    let mut setup = Setup::new().with(0, kv(2, 8).with_window(64).unwrap());
    setup.tokens_per_block = 32;
    setup.slots = SlotDomain { padding: 1, live: 1, checkpoints: 0 };
    setup.limits = Limits { max_seq_len: 512, max_batch_size: 1, max_num_tokens: 256, draft_positions: 1 };
    CacheBook::new(&setup.plan()).unwrap()
}

/// A sequence that was prefilled to one token before `total` and then decoded one.
fn decoded(book: &mut CacheBook, total: u32) -> SequenceId {
    let sequence = book.admit(total).unwrap();
    for tokens in [total - 1, 1] {
        book.step(&[Work { sequence, tokens }], &mut StepMetadata::default()).unwrap();
    }
    sequence
}

fn prefilled(book: &mut CacheBook, tokens: u32, reserved: u32) -> SequenceId {
    let sequence = book.admit(reserved).unwrap();
    book.step(&[Work { sequence, tokens }], &mut StepMetadata::default()).unwrap();
    sequence
}

fn pages(book: &CacheBook, sequence: SequenceId, passed: PassedPages) -> RaggedPages {
    book.ragged_pages(&[sequence], 0, passed).unwrap()
}

#[rstest]
#[case(64, -1)]
#[case(65, 3)]
fn evict_1_without_eviction_every_page_is_live(#[case] reserved: u32, #[case] extra: i32) {
    let mut book = book();
    let sequence = prefilled(&mut book, 64, reserved);
    let pages = pages(&book, sequence, PassedPages::Cut);
    assert_eq!(pages.pages, [1, 2]);
    assert_eq!((pages.seq_len_with_cache, pages.last_page_len), (vec![64], vec![32]));
    assert_eq!(pages.extra_page, [extra]);
}

#[rstest]
#[case(1)]
#[case(2)]
fn evict_2_passed_pages_are_cut_off_the_front(#[case] removed: u32) {
    let mut book = book();
    let sequence = decoded(&mut book, removed * 32 + 65);
    let table = book.block_table(sequence, 0).unwrap();
    assert_eq!(table.iter().take_while(|&&block| block < 0).count() as u32, removed);
    let pages = pages(&book, sequence, PassedPages::Cut);
    assert_eq!((pages.seq_len_with_cache, pages.last_page_len), (vec![65], vec![1]));
    assert_eq!(pages.cu_num_pages, [0, 3]);
}

#[test]
fn evict_3_a_last_page_may_be_partial() {
    let mut book = book();
    let sequence = prefilled(&mut book, 37, 37);
    let pages = pages(&book, sequence, PassedPages::Cut);
    assert_eq!((pages.seq_len_with_cache, pages.last_page_len), (vec![37], vec![5]));
}

#[test]
fn evict_4_one_long_prefill_keeps_all_its_pages() {
    let mut book = book();
    let sequence = prefilled(&mut book, 192, 192);
    let pages = pages(&book, sequence, PassedPages::Cut);
    assert_eq!(pages.pages.len(), 6);
    assert_eq!((pages.seq_len_with_cache, pages.last_page_len), (vec![192], vec![32]));
}

#[test]
fn evict_5_the_extra_page_lies_beyond_the_live_ones() {
    let mut book = book();
    let sequence = decoded(&mut book, 2 * 32 + 65);
    let pages = pages(&book, sequence, PassedPages::Cut);
    assert!(!pages.pages.contains(&(pages.extra_page[0] as u32)));
}

#[test]
fn cyclic_1_a_long_prefill_shows_the_whole_table() {
    let mut book = book();
    let sequence = prefilled(&mut book, 192, 192);
    let pages = pages(&book, sequence, PassedPages::Kept);
    assert_eq!((pages.pages.len(), pages.seq_len_with_cache, pages.extra_page), (6, vec![192], vec![-1]));
}

#[test]
fn cyclic_2_kept_pages_count_every_token_and_cut_ones_only_the_live() {
    let mut book = book();
    let sequence = decoded(&mut book, 129);
    let (kept, cut) = (pages(&book, sequence, PassedPages::Kept), pages(&book, sequence, PassedPages::Cut));
    assert_eq!((kept.pages.len(), kept.seq_len_with_cache), (5, vec![129]));
    assert_eq!((cut.pages.len(), cut.seq_len_with_cache), (3, vec![65]));
}
