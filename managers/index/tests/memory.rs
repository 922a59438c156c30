//! What an index takes, counted by the allocator, beside what `Bounds` says.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use cacheplan_index::{Batch, Bounds, Event, Index, Kind, Stored};

struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is the system allocator's, with what the caller promises to this one.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const BLOCKS: u64 = 100_000;

/// Each block of a text, in one batch each; behind each other, or each the beginning of a text of its own.
fn store(index: &Index, worker: u64, is_chain: bool) {
    for at in 0..BLOCKS {
        let hash = |at: u64| (at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let stored = Event::Stored(Stored {
            hashes: vec![hash(at)],
            parent: (is_chain && at > 0).then(|| hash(at - 1)),
            tokens: vec![at as u32],
            block: 1,
            group: Some(0),
            kind: Some(Kind::Full),
            on_device: true,
            ..Stored::default()
        });
        let batch = Batch { events: vec![stored], ..Batch::default() };
        index.take_batch(worker, at, &batch).unwrap();
    }
}

/// Bytes of each block for the first worker, and for each further one.
fn bytes(is_chain: bool) -> [f64; 2] {
    let before = HELD.load(Ordering::Relaxed);
    let index = Index::new(Bounds::default());
    store(&index, 0, is_chain);
    let first = HELD.load(Ordering::Relaxed);
    (1..5).for_each(|worker| store(&index, worker, is_chain));
    let all = HELD.load(Ordering::Relaxed);
    assert_eq!(index.texts() as u64, BLOCKS);
    [(first - before) as f64 / BLOCKS as f64, (all - first) as f64 / 4.0 / BLOCKS as f64]
}

#[test]
fn a_block_takes_what_the_bounds_say() {
    let (chained, apart) = (bytes(true), bytes(false));
    println!(
        "bytes of a block, and for each further worker: {chained:.1?} in texts, {apart:.1?} where none follows another"
    );
    let [[of_block, of_holder], [of_block_apart, of_holder_apart]] = [chained, apart];
    assert!(of_block <= 120.0 && of_holder <= 1.0, "{chained:?}");
    assert!(of_block_apart <= 700.0 && of_holder_apart <= 120.0, "{apart:?}");
}
