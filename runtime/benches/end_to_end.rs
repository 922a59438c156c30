//! Prints what part of the machine's own rate of reading a whole model reaches, and how fast it takes in a prompt.
//!
//! `cargo bench -p cacheplan-runtime --bench end_to_end -- [FOLDER..]`: each folder has a `config.json`, and weights
//! where they matter; without a `model.safetensors` they are invented. The default are two made-up models of 128 and
//! 137 million parameters.
#![allow(clippy::print_stdout, reason = "a bench prints")]

use std::path::{Path, PathBuf};
use std::time::Instant;

use cacheplan_kernels::roofline::ReadBuffer;
use cacheplan_managers::book::{StepMetadata, Work};
use cacheplan_planner::{Budget, CachePlan};
use cacheplan_runtime::{RuntimeError, Session, SessionOptions, Weights, load};
use cacheplan_transforms::{Model, ReadOptions, read_model};
use candle_core::{DType, Device};
use serde_json::Value;

/// Tokens of the prompt.
const PROMPT: u32 = 512;
/// Prompts taken in. After each, some tokens are decoded.
const ROUNDS: usize = 5;
/// Tokens decoded, and times that memory is read, in turns: other load on the machine then meets both alike.
const TURN: usize = 8;
const TURNS: usize = 8;
const BUDGET: &str = "max_seq_len = 1024\nmax_batch_size = 1\nmax_num_tokens = 512\ntokens_per_block = 16\n";

/// Medians of one run.
struct Measured {
    prefill_seconds: f64,
    decode_seconds: f64,
    bytes_per_second: f64,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut folders: Vec<PathBuf> =
        std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).map(PathBuf::from).collect();
    if folders.is_empty() {
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../benches/peers/models");
        folders = ["hybrid_128m", "llama_137m"].map(|name| models.join(name)).into();
    }
    println!(
        "| model | weights MB | cache MB | read GB/s | bound tokens/s | decode tokens/s | part | prefill tokens/s |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for folder in folders {
        let weights = read_model(&folder, &ReadOptions::default())?.info.weights.ok_or("weights of unknown size")?;
        let weights = weights.bytes as f64;
        let mut session = open(&folder)?;
        let cache = cache_bytes(session.plan(), u64::from(PROMPT) + (TURN * TURNS / 2) as u64) as f64;
        let measured = measure(&mut session, (weights + cache) as usize)?;
        let bound = measured.bytes_per_second / (weights + cache);
        println!(
            "| {} | {:.1} | {:.1} | {:.1} | {bound:.2} | {:.2} | {:.3} | {:.1} |",
            folder.file_name().unwrap_or_default().to_string_lossy(),
            weights / 1e6,
            cache / 1e6,
            measured.bytes_per_second / 1e9,
            1.0 / measured.decode_seconds,
            1.0 / measured.decode_seconds / bound,
            f64::from(PROMPT) / measured.prefill_seconds,
        );
    }
    Ok(())
}

fn open(folder: &Path) -> Result<Session, Box<dyn std::error::Error>> {
    let options = SessionOptions { budget: Budget::from_toml(BUDGET, "bench")?, ..SessionOptions::default() };
    if folder.join("model.safetensors").exists() {
        return Ok(Session::open(folder, options)?);
    }
    let model = read_model(folder, &ReadOptions::default())?;
    let invented = |model: &Model, device: &Device| {
        load(&Value::Object(model.config.clone()), &Weights::invented(DType::F32, device))
    };
    Ok(Session::new(model, options, invented)?)
}

/// Bytes of cache that a decode step over a context of `tokens` reads. A state is written back too; that is not counted.
fn cache_bytes(plan: &CachePlan, tokens: u64) -> u64 {
    plan.resources.iter().map(|resource| resource.bytes_per_token * tokens + resource.bytes_per_sequence).sum()
}

fn measure(session: &mut Session, bytes: usize) -> Result<Measured, Box<dyn std::error::Error>> {
    let memory = ReadBuffer::new(bytes);
    let (mut prefill, mut decode, mut rates) = (Vec::new(), Vec::new(), Vec::new());
    let (decoder, caches) = session.parts();
    let caches = caches.manager_mut()?;
    let prompt: Vec<u32> = (0..PROMPT).map(|token| token * 37 % decoder.vocab_size() as u32).collect();
    let mut metadata = StepMetadata::default();
    for _ in 0..ROUNDS {
        let sequence = caches.admit(PROMPT)?;
        let mut step = |tokens: &[u32], seconds: &mut Vec<f64>| -> Result<u32, RuntimeError> {
            let start = Instant::now();
            caches.step(&[Work { sequence, tokens: tokens.len() as u32 }], &mut metadata)?;
            let logits = decoder.forward(tokens, &[tokens.len() as u32 - 1], caches, &metadata)?;
            let token = logits.argmax(1)?.to_vec1::<u32>()?[0];
            seconds.push(start.elapsed().as_secs_f64());
            Ok(token)
        };
        let mut token = step(&prompt, &mut prefill)?;
        for _ in 0..TURNS {
            for _ in 0..TURN {
                token = step(&[token], &mut decode)?;
            }
            rates.extend((0..TURN).map(|_| memory.rate()));
        }
        caches.finish(sequence)?;
    }
    Ok(Measured { prefill_seconds: median(prefill), decode_seconds: median(decode), bytes_per_second: median(rates) })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}
