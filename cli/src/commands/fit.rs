//! `cacheplan fit`: which devices, how many and divided how hold so many sequences of so many tokens.

use std::path::{Path, PathBuf};

use cacheplan::files::Limit;
use cacheplan::planner::fit::Answer;
use cacheplan::planner::size::{BadTokenCount, TokenCount};
use cacheplan::planner::{ByteSize, DeviceInfo, EngineSpec, FitQuestion, Override, PlanRequest, Prices};
use cacheplan::transforms::{Assumption, ReadOptions};
use clap::ValueEnum;

use crate::commands::hub;
use crate::commands::load::{OnDevice, open, refused, unread};
use crate::commands::start::{Beside, StartArgs};
use crate::failure::{Failure, in_file, note, print, read};
use crate::paint::print_table;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// A folder with config.json, or a config.json, .safetensors or .gguf file; `-` for a config.json piped in;
    /// org/name[@revision] or org/name/file.gguf for a model of the Hugging Face hub
    #[arg(value_parser = hub::model(), required_unless_present = "words", conflicts_with = "words")]
    model: Option<PathBuf>,

    /// Tokens of each sequence, prompt and output, such as 32k (32,768)
    #[arg(long, value_name = "TOKENS", value_parser = tokens, required_unless_present = "words")]
    context: Option<u64>,

    /// Sequences at once
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 32), required_unless_present = "words")]
    sequences: Option<u64>,

    /// Devices to choose among
    #[arg(long, value_name = "DEVICE", value_delimiter = ',', default_value = FitQuestion::DEVICES, value_parser = device)]
    gpus: Vec<(String, DeviceInfo)>,

    /// The most devices
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    max_gpus: u32,

    /// Prices (TOML): `currency = "USD"` and `[per_hour]` with a number for each device
    #[arg(long, value_name = "FILE")]
    prices: Option<PathBuf>,

    /// Weights over all devices, where no file tells
    #[arg(long, value_name = "SIZE")]
    weights: Option<ByteSize>,

    /// Engines that are asked what they admit, such as vllm@0.33.0, beside the plan's own pools
    #[arg(long = "as", value_name = "ENGINE[@VERSION]", value_delimiter = ',')]
    engines: Vec<EngineSpec>,

    #[command(flatten)]
    start: StartArgs,

    /// A fact the files leave out: layer.7=full_attention, model_type=llama, head_dim=128
    #[arg(long, value_name = "KEY=VALUE")]
    assume: Vec<Assumption>,

    /// What to print
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// The best layout of each device, at most 100 columns wide
    Table,
    /// Every layout that was tried
    Json,
    /// The same, one a line
    Csv,
    /// Capacity over context and a map of devices by layout, 1000 pixels wide
    Svg,
    /// One file with the same pictures and their numbers; works offline, and prints
    Html,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let read_options = ReadOptions { assume: args.assume.clone(), descriptions: Vec::new() };
    let prices = match &args.prices {
        None => Prices::default(),
        Some(path) if !path.exists() => {
            let said = "no such file; it holds `currency = \"USD\"`, and below `[per_hour]` lines such as `h200 = 3.5`";
            return Err(Failure::new(2, format!("--prices {}: {said}", path.display())));
        }
        Some(path) => Prices::from_toml(&read(path, Limit::TOML)?).map_err(|error| in_file(path, error))?,
    };
    let question = FitQuestion {
        model: None,
        assumed: args.assume.iter().map(ToString::to_string).collect(),
        context: args.context.unwrap_or(1),
        sequences: args.sequences.unwrap_or(1),
        devices: args.gpus.clone(),
        max_devices: args.max_gpus,
        weights: args.weights,
        prices,
        engines: args.engines.clone(),
    };
    let (question, answer) = match &args.model {
        Some(path) => of_model(args, path, &read_options, question)?,
        None => of_command(args, read_options, question)?,
    };
    answer.notes.iter().for_each(|said| note(said));
    match args.format {
        Format::Table => print_table(&answer.table())?,
        Format::Json => print(&(serde_json::to_string_pretty(&answer).map_err(Failure::error)? + "\n"))?,
        Format::Csv => print(&answer.csv())?,
        Format::Svg => print(&answer.svg())?,
        Format::Html => print(&answer.html())?,
    }
    match answer.best() {
        Some(_) => Ok(()),
        None => Err(Failure::new(
            3,
            format!("nothing tried holds {} sequences of {}", question.sequences, question.context),
        )),
    }
}

/// What devices hold a model, as flags say it.
fn of_model(
    args: &Args,
    path: &Path,
    read: &ReadOptions,
    question: FitQuestion,
) -> Result<(FitQuestion, Answer), Failure> {
    args.start.refuse_alone()?;
    let model = open(path, read, |error| unread(path, error))?;
    let question = FitQuestion { model: Some(path.to_string_lossy().into_owned()), ..question };
    let answer = PlanRequest::of(model).fit(&question).map_err(refused)?;
    Ok((question, answer))
}

/// What devices hold what a command says, with all that it states; each has the engine's defaults for it.
fn of_command(args: &Args, read: ReadOptions, question: FitQuestion) -> Result<(FitQuestion, Answer), Failure> {
    let weights = args.weights.map(|size| Override::by_flag("memory.weights", size.stated(), "--weights"));
    let beside = Beside { device: &OnDevice::default(), overrides: weights.as_slice(), read, draft: None };
    let sought = args.start.sought(&beside, &args.gpus)?;
    let engines = if args.engines.is_empty() { vec![sought.engine] } else { args.engines.clone() };
    let sequences = args.sequences.or(sought.sequences).unwrap_or(1);
    let mut context = question.context;
    let mut answers = Vec::new();
    for (name, device, length, request) in sought.on {
        context = args.context.unwrap_or(length);
        let question = FitQuestion {
            model: Some(sought.name.clone()),
            context,
            sequences,
            devices: vec![(name, device)],
            engines: engines.clone(),
            ..question.clone()
        };
        answers.push(request.fit(&question).map_err(refused)?);
    }
    let answer = Answer::joined(answers).ok_or_else(|| Failure::new(2, "no device is named"))?;
    Ok((FitQuestion { context, sequences, ..question }, answer))
}

/// A device and the name it was asked for by, which is that of its price.
fn device(text: &str) -> Result<(String, DeviceInfo), String> {
    let device: DeviceInfo = text.parse().map_err(|error| format!("{error}"))?;
    Ok((text.trim().to_lowercase(), device))
}

/// A context of 32k is 32,768 tokens.
fn tokens(text: &str) -> Result<u64, String> {
    let TokenCount(count) = text.parse().map_err(|error: BadTokenCount| error.to_string())?;
    if (1..=1 << 32).contains(&count) { Ok(count) } else { Err(format!("{count} is not in 1..=4294967296")) }
}
