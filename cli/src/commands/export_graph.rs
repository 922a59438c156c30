//! `cacheplan export-graph`: a model as ONNX graphs over caches of fixed shapes.

use std::path::PathBuf;

use cacheplan::runtime::{GraphDType, GraphExport, RuntimeError};
use cacheplan::transforms::ReadOptions;

use crate::commands::hub;
use crate::commands::load::unread;
use crate::commands::run::failure;
use crate::failure::{DRIFT, Failure, print};
use crate::numbers::whole;
use crate::progress;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// A folder with config.json, and with weights unless they are to be invented
    #[arg(value_parser = hub::model())]
    model: PathBuf,

    /// Tokens of a call, one graph for each; `dynamic` for one that takes any number
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_value = "dynamic,1", value_parser = bucket)]
    buckets: Vec<Bucket>,

    /// Tokens that the caches hold
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = whole::<u64>(0..=u64::MAX))]
    max_cache_len: u64,

    /// Sequences of a call, each with its own positions; `run` takes graphs of one
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<u64>(0..=u64::MAX))]
    max_batch_size: u64,

    /// Weights, activations and caches; without it f16 of models in bf16 or f16, else f32
    #[arg(long, value_name = "DTYPE")]
    dtype: Option<Numbers>,

    /// The folder to write the graphs to, and invented weights with their config
    #[arg(long, short, value_name = "DIR", default_value = "graphs")]
    out: PathBuf,

    /// Invent the weights, also where the model has some; without any they are invented anyway
    #[arg(long)]
    random_weights: bool,

    /// What invented weights follow from
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = whole::<u64>(0..=u64::MAX), requires = "random_weights")]
    seed: u64,

    /// Generate with the graphs and with the model itself, and say whether the tokens are the same
    #[arg(long)]
    verify: bool,

    /// The prompt to verify with, as token ids
    #[arg(long, value_name = "IDS", value_delimiter = ',', requires = "verify")]
    prompt_ids: Option<Vec<u32>>,

    /// Tokens to generate behind it
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = whole::<usize>(1..=u64::MAX), requires = "verify")]
    max_new_tokens: usize,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Numbers {
    F32,
    F16,
    Bf16,
}

#[derive(Clone)]
struct Bucket(Option<u64>);

fn bucket(text: &str) -> Result<Bucket, String> {
    match text.trim() {
        "dynamic" => Ok(Bucket(None)),
        size => size
            .parse()
            .map(|size| Bucket(Some(size)))
            .map_err(|_| format!("`{text}` is neither a number nor `dynamic`")),
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    // Known before anything is written.
    if args.verify && args.max_batch_size != 1 {
        return Err(Failure::new(2, "--verify generates one sequence; leave --max-batch-size out, or --verify"));
    }
    let mut buckets = Vec::new();
    for Bucket(bucket) in &args.buckets {
        if !buckets.contains(bucket) {
            buckets.push(*bucket);
        }
    }
    let random = args.random_weights.then_some(args.seed);
    let dtype = args.dtype.map(|dtype| match dtype {
        Numbers::F32 => GraphDType::F32,
        Numbers::F16 => GraphDType::F16,
        Numbers::Bf16 => GraphDType::Bf16,
    });
    let export = GraphExport {
        buckets,
        max_cache_len: args.max_cache_len,
        max_batch_size: args.max_batch_size,
        // What rounds otherwise than the model does is no test of the export.
        dtype: dtype.or(args.verify.then_some(GraphDType::F32)),
        random,
        read: ReadOptions::default(),
    };
    let files = progress::during("writing the graphs", || export.write(&args.model, &args.out));
    let files = files.map_err(|error| match error {
        RuntimeError::Frontend(error) => unread(&args.model, error),
        error => failure(error),
    })?;
    files.iter().try_for_each(|file| print(&format!("{}\n", file.display())))?;
    if !args.verify {
        return Ok(());
    }
    let prompt = args.prompt_ids.as_deref();
    let verify = || export.verify(&args.model, &args.out, prompt, args.max_new_tokens);
    let verified = progress::during("generating twice", verify).map_err(failure)?;
    print(&format!("Exported model output: {:?}\n", verified.exported))?;
    print(&format!("Original model output: {:?}\n", verified.native))?;
    print(&format!("Token ids match: {}\n", if verified.matches() { "True" } else { "False" }))?;
    match verified.matches() {
        true => Ok(()),
        false => Err(Failure::new(DRIFT, "the exported graphs generate other tokens than the model")),
    }
}
