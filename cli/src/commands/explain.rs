//! `cacheplan plan explain`: where a number of a plan comes from.

use cacheplan::planner::explain::ExplainError;
use clap::ValueEnum;

use crate::commands::load::{ModelArgs, Target, refused};
use crate::failure::{Failure, print, print_json};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    source: ModelArgs,

    /// A cache, a pool, a ledger line, a layer's number, `capacity` or `host`; --list names those of the plan
    #[arg(value_name = "CACHE|LAYER|POOL", default_value = "capacity")]
    subject: String,

    /// Print the names that can be explained instead
    #[arg(long)]
    list: bool,

    #[command(flatten)]
    target: Target,

    /// The pipeline stage whose plan is explained, where there are several
    #[arg(long, value_name = "N", default_value_t = 0)]
    stage: u32,

    /// What to print
    #[arg(long, value_enum, default_value_t = Format::Outline)]
    format: Format,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Each number above what it follows from, at most 100 columns wide
    Outline,
    /// The same as a tree of `claim` and `from`
    Json,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let request = args.source.request(&args.target)?.of_stage(args.stage);
    let plan = request.plan().map_err(refused)?;
    if args.list {
        let subjects = plan.subjects();
        return match args.format {
            Format::Outline => print(&subjects.to_string()),
            Format::Json => print_json(&subjects),
        };
    }
    let derivation = request.explain(&plan, &args.subject).map_err(|error| match error {
        error @ ExplainError::Unknown { .. } => Failure::error(error).with_advice("--list names them all"),
        error => Failure::error(error),
    })?;
    match args.format {
        Format::Outline => print(&derivation.to_string()),
        Format::Json => print_json(&derivation),
    }
}
