//! What the books cost per step, and that pool size does not matter.
//!
//! Targets: a block, and a slot, is taken and given back in under 50 ns; the metadata of a decode step of 256 sequences
//! with 4,096 tokens in blocks of 16 takes under 200 µs; neither grows with the pool.

#[path = "../tests/suite/support.rs"]
mod support;

use cacheplan_managers::book::{BlockAllocator, CacheBook, SlotAllocator, SlotRole, StepMetadata, Work};
use cacheplan_managers::prefix::{Key, Namespace, PrefixReuse, Strategy, TenantId};
use cacheplan_planner::{Limits, SlotDomain};
use divan::{Bencher, black_box};
use support::{Setup, conv, kv, ssm};

fn main() {
    divan::main();
}

const POOL_SIZES: [u32; 3] = [1_000, 100_000, 10_000_000];

#[divan::bench(args = POOL_SIZES)]
fn block_taken_and_given_back(bencher: Bencher<'_, '_>, units: u32) {
    let mut blocks = BlockAllocator::new(units, 1);
    while blocks.used() < units / 2 {
        black_box(blocks.allocate());
    }
    bencher.bench_local(|| {
        let block = blocks.allocate().unwrap();
        blocks.release(black_box(block)).unwrap()
    });
}

#[divan::bench(args = POOL_SIZES)]
fn slot_taken_and_given_back(bencher: Bencher<'_, '_>, units: u32) {
    let domain = SlotDomain { padding: 1, live: u64::from(units), checkpoints: 0 };
    let mut slots = SlotAllocator::new(domain).unwrap();
    while slots.used(SlotRole::Live) < units / 2 {
        black_box(slots.allocate(SlotRole::Live));
    }
    bencher.bench_local(|| {
        let slot = slots.allocate(SlotRole::Live).unwrap();
        slots.release(black_box(slot)).unwrap();
    });
}

/// A decode step of 256 sequences of 4,096 tokens and a few more from step to step, in a pool just large enough and in
/// one 16 times as large.
#[divan::bench(args = [1, 16], sample_count = 100, sample_size = 4)]
fn decode_metadata_of_256_sequences(bencher: Bencher<'_, '_>, pool_factor: u64) {
    let (sequences, tokens) = (256, 4_096);
    let mut setup = Setup::new().with(0, ssm()).with(0, conv()).with(1, kv(2, 8));
    setup.tokens_per_block = 16;
    setup.blocks = pool_factor * sequences * (tokens / 16 + 64);
    setup.slots = SlotDomain { padding: 1, live: sequences, checkpoints: 0 };
    setup.limits =
        Limits { max_seq_len: 1 << 20, max_batch_size: sequences, max_num_tokens: 1 << 16, draft_positions: 1 };
    let mut book = CacheBook::new(&setup.plan()).unwrap();
    let mut metadata = StepMetadata::default();
    let ids: Vec<_> = (0..sequences).map(|_| book.admit(tokens as u32).unwrap()).collect();
    for &sequence in &ids {
        book.step(&[Work { sequence, tokens: tokens as u32 - 1 }], &mut metadata).unwrap();
    }
    book.take_ops();
    let work: Vec<_> = ids.iter().map(|&sequence| Work { sequence, tokens: 1 }).collect();
    bencher.bench_local(|| {
        book.step(black_box(&work), &mut metadata).unwrap();
        metadata.total_tokens()
    });
}

/// A request of a hybrid, 4,096 tokens of prompt in blocks of 16: admitted, computed, finished, without and with reuse of
/// all of it but the last block.
#[divan::bench(args = [false, true])]
fn request_of_4096_tokens(bencher: Bencher<'_, '_>, reused: bool) {
    let tokens: Vec<u32> = (0..4_096).collect();
    let mut setup = Setup::new().with(0, ssm()).with(0, conv()).with(1, kv(2, 8));
    setup.tokens_per_block = 16;
    setup.blocks = 4_096;
    setup.slots = SlotDomain { padding: 1, live: 8, checkpoints: 64 };
    setup.limits = Limits { max_seq_len: 1 << 14, max_batch_size: 8, max_num_tokens: 1 << 13, draft_positions: 1 };
    let plan = setup.plan();
    let mut book = CacheBook::new(&plan).unwrap();
    let mut reuse = PrefixReuse::new(&plan, &mut book, Strategy::complete(Some(256))).unwrap();
    let mut metadata = StepMetadata::default();
    let namespace = Namespace::default();
    bencher.bench_local(|| {
        if !reused {
            let sequence = book.admit(4_096).unwrap();
            book.step(&[Work { sequence, tokens: 4_096 }], &mut metadata).unwrap();
            book.take_ops();
            return book.finish(sequence).unwrap();
        }
        let mut lease = reuse.admit(&mut book, Key { namespace: &namespace, tokens: &tokens }, TenantId(0)).unwrap();
        let mut computed = lease.cached();
        while computed < 4_096 {
            let step = reuse.next_tokens(&lease, 4_096 - computed);
            book.step(&[Work { sequence: lease.sequence(), tokens: step as u32 }], &mut metadata).unwrap();
            computed += step;
            reuse.computed(&mut book, &mut lease, &[]).unwrap();
        }
        book.take_ops();
        reuse.finish(&mut book, lease).unwrap();
    });
}
