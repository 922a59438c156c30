//! Prints what part of the machine's own rate of reading a whole model reaches, and how fast it takes in a prompt.
//!
//! `cargo bench -p cacheplan-runtime --bench end_to_end -- [MODEL..]`: a GGUF file, or a folder with a `config.json` and
//! weights where they matter; without a `model.safetensors` they are invented, in f32 and in bf16, which take turns. The
//! default are two made-up models of 128 and 137 million parameters. `--fast` rounds the inputs of products with blocks, and
//! `--error` prints instead what that does to logits.
#![allow(clippy::print_stdout, reason = "a bench prints")]

use std::path::{Path, PathBuf};
use std::time::Instant;

use cacheplan_kernels::roofline::ReadBuffer;
use cacheplan_kernels::{Backend, Products};
use cacheplan_managers::book::{StepMetadata, Work};
use cacheplan_planner::{Budget, CachePlan};
use cacheplan_runtime::{Decoder, RuntimeError, Session, SessionOptions, Weights};
use cacheplan_transforms::{Model, ReadOptions};
use candle_core::DType;

/// Tokens of the prompt.
const PROMPT: u32 = 512;
/// Tokens of a prompt whose products round.
const ROUNDED: u32 = 256;
/// Prompts taken in. After each, some tokens are decoded.
const ROUNDS: usize = 5;
/// Tokens decoded, and times that memory is read, in turns: other load on the machine then meets both alike.
const TURN: usize = 8;
const TURNS: usize = 8;
const BUDGET: &str = "max_seq_len = 1024\nmax_batch_size = 1\nmax_num_tokens = 512\ntokens_per_block = 16\n";

/// A model, and what was measured of it.
struct Bench {
    name: String,
    session: Session,
    weights: f64,
    cache: f64,
    memory: ReadBuffer,
    prefill: Vec<f64>,
    decode: Vec<f64>,
    rates: Vec<f64>,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut models: Vec<PathBuf> =
        std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).map(PathBuf::from).collect();
    if models.is_empty() {
        let made_up = Path::new(env!("CARGO_MANIFEST_DIR")).join("../benches/peers/models");
        models = ["hybrid_128m", "llama_137m"].map(|name| made_up.join(name)).into();
    }
    if std::env::args().any(|arg| arg == "--error") {
        println!("| model | difference of logits, part of their root mean square | largest | tokens alike |");
        println!("|---|---|---|---|");
        return models.iter().try_for_each(|model| print_error(model));
    }
    println!(
        "| model | weights MB | cache MB | read GB/s | bound tokens/s | decode tokens/s | part | prefill tokens/s |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for model in models {
        let stored = model.is_file() || model.join("model.safetensors").exists();
        let dtypes: &[Option<DType>] = if stored { &[None] } else { &[Some(DType::F32), Some(DType::BF16)] };
        let kind = if std::env::args().any(|arg| arg == "--fast") { Products::Fast } else { Products::Exact };
        let mut benches =
            dtypes.iter().map(|&dtype| Bench::open(&model, dtype, kind)).collect::<Result<Vec<_>, _>>()?;
        for _ in 0..ROUNDS {
            benches.iter_mut().try_for_each(Bench::round)?;
        }
        benches.into_iter().for_each(Bench::print);
    }
    Ok(())
}

impl Bench {
    /// Opens a model, with invented weights where a dtype is given.
    fn open(path: &Path, invented: Option<DType>, products: Products) -> Result<Self, Box<dyn std::error::Error>> {
        let budget = Budget::from_toml(BUDGET, "bench")?;
        let options = SessionOptions { budget, products, ..SessionOptions::default() };
        let model = Model::read(path, &ReadOptions::default())?;
        let mut weights = model.info.weights.ok_or("weights of unknown size")?.bytes as f64;
        let mut name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let session = match invented {
            None => Session::open(path, options)?,
            Some(dtype) => {
                // The configs state f32.
                weights *= dtype.size_in_bytes() as f64 / DType::F32.size_in_bytes() as f64;
                name += &format!(" {}", dtype.as_str());
                let load =
                    |model: &Model, on: &Backend| Decoder::load(model, &Weights::invented_as(dtype, DType::F32, on));
                Session::new(model, options, load)?
            }
        };
        let cache = cache_bytes(session.plan(), u64::from(PROMPT) + (TURN * TURNS / 2) as u64) as f64;
        let memory = ReadBuffer::new((weights + cache) as usize);
        let (prefill, decode, rates) = Default::default();
        Ok(Self { name, session, weights, cache, memory, prefill, decode, rates })
    }

    /// Takes in a prompt, then decodes and reads memory in turns.
    fn round(&mut self) -> Result<(), RuntimeError> {
        let (decoder, caches) = self.session.parts();
        let caches = caches.manager_mut()?;
        let prompt: Vec<u32> = (0..PROMPT).map(|token| token * 37 % decoder.vocab_size() as u32).collect();
        let mut metadata = StepMetadata::default();
        let sequence = caches.admit(PROMPT)?;
        let mut step = |tokens: &[u32], seconds: &mut Vec<f64>| -> Result<u32, RuntimeError> {
            let start = Instant::now();
            caches.step(&[Work { sequence, tokens: tokens.len() as u32 }], &mut metadata)?;
            let logits = decoder.forward(tokens, &[tokens.len() as u32 - 1], caches, &metadata)?;
            let token = logits.argmax(1)?.to_vec1::<u32>()?[0];
            seconds.push(start.elapsed().as_secs_f64());
            Ok(token)
        };
        let mut token = step(&prompt, &mut self.prefill)?;
        for _ in 0..TURNS {
            for _ in 0..TURN {
                token = step(&[token], &mut self.decode)?;
            }
            self.rates.extend((0..TURN).map(|_| self.memory.rate()));
        }
        Ok(caches.finish(sequence)?)
    }

    /// Logits behind each token of a prompt that products round as a whole.
    fn logits(&mut self) -> Result<Vec<Vec<f32>>, RuntimeError> {
        let (decoder, caches) = self.session.parts();
        let caches = caches.manager_mut()?;
        let prompt: Vec<u32> = (0..ROUNDED).map(|token| token * 37 % decoder.vocab_size() as u32).collect();
        let mut metadata = StepMetadata::default();
        let sequence = caches.admit(ROUNDED)?;
        caches.step(&[Work { sequence, tokens: ROUNDED }], &mut metadata)?;
        let all: Vec<u32> = (0..ROUNDED).collect();
        Ok(decoder.forward(&prompt, &all, caches, &metadata)?.to_vec2::<f32>()?)
    }

    fn print(self) {
        let [prefill, decode, rate] = [self.prefill, self.decode, self.rates].map(median);
        let bound = rate / (self.weights + self.cache);
        println!(
            "| {} | {:.1} | {:.1} | {:.1} | {bound:.2} | {:.2} | {:.3} | {:.1} |",
            self.name,
            self.weights / 1e6,
            self.cache / 1e6,
            rate / 1e9,
            1.0 / decode,
            1.0 / decode / bound,
            f64::from(PROMPT) / prefill,
        );
    }
}

/// How far logits with rounded inputs are from those without, and how many of their likeliest tokens are the same.
fn print_error(model: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let mut exact = Bench::open(model, None, Products::Exact)?;
    let [a, b] = [exact.logits()?, Bench::open(model, None, Products::Fast)?.logits()?];
    let likeliest = |row: &[f32]| row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map(|(at, _)| at);
    let alike = a.iter().zip(&b).filter(|(a, b)| likeliest(a) == likeliest(b)).count();
    let [mut squares, mut of_difference, mut largest] = [0f64; 3];
    for (a, b) in a.iter().flatten().zip(b.iter().flatten()) {
        let difference = f64::from((a - b).abs());
        squares += f64::from(*a).powi(2);
        of_difference += difference.powi(2);
        largest = largest.max(difference);
    }
    let root = (squares / (a.len() * a[0].len()) as f64).sqrt();
    let part = (of_difference / squares).sqrt();
    println!("| {} | {part:.4} | {:.3} | {alike} of {ROUNDED} |", exact.name, largest / root);
    Ok(())
}

/// Bytes of cache that a decode step over a context of `tokens` reads. A state is written back too; that is not counted.
fn cache_bytes(plan: &CachePlan, tokens: u64) -> u64 {
    plan.resources.iter().map(|resource| resource.bytes_per_token * tokens + resource.bytes_per_sequence).sum()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}
