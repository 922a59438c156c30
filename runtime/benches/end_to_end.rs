//! Prints what part of the machine's own rate of reading a whole model reaches, and how fast it takes in a prompt.
//!
//! `cargo bench -p cacheplan-runtime --bench end_to_end -- [FOLDER..]`: each folder has a `config.json`, and weights
//! where they matter; without a `model.safetensors` they are invented. The default are two made-up models of 128 and
//! 137 million parameters.
#![allow(clippy::print_stdout, reason = "a bench prints")]

use std::path::{Path, PathBuf};
use std::time::Instant;

use cacheplan_kernels::roofline::read_rate;
use cacheplan_managers::book::{StepMetadata, Work};
use cacheplan_planner::{Budget, CachePlan};
use cacheplan_runtime::{RuntimeError, Session, SessionOptions, Weights, load};
use cacheplan_transforms::{Model, ReadOptions, read_model};
use candle_core::{DType, Device};
use serde_json::Value;

/// Tokens of the prompt.
const PROMPT: u32 = 512;
/// Tokens decoded after it in one round.
const DECODED: u32 = 32;
const ROUNDS: usize = 5;
const BUDGET: &str = "max_seq_len = 1024\nmax_batch_size = 1\nmax_num_tokens = 512\ntokens_per_block = 16\n";

/// Seconds of the fastest prompt, of the fastest mean decode step, and the greatest rate of reading meanwhile.
struct Measured {
    prefill: f64,
    decode: f64,
    read_rate: f64,
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
        let cache = cache_bytes(session.plan(), u64::from(PROMPT + DECODED / 2)) as f64;
        let Measured { prefill, decode, read_rate } = measure(&mut session)?;
        let bound = read_rate / (weights + cache);
        println!(
            "| {} | {:.1} | {:.1} | {:.1} | {bound:.2} | {:.2} | {:.3} | {:.1} |",
            folder.file_name().unwrap_or_default().to_string_lossy(),
            weights / 1e6,
            cache / 1e6,
            read_rate / 1e9,
            1.0 / decode,
            1.0 / decode / bound,
            f64::from(PROMPT) / prefill,
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

fn measure(session: &mut Session) -> Result<Measured, Box<dyn std::error::Error>> {
    let mut best = Measured { prefill: f64::INFINITY, decode: f64::INFINITY, read_rate: read_rate()? };
    let (decoder, caches) = session.parts();
    let caches = caches.manager_mut()?;
    let prompt: Vec<u32> = (0..PROMPT).map(|token| token * 37 % decoder.vocab_size() as u32).collect();
    let mut metadata = StepMetadata::default();
    for _ in 0..ROUNDS {
        let sequence = caches.admit(PROMPT)?;
        let mut step = |tokens: &[u32]| -> Result<u32, RuntimeError> {
            caches.step(&[Work { sequence, tokens: tokens.len() as u32 }], &mut metadata)?;
            let logits = decoder.forward(tokens, &[tokens.len() as u32 - 1], caches, &metadata)?;
            Ok(logits.argmax(1)?.to_vec1::<u32>()?[0])
        };
        let start = Instant::now();
        let mut token = step(&prompt)?;
        best.prefill = best.prefill.min(start.elapsed().as_secs_f64());
        let start = Instant::now();
        for _ in 0..DECODED {
            token = step(&[token])?;
        }
        best.decode = best.decode.min(start.elapsed().as_secs_f64() / f64::from(DECODED));
        caches.finish(sequence)?;
        best.read_rate = best.read_rate.max(read_rate()?);
    }
    Ok(best)
}
