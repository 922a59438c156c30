//! Behind Dynamo's trait: its router asks ours where it asks its own.
//!
//! Its normalised events have no states (they are dropped before an indexer sees them), so that workers whose bytes come here as
//! their engines publish them are answered with states, and all others by keys alone.

use async_trait::async_trait;
use cacheplan_index::{Answer, Batch, Bounds, Event, Index, Kind, Prompt, Stored};
use dynamo_kv_router::indexer::{KvIndexerInterface, KvRouterError};
use dynamo_kv_router::protocols::{
    DpRank, KvCacheEventData, LocalBlockHash, OverlapScores, RouterEvent, TokensWithHashes, WorkerId, WorkerWithDpRank,
};

/// An indexer of Dynamo.
pub struct Seat {
    /// What workers publish, as bytes.
    pub published: Index,
    /// What the router normalised: a block's hash is taken for two tokens.
    normalised: Index,
    block: usize,
}

impl Seat {
    /// A seat in a router whose blocks have so many tokens.
    pub fn new(bounds: Bounds, block: usize) -> Self {
        Self { published: Index::new(bounds), normalised: Index::new(bounds), block }
    }
}

fn as_tokens(hash: LocalBlockHash) -> [u32; 2] {
    [hash.0 as u32, (hash.0 >> 32) as u32]
}

/// Whole blocks, by worker; who holds none is left out.
fn scores(answers: &[Answer], block: usize) -> OverlapScores {
    let mut scores = OverlapScores::new();
    for Answer { who, reuse } in answers.iter().filter(|answer| answer.reuse.tokens >= block) {
        scores.scores.insert(WorkerWithDpRank::new(who.worker, who.rank), (reuse.tokens / block) as u32);
    }
    scores
}

#[async_trait]
impl KvIndexerInterface for Seat {
    async fn find_matches(&self, sequence: Vec<LocalBlockHash>) -> Result<OverlapScores, KvRouterError> {
        let mut tokens: Vec<u32> = sequence.into_iter().flat_map(as_tokens).collect();
        // The last token of a prompt is always computed.
        tokens.push(0);
        Ok(scores(&self.normalised.ask(Prompt::Tokens(&tokens)), 2))
    }

    async fn find_matches_for_request(
        &self,
        tokens: &[u32],
        lora_name: Option<&str>,
        cache_namespace: Option<&str>,
        _is_eagle: Option<bool>,
    ) -> Result<OverlapScores, KvRouterError> {
        // Blocks of adapters and namespaces are known by their hashes alone.
        if lora_name.is_some() || cache_namespace.is_some() {
            return Ok(OverlapScores::new());
        }
        Ok(scores(&self.published.ask(Prompt::Tokens(tokens)), self.block))
    }

    async fn apply_event(&self, event: RouterEvent) {
        let worker = event.worker_id;
        let rank = event.event.dp_rank;
        let events = match event.event.data {
            KvCacheEventData::Stored(data) => vec![Event::Stored(Stored {
                hashes: data.blocks.iter().map(|block| block.block_hash.0).collect(),
                parent: data.parent_hash.map(|parent| parent.0),
                tokens: data.blocks.iter().flat_map(|block| as_tokens(block.tokens_hash)).collect(),
                block: 2,
                group: Some(0),
                kind: Some(Kind::Full),
                on_device: true,
                ..Stored::default()
            })],
            KvCacheEventData::Removed(data) => vec![Event::Removed {
                hashes: data.block_hashes.iter().map(|hash| hash.0).collect(),
                group: Some(0),
                window: None,
                on_device: true,
            }],
            KvCacheEventData::Cleared => vec![Event::Cleared],
        };
        // The router numbers events itself; they come here in order.
        let who = cacheplan_index::WorkerRank { worker, rank };
        let number = self.normalised.next(who).unwrap_or(0);
        if let Err(error) = self.normalised.take(worker, number, &Batch { rank, time: 0, events }.to_msgpack()) {
            tracing::warn!(%error, worker, "an event was left out");
        }
    }

    async fn remove_worker(&self, worker: WorkerId) {
        self.published.forget(worker);
        self.normalised.forget(worker);
    }

    async fn remove_worker_dp_rank(&self, worker: WorkerId, rank: DpRank) {
        let cleared = Batch { rank, time: 0, events: vec![Event::Cleared] }.to_msgpack();
        for index in [&self.published, &self.normalised] {
            let who = cacheplan_index::WorkerRank { worker, rank };
            let Some(next) = index.next(who) else { continue };
            if let Err(error) = index.take(worker, next, &cleared) {
                tracing::warn!(%error, worker, rank, "a rank was left in");
            }
        }
    }

    fn shutdown(&self) {}

    async fn dump_events(&self) -> Result<Vec<RouterEvent>, KvRouterError> {
        Err(KvRouterError::Unsupported("this index keeps no events to give again".to_owned()))
    }

    async fn process_routing_decision_for_request(
        &self,
        _tokens: &mut TokensWithHashes,
        _worker: WorkerWithDpRank,
    ) -> Result<(), KvRouterError> {
        // What is held is known from events, not from decisions.
        Ok(())
    }

    async fn flush(&self) -> usize {
        0
    }
}
