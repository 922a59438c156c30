//! 256 workers that hold 4 million blocks of 16 tokens: events and questions in a second on one core, and bytes for a block.
//!
//! A worker has eight texts of 32,768 tokens that begin alike; each text lies on four workers, with a state for every 2048 tokens.
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark")]

mod texts;

use std::time::{Duration, Instant};

use cacheplan_index::{Bounds, Index, Prompt, Trust};
use texts::{BETWEEN_STATES, BLOCK, SHARED, TEXTS, TOKENS, WORKERS, hash, resident, stored, token};

fn main() {
    let index = Index::new(Bounds::default());
    let before = resident();
    let (mut events, mut spent) = (0_u32, Duration::ZERO);
    for worker in 0..WORKERS {
        let mut batches = Vec::new();
        for text in 0..TEXTS {
            let of = (worker * TEXTS + text) % (WORKERS * TEXTS / 4);
            for end in (BLOCK..=TOKENS).step_by(BLOCK).filter(|end| text == 0 || *end > SHARED) {
                batches.push(stored(of, end, 0, hash));
                if end % BETWEEN_STATES == 0 {
                    batches.push(stored(of, end, 1, hash));
                }
            }
        }
        let started = Instant::now();
        for (number, batch) in batches.iter().enumerate() {
            index.take(worker, number as u64, batch).unwrap();
        }
        spent += started.elapsed();
        events += u32::try_from(batches.len()).unwrap();
    }
    let blocks: usize = index.sizes().iter().map(|(_, blocks, _)| blocks).sum();
    println!("{blocks} blocks, {events} events: {:.2} M events/s", f64::from(events) / spent.as_secs_f64() / 1e6);
    println!("{:.0} bytes for a block", (resident() - before) as f64 / blocks as f64);
    for by_tokens in [false, true] {
        let mut took: Vec<Duration> = Vec::new();
        for question in 0..2000 {
            let text = question * 37 % (WORKERS * TEXTS / 4);
            let tokens: Vec<u32> = (0..TOKENS).map(|at| token(text, at)).collect();
            let hashes: Vec<u64> = (BLOCK..=TOKENS).step_by(BLOCK).map(|end| hash(text, end)).collect();
            let hashes = Prompt::Hashes { hashes: &hashes, block: BLOCK, tokens: TOKENS };
            let started = Instant::now();
            let answers = index.ask(if by_tokens { Prompt::Tokens(&tokens) } else { hashes });
            took.push(started.elapsed());
            let best = answers.iter().map(|answer| answer.reuse.tokens).max();
            assert_eq!(best, Some(TOKENS - BETWEEN_STATES), "the last token is always computed");
            assert!(answers.iter().all(|answer| answer.reuse.trust == Trust::Exact));
        }
        took.sort_unstable();
        let way = if by_tokens { "tokens" } else { "hashes" };
        println!("by {way}: median {:?}, p99 {:?}", took[took.len() / 2], took[took.len() * 99 / 100]);
    }
}
