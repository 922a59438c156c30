//! `cacheplan plan`: where every byte of a model's caches lives, who owns it, and why.

use std::path::PathBuf;

use cacheplan::planner::{ByteSize, EnginePlan, EngineSpec, PlanError, PlanRequest, plan, predict};
use cacheplan::transforms::Dot;
use clap::ValueEnum;
use miette::miette;

use crate::commands::load::{Loaded, Source, stated_device};
use crate::commands::{check, diff, explain};
use crate::failure::{Failure, print, write};

#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,

    #[command(flatten)]
    make: Option<Make>,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Derive a number of the plan, down to a tensor's axis or a key of the budget
    Explain(explain::Args),
    /// Show what changed between two plans
    Diff(diff::Args),
    /// Prove that a plan is right, and still that of its model, budget and device
    Check(check::Args),
}

// The model stands in a group further in; without it here clap would not see that these arguments are given.
#[derive(clap::Args)]
#[group(args = ["model"])]
struct Make {
    #[command(flatten)]
    source: Source,

    /// Memory of the device the plan is for, which fractions in the budget are shares of, such as 141GiB
    #[arg(long, value_name = "SIZE")]
    device_memory: Option<ByteSize>,

    /// Also predict what an engine would allocate, such as vllm, sglang@0.5.12, tensorrt-llm or llama.cpp
    #[arg(long = "as", value_name = "ENGINE[@VERSION]")]
    engine: Option<EngineSpec>,

    /// Bytes of the engine's caches as it logs them, in place of the budget's memory
    #[arg(long, value_name = "SIZE", requires = "engine")]
    cache_bytes: Option<ByteSize>,

    /// What to print
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,

    /// Also write the plan as JSON to a file
    #[arg(long, short, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A table for people, at most 100 columns wide
    Table,
    /// The plan itself
    Json,
    /// The same as YAML
    Yaml,
    /// Tables for an issue or a document
    Markdown,
    /// A memory map, 1000 pixels wide
    Svg,
    /// The model's graph for Graphviz; nodes with caches stand out
    Dot,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    match (&args.command, &args.make) {
        (Some(Command::Explain(args)), _) => explain::run(args),
        (Some(Command::Diff(args)), _) => diff::run(args),
        (Some(Command::Check(args)), _) => check::run(args),
        (None, Some(args)) => make(args),
        (None, None) => Err(Failure::new(2, miette!("no model is given; see `cacheplan plan --help`"))),
    }
}

fn make(args: &Make) -> Result<(), Failure> {
    let (model, mut budget) = args.source.read()?;
    budget.engine.cache_bytes = args.cache_bytes.or(budget.engine.cache_bytes);
    let context = match args.engine {
        Some(engine) => budget.engine_context(&model.info, engine),
        None => budget.pass_context(&model.info),
    };
    let loaded = Loaded::new(model, budget, &context)?;
    if args.format == Format::Dot {
        return print(&Dot(&loaded.model.graph).to_string());
    }
    let device = args.device_memory.map(stated_device);
    let request = PlanRequest {
        device: device.as_ref(),
        ..PlanRequest::new(&loaded.model.info, &loaded.collected.resources, &loaded.budget)
    };
    let failed = |error: PlanError| Failure::new(error.exit_code(), miette!("{error}"));
    let plan = plan(&request).map_err(failed)?;
    let engine = args.engine.map(|engine| predict(&request, engine)).transpose().map_err(failed)?;
    if let Some(path) = &args.out {
        write(path, &json(serde_json::to_string_pretty(&plan))?)?;
    }
    match (args.format, engine) {
        (Format::Json, Some(engine)) => {
            print(&json(serde_json::to_string_pretty(&EnginePlan { plan: &plan, engine }))?)
        }
        (Format::Json, None) => print(&json(serde_json::to_string_pretty(&plan))?),
        (Format::Yaml, _) => print(&plan.yaml()),
        (Format::Markdown, _) => print(&plan.markdown()),
        (Format::Svg, _) => print(&plan.svg()),
        (_, Some(engine)) => print(&format!("{}\n{}", plan.table(), engine.table())),
        (_, None) => print(&plan.table()),
    }
}

/// JSON that ends with a newline.
fn json(written: serde_json::Result<String>) -> Result<String, Failure> {
    written.map(|text| text + "\n").map_err(Failure::error)
}
