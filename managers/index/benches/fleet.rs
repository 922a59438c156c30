//! 256 workers that hold 4 million blocks of 16 tokens: events and questions in a second on one core, and bytes for a block.
//!
//! A worker has eight texts of 32,768 tokens that begin alike; each text lies on four workers, with a state for every 2048 tokens.
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark")]

use std::time::{Duration, Instant};

use cacheplan_index::{Bounds, Index, Prompt, Trust};

const WORKERS: u64 = 256;
const TEXTS: u64 = 8;
const BLOCK: usize = 16;
const TOKENS: usize = 32 << 10;
const SHARED: usize = 1 << 10;
const BETWEEN_STATES: usize = 2048;

fn token(text: u64, at: usize) -> u32 {
    let text = if at < SHARED { 0 } else { text + 1 };
    (text.wrapping_mul(0x9e37_79b9).wrapping_add(at as u64 * 7919) % 150_000) as u32
}

/// What an engine's strong hash would be.
fn hash(text: u64, end: usize) -> u64 {
    let text = if end <= SHARED { 0 } else { text + 1 };
    let mixed = (text << 32 | end as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

fn key(out: &mut Vec<u8>, text: &[u8]) {
    out.push(0xa0 | u8::try_from(text.len()).unwrap());
    out.extend(text);
}

/// A batch of one BlockStored of one block, as vLLM sends it.
fn stored(text: u64, end: usize, group: u8) -> Vec<u8> {
    let mut out = vec![0x93, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0, 0x91, 0x8a];
    key(&mut out, b"type");
    key(&mut out, b"BlockStored");
    key(&mut out, b"block_hashes");
    out.extend([0x91, 0xcf]);
    out.extend(hash(text, end).to_be_bytes());
    key(&mut out, b"parent_block_hash");
    if end == BLOCK {
        out.push(0xc0);
    } else {
        out.push(0xcf);
        out.extend(hash(text, end - BLOCK).to_be_bytes());
    }
    key(&mut out, b"token_ids");
    out.extend([0xdc, 0, 16]);
    for at in end - BLOCK..end {
        out.push(0xce);
        out.extend(token(text, at).to_be_bytes());
    }
    key(&mut out, b"block_size");
    out.push(16);
    key(&mut out, b"lora_id");
    out.push(0xc0);
    key(&mut out, b"medium");
    key(&mut out, b"GPU");
    key(&mut out, b"lora_name");
    out.push(0xc0);
    key(&mut out, b"group_idx");
    out.push(group);
    key(&mut out, b"kv_cache_spec_kind");
    key(&mut out, if group == 0 { b"full_attention" } else { b"mamba" });
    out.push(0);
    out
}

/// Bytes that the process has in memory, as Linux says.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<usize>().ok()).unwrap_or(0) << 10
}

fn main() {
    let index = Index::new(Bounds::default());
    let before = resident();
    let (mut events, mut spent) = (0_u32, Duration::ZERO);
    for worker in 0..WORKERS {
        let mut batches = Vec::new();
        for text in 0..TEXTS {
            let of = (worker * TEXTS + text) % (WORKERS * TEXTS / 4);
            for end in (BLOCK..=TOKENS).step_by(BLOCK).filter(|end| text == 0 || *end > SHARED) {
                batches.push(stored(of, end, 0));
                if end % BETWEEN_STATES == 0 {
                    batches.push(stored(of, end, 1));
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
