//! Prints what a token of an exported graph takes over caches of different lengths with as many tokens in them.
//!
//! `cargo bench -p cacheplan-runtime --bench static_cache`: the Qwen3 of the fixtures, exported with caches of 128 to 32,768
//! tokens, which take turns; each holds 7 tokens and takes in 100.
#![allow(clippy::print_stdout, reason = "a bench prints")]

use std::path::Path;
use std::time::Instant;

use cacheplan_managers::book::{SequenceId, StepMetadata, Work};
use cacheplan_planner::Budget;
use cacheplan_runtime::{GraphExport, RuntimeError, Session, SessionOptions};
use cacheplan_transforms::ReadOptions;

const LENGTHS: [u64; 4] = [128, 1024, 8192, 32_768];
const PROMPT: usize = 7;
const DECODED: usize = 100;
const ROUNDS: usize = 5;

fn open(max_cache_len: u64) -> Result<Session, Box<dyn std::error::Error>> {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/static_cache/qwen3");
    let folder = tempfile::tempdir()?;
    let (buckets, read) = (vec![None, Some(1)], ReadOptions::default());
    GraphExport { buckets, max_cache_len, max_batch_size: 1, dtype: None, random: None, read }
        .write(&model, folder.path())?;
    let static_graphs = Some(folder.path().to_owned());
    let budget = Budget::from_toml("", "bench")?;
    Ok(Session::open(&model, SessionOptions { budget, static_graphs, ..SessionOptions::default() })?)
}

fn step(session: &mut Session, sequence: SequenceId, tokens: &[u32]) -> Result<(), RuntimeError> {
    let (decoder, caches) = session.parts();
    let caches = caches.manager_mut()?;
    let mut metadata = StepMetadata::default();
    caches.step(&[Work { sequence, tokens: tokens.len() as u32 }], &mut metadata)?;
    decoder.forward(tokens, &[tokens.len() as u32 - 1], caches, &metadata)?;
    Ok(())
}

/// The fastest token of a round, in milliseconds.
fn round(session: &mut Session) -> Result<f64, RuntimeError> {
    let sequence = session.parts().1.manager_mut()?.admit(PROMPT as u32)?;
    step(session, sequence, &(1..=PROMPT as u32).collect::<Vec<_>>())?;
    let mut fastest = f64::INFINITY;
    for token in 0..DECODED as u32 {
        let start = Instant::now();
        step(session, sequence, &[token])?;
        fastest = fastest.min(start.elapsed().as_secs_f64() * 1e3);
    }
    session.parts().1.manager_mut()?.finish(sequence)?;
    Ok(fastest)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut sessions = LENGTHS.map(open).into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut fastest = [f64::INFINITY; LENGTHS.len()];
    for _ in 0..ROUNDS {
        for (session, fastest) in sessions.iter_mut().zip(&mut fastest) {
            *fastest = fastest.min(round(session)?);
        }
    }
    println!("| cache of | ms a token | of the shortest |");
    println!("|---|---|---|");
    for (length, time) in LENGTHS.iter().zip(fastest) {
        println!("| {length} | {time:.3} | {:.2} |", time / fastest[0]);
    }
    Ok(())
}
