//! What a server that runs for weeks meets: very many sequences, very long ones, pools with nothing in them.

use crate::support::{Setup, conv, hybrid, kv, ssm};
use cacheplan_managers::book::{CacheBook, SlotRole, StepMetadata, Windows, Work};
use cacheplan_managers::{BookError, Lack, Scarce};
use cacheplan_planner::{Limits, SlotDomain};
use rstest::rstest;

#[test]
fn a_quarter_of_a_million_sequences_leave_nothing_behind() {
    let mut book = CacheBook::new(&hybrid().plan()).unwrap();
    let (mut previous, mut metadata) = (None, StepMetadata::default());
    for _ in 0..250_000 {
        let sequence = book.admit(3).unwrap();
        book.step(&[Work { sequence, tokens: 3 }], &mut metadata).unwrap();
        book.take_ops();
        if let Some(stale) = previous.replace(sequence) {
            assert_eq!(book.tokens(stale), Err(BookError::StaleSequence(stale)));
        }
        book.finish(sequence).unwrap();
    }
    book.ensure_idle().unwrap();
    assert_eq!(book.blocks(0).unwrap().high_water(), 1);
    assert_eq!(book.slots().high_water(SlotRole::Live), 1);
    assert_eq!(book.stats().pools[0].refused, 0);
}

#[rstest]
fn a_sequence_of_a_million_tokens_is_served_to_its_end(#[values(Windows::Sliding, Windows::Cyclic)] windows: Windows) {
    let tokens = 1 << 20;
    let mut setup = Setup::new().with(0, kv(2, 8)).with(1, kv(2, 8).with_window(4096).unwrap()).with(2, ssm());
    setup.tokens_per_block = 16;
    setup = setup.blocks(tokens / 16);
    setup.limits = Limits { max_seq_len: tokens, max_batch_size: 1, max_num_tokens: 8192, draft_positions: 1 };
    let mut book = CacheBook::with_windows(&setup.plan(), windows).unwrap();
    let sequence = book.admit(tokens as u32).unwrap();
    let mut metadata = StepMetadata::default();
    for _ in 0..tokens / 8192 {
        book.step(&[Work { sequence, tokens: 8192 }], &mut metadata).unwrap();
    }
    assert_eq!(book.blocks(0).unwrap().used() as u64, tokens / 16);
    // The window and the last chunk.
    assert!(book.blocks(1).unwrap().used() <= (4096 + 8192) / 16 + 1);
    let last = *metadata.pools[0].slot_mapping.last().unwrap();
    assert_eq!(last % 16, 15);
    let refused = book.step(&[Work { sequence, tokens: 1 }], &mut metadata);
    assert_eq!(refused, Err(BookError::TooLong { tokens: tokens + 1, max_seq_len: tokens }));
    book.finish(sequence).unwrap();
    book.ensure_idle().unwrap();
}

#[test]
fn pools_without_room_refuse_by_name_and_change_nothing() {
    let mut blocks = CacheBook::new(&hybrid().blocks(0).plan()).unwrap();
    let refused = blocks.admit(1).unwrap_err();
    assert!(
        matches!(refused, BookError::Lack(Lack { of: Scarce::Blocks { .. }, needed: 1, free: 0, capacity: 0 })),
        "{refused}"
    );
    let empty = blocks.admit(0).unwrap();
    let refused = blocks.step(&[Work { sequence: empty, tokens: 1 }], &mut StepMetadata::default()).unwrap_err();
    assert!(matches!(refused, BookError::Lack(Lack { of: Scarce::Blocks { .. }, .. })), "{refused}");
    assert_eq!(blocks.stats().pools[0].refused, 2);

    let mut setup = Setup::new().with(0, ssm()).with(0, conv());
    setup.slots = SlotDomain { padding: 1, live: 0, checkpoints: 0 };
    let mut slots = CacheBook::new(&setup.plan()).unwrap();
    let refused = slots.admit(1).unwrap_err();
    let lack = Lack { of: Scarce::Slots(SlotRole::Live), needed: 1, free: 0, capacity: 0 };
    assert_eq!(refused, BookError::Lack(lack));
    slots.ensure_idle().unwrap();
}

#[test]
fn a_step_beyond_the_limits_is_refused_whole() {
    let mut setup = hybrid().blocks(64);
    setup.limits = Limits { max_seq_len: 64, max_batch_size: 2, max_num_tokens: 16, draft_positions: 1 };
    let mut book = CacheBook::new(&setup.plan()).unwrap();
    let ids: Vec<_> = (0..3).map(|_| book.admit(16).unwrap()).collect();
    let mut step = |parts: &[(usize, u32)]| {
        let work: Vec<_> = parts.iter().map(|&(id, tokens)| Work { sequence: ids[id], tokens }).collect();
        book.step(&work, &mut StepMetadata::default())
    };
    let refused = step(&[(0, 1), (1, 1), (2, 1)]);
    assert_eq!(refused, Err(BookError::StepTooLarge { what: "sequences in a step", found: 3, limit: 2 }));
    let refused = step(&[(0, 9), (1, 8)]);
    assert_eq!(refused, Err(BookError::StepTooLarge { what: "tokens in a step", found: 17, limit: 16 }));
    step(&[(0, 8), (1, 8)]).unwrap();
    assert!(ids.iter().zip([8, 8, 0]).all(|(&id, tokens)| book.tokens(id) == Ok(tokens)));
}

#[test]
fn a_pool_beyond_what_tables_can_name_is_refused() {
    let mut plan = Setup::new().with(0, kv(1, 1)).plan();
    plan.pools[0].units = 1 << 31;
    plan.pools[0].bytes = plan.pools[0].unit_bytes << 31;
    let refused = CacheBook::new(&plan).unwrap_err();
    assert_eq!(refused, BookError::TooManyUnits { pool: plan.pools[0].id.clone(), units: 1 << 31 });
}
