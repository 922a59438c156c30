//! Ours behind Dynamo's published trait, beside its own index, and the scorer's answers.

use cacheplan_index::{Batch, Bounds, Event, Index, Kind, Stored};
use cacheplan_index_peers::dynamo::Seat;
use cacheplan_index_peers::scorer::score;
use dynamo_kv_router::indexer::concurrent_radix_tree_compressed::ConcurrentRadixTreeCompressed;
use dynamo_kv_router::indexer::{KvIndexerInterface, ThreadPoolIndexer};
use dynamo_kv_router::protocols::{BlockHashOptions, WorkerWithDpRank, compute_block_hash_for_seq};
use dynamo_kv_router::zmq_wire::{ZmqEventNormalizer, decode_event_batch};

const BLOCK: u32 = 16;

fn stored(group: u32, kind: Kind, from: u32, blocks: u32) -> Event {
    Event::Stored(Stored {
        hashes: (from..from + blocks).map(|block| u64::from(block) + 1000).collect(),
        parent: from.checked_sub(1).map(|before| u64::from(before) + 1000),
        tokens: (from * BLOCK..(from + blocks) * BLOCK).collect(),
        block: BLOCK,
        group: Some(group),
        kind: Some(kind),
        on_device: true,
        ..Stored::default()
    })
}

/// Worker 1 has keys of eight blocks and a state behind four, worker 2 keys of two and a state behind them.
fn published() -> [(u64, Vec<u8>); 2] {
    [(1, 8, 4), (2, 2, 2)].map(|(worker, keys, state)| {
        let events = vec![stored(0, Kind::Full, 0, keys), stored(1, Kind::State, state - 1, 1)];
        (worker, Batch { events, ..Batch::default() }.to_msgpack())
    })
}

#[tokio::test]
async fn dynamos_router_can_ask_ours_and_gets_states_besides() {
    let seat = Seat::new(Bounds::default(), BLOCK as usize);
    let own = ThreadPoolIndexer::new(ConcurrentRadixTreeCompressed::new(), 1, BLOCK);
    for (worker, bytes) in published() {
        seat.published.take(worker, 0, &bytes).unwrap();
        let mut normalizer = ZmqEventNormalizer::new(BLOCK);
        for event in decode_event_batch(&bytes).unwrap().events {
            // Dynamo leaves out the group of states.
            let Some(placed) = normalizer.normalize(event, 0, WorkerWithDpRank::new(worker, 0)) else { continue };
            let event = placed.into_router_event().unwrap();
            seat.apply_event(event.clone()).await;
            own.apply_event(event).await;
        }
    }
    own.flush().await;
    let tokens: Vec<u32> = (0..BLOCK * 8 + 1).collect();
    let hashes = compute_block_hash_for_seq(&tokens, BLOCK, BlockHashOptions::default());
    let of = |scores: &dynamo_kv_router::protocols::OverlapScores| {
        [1, 2].map(|worker| scores.scores.get(&WorkerWithDpRank::new(worker, 0)).copied())
    };
    let theirs = own.find_matches(hashes.clone()).await.unwrap();
    assert_eq!(of(&theirs), [Some(8), Some(2)]);
    assert_eq!(of(&seat.find_matches(hashes.clone()).await.unwrap()), of(&theirs), "by keys alone");
    let with_states = seat.find_matches_for_request(&tokens, None, None, None).await.unwrap();
    assert_eq!(of(&with_states), [Some(4), Some(2)]);
    seat.remove_worker(1).await;
    assert_eq!(of(&seat.find_matches(hashes).await.unwrap()), [None, Some(2)]);
}

#[test]
fn a_score_is_the_share_of_the_prompt_that_a_worker_goes_on_from() {
    let index = Index::new(Bounds::default());
    for (worker, bytes) in published() {
        index.take(worker, 0, &bytes).unwrap();
    }
    let names = ["a", "b", "c"].map(str::to_owned);
    let tokens: Vec<u32> = (0..BLOCK * 8).collect();
    let body = serde_json::to_vec(&serde_json::json!({ "tokens": tokens })).unwrap();
    let scores = score(&index, &names, &body).unwrap();
    let scores: Vec<_> = scores.iter().map(|one| (one.worker.as_str(), one.score, one.is_exact)).collect();
    assert_eq!(scores, [("b", 0.5, true), ("c", 0.25, true)]);
    assert!(score(&index, &names, b"{}").unwrap_err().contains("tokens"));
}
