//! Our index beside those of `dynamo-kv-router`: the same bytes and the same questions, one index to a process, in turns.
//!
//! `beside [ROUNDS [WORKERS]]` measures all on the core that it was started on; `taskset` chooses it. `beside ROUNDS WORKERS both`
//! writes on one thread while another asks.
#![expect(clippy::unwrap_used, reason = "a benchmark")]

#[allow(dead_code, reason = "the bench of the crate hashes by itself")]
#[path = "../../../benches/fleet/texts.rs"]
mod texts;

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cacheplan_index::{Bounds, Index, Prompt};
use dynamo_kv_router::indexer::concurrent_radix_tree_compressed::ConcurrentRadixTreeCompressed;
use dynamo_kv_router::indexer::positional::PositionalIndexer;
use dynamo_kv_router::indexer::{KvIndexerInterface, SyncIndexer, ThreadPoolIndexer};
use dynamo_kv_router::protocols::{BlockHashOptions, LocalBlockHash, WorkerWithDpRank, compute_block_hash_for_seq};
use dynamo_kv_router::zmq_wire::{ZmqEventNormalizer, decode_event_batch};
use texts::{BETWEEN_STATES, BLOCK, SHARED, TEXTS, TOKENS, WORKERS, resident, stored, token};

const INDEXES: [&str; 4] =
    ["ours, keys alone", "ours, with states", "ConcurrentRadixTreeCompressed", "PositionalIndexer"];

/// What is measured of an index.
trait Measured: Sync {
    fn take(&self, worker: u64, batches: &[Vec<u8>]);
    fn ask_by_hashes(&self, text: u64) -> usize;
    fn ask_by_tokens(&self, tokens: &[u32]) -> usize;
}

struct Ours {
    index: Index,
    hashes: Vec<Vec<u64>>,
}

fn most(answers: &[cacheplan_index::Answer]) -> usize {
    answers.iter().map(|answer| answer.reuse.tokens).max().unwrap_or(0)
}

impl Measured for Ours {
    fn take(&self, worker: u64, batches: &[Vec<u8>]) {
        for (number, batch) in batches.iter().enumerate() {
            self.index.take(worker, number as u64, batch).unwrap();
        }
    }

    fn ask_by_hashes(&self, text: u64) -> usize {
        let hashes = &self.hashes[text as usize];
        most(&self.index.ask(Prompt::Hashes { hashes, block: BLOCK, tokens: TOKENS }))
    }

    fn ask_by_tokens(&self, tokens: &[u32]) -> usize {
        most(&self.index.ask(Prompt::Tokens(tokens)))
    }
}

struct Theirs<T: SyncIndexer> {
    pool: ThreadPoolIndexer<T>,
    runtime: tokio::runtime::Runtime,
    hashes: Vec<Vec<LocalBlockHash>>,
}

impl<T: SyncIndexer> Theirs<T> {
    fn ask(&self, hashes: &[LocalBlockHash]) -> usize {
        let scores = self.pool.backend().find_matches(hashes, false).scores;
        scores.values().max().map_or(0, |blocks| *blocks as usize * BLOCK)
    }
}

impl<T: SyncIndexer> Measured for Theirs<T> {
    fn take(&self, worker: u64, batches: &[Vec<u8>]) {
        let mut normalizer = ZmqEventNormalizer::new(BLOCK as u32);
        self.runtime.block_on(async {
            for (number, batch) in batches.iter().enumerate() {
                for event in decode_event_batch(batch).unwrap().events {
                    let placed = normalizer.normalize(event, number as u64, WorkerWithDpRank::new(worker, 0));
                    self.pool.apply_event(placed.unwrap().into_router_event().unwrap()).await;
                }
            }
            self.pool.flush().await;
        });
    }

    fn ask_by_hashes(&self, text: u64) -> usize {
        self.ask(&self.hashes[text as usize])
    }

    fn ask_by_tokens(&self, tokens: &[u32]) -> usize {
        self.ask(&local_hashes(tokens))
    }
}

fn local_hashes(tokens: &[u32]) -> Vec<LocalBlockHash> {
    compute_block_hash_for_seq(tokens, BLOCK as u32, BlockHashOptions::default())
}

/// The hashes that the PositionalIndexer expects of an engine; any do for the others.
fn chain(text: u64) -> Vec<u64> {
    let mut chain: Vec<u64> = Vec::new();
    for LocalBlockHash(local) in local_hashes(&tokens(text)) {
        chain.push(chain.last().map_or(local, |before| dynamo_tokens::compute_next_sequence_hash(*before, local)));
    }
    chain
}

fn tokens(text: u64) -> Vec<u32> {
    (0..TOKENS).map(|at| token(text, at)).collect()
}

/// What a worker publishes, and how many blocks it then holds.
fn published(worker: u64, texts: u64, has_states: bool, chains: &[Vec<u64>]) -> (Vec<Vec<u8>>, u32) {
    let hash = |text: u64, end: usize| chains[text as usize][end / BLOCK - 1];
    let (mut batches, mut blocks) = (Vec::new(), 0);
    for text in 0..TEXTS {
        let of = (worker * TEXTS + text) % texts;
        for end in (BLOCK..=TOKENS).step_by(BLOCK).filter(|end| text == 0 || *end > SHARED) {
            blocks += 1;
            batches.push(stored(of, end, 0, hash));
            if has_states && end % BETWEEN_STATES == 0 {
                batches.push(stored(of, end, 1, hash));
            }
        }
    }
    (batches, blocks)
}

fn middle_and_p99(mut took: Vec<Duration>) -> String {
    took.sort_unstable();
    format!("{:?} and {:?}", took[took.len() / 2], took[took.len() * 99 / 100])
}

/// Half of the workers published; eight more do on one thread, while another asks without a pause.
fn measure_both(name: &str, index: &dyn Measured, chains: &[Vec<u64>], workers: u64) {
    let texts = workers * TEXTS / 4;
    let all = |worker| published(worker, texts, name == "ours, with states", chains).0;
    (0..workers / 2).for_each(|worker| index.take(worker, &all(worker)));
    let further: Vec<(u64, Vec<Vec<u8>>)> =
        (workers / 2..workers / 2 + 8).map(|worker| (worker, all(worker))).collect();
    let is_written = AtomicBool::new(false);
    let (spent, took) = std::thread::scope(|scope| {
        let asks = scope.spawn(|| {
            let mut took = Vec::new();
            while !is_written.load(Ordering::Relaxed) {
                let started = Instant::now();
                assert!(index.ask_by_hashes(took.len() as u64 * 37 % texts) > SHARED);
                took.push(started.elapsed());
            }
            took
        });
        let started = Instant::now();
        further.iter().for_each(|(worker, batches)| index.take(*worker, batches));
        let spent = started.elapsed();
        is_written.store(true, Ordering::Relaxed);
        (spent, asks.join().unwrap())
    });
    let events: usize = further.iter().map(|(_, batches)| batches.len()).sum();
    let rate = events as f64 / spent.as_secs_f64() / 1e6;
    println!("{name}: {rate:.2} M events/s while {} questions took {}", took.len(), middle_and_p99(took));
}

fn measure(name: &str, index: &dyn Measured, chains: &[Vec<u64>], workers: u64) {
    let texts = workers * TEXTS / 4;
    let before = resident();
    let (mut events, mut blocks, mut spent) = (0_u32, 0_u32, Duration::ZERO);
    for worker in 0..workers {
        let (batches, of_these) = published(worker, texts, name == "ours, with states", chains);
        let started = Instant::now();
        index.take(worker, &batches);
        spent += started.elapsed();
        events += u32::try_from(batches.len()).unwrap();
        blocks += of_these;
    }
    let bytes = (resident() - before) as f64 / f64::from(blocks);
    let mut line = format!("{:.2} M events/s, {bytes:.0} bytes a block", f64::from(events) / spent.as_secs_f64() / 1e6);
    let expected = match name {
        "ours, keys alone" => TOKENS - BLOCK,
        "ours, with states" => TOKENS - BETWEEN_STATES,
        _ => TOKENS,
    };
    for by_tokens in [false, true] {
        let took: Vec<Duration> = (0..1000)
            .map(|question| {
                let text = question * 37 % texts;
                let tokens = tokens(text);
                let started = Instant::now();
                let found = if by_tokens { index.ask_by_tokens(&tokens) } else { index.ask_by_hashes(text) };
                let took = started.elapsed();
                assert_eq!(found, expected, "{name}, text {text}");
                took
            })
            .collect();
        let way = if by_tokens { "tokens" } else { "hashes" };
        line += &format!(", by {way} {}", middle_and_p99(took));
    }
    println!("{name}: {blocks} blocks, {line}");
}

fn theirs<T: SyncIndexer>(backend: T, texts: u64) -> Theirs<T> {
    Theirs {
        pool: ThreadPoolIndexer::new(backend, 1, BLOCK as u32),
        runtime: tokio::runtime::Builder::new_current_thread().build().unwrap(),
        hashes: (0..texts).map(|text| local_hashes(&tokens(text))).collect(),
    }
}

fn main() {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let both = arguments.iter().position(|word| word == "both").map(|at| arguments.remove(at));
    let number = |at: usize, default: u64| arguments.get(at).map_or(default, |number| number.parse().unwrap());
    let workers = number(1, WORKERS);
    let texts = workers * TEXTS / 4;
    if let Some(name) = arguments.get(2) {
        let measure = if both.is_some() { measure_both } else { measure };
        let chains: Vec<Vec<u64>> = (0..texts).map(chain).collect();
        match name.as_str() {
            "ConcurrentRadixTreeCompressed" => {
                measure(name, &theirs(ConcurrentRadixTreeCompressed::new(), texts), &chains, workers)
            }
            // Jumps of 32 blocks, as its own tests take.
            "PositionalIndexer" => measure(name, &theirs(PositionalIndexer::new(32), texts), &chains, workers),
            _ => {
                measure(name, &Ours { index: Index::new(Bounds::default()), hashes: chains.clone() }, &chains, workers)
            }
        }
        return;
    }
    for _ in 0..number(0, 3) {
        for name in INDEXES {
            let of_one = ["1".to_owned(), workers.to_string(), name.to_owned()].into_iter().chain(both.clone());
            let status = Command::new(std::env::current_exe().unwrap()).args(of_one).status().unwrap();
            assert!(status.success(), "{name}");
        }
    }
}
