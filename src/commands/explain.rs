//! `cacheplan plan explain`: where a number of a plan comes from.

use cacheplan::planner::{ByteSize, PlanRequest, explain, plan};
use clap::ValueEnum;
use miette::miette;

use crate::commands::load::{Source, stated_device};
use crate::failure::{Failure, print};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    source: Source,

    /// A resource, a pool, a ledger line, a layer's number, or `capacity`
    #[arg(value_name = "RESOURCE|LAYER|POOL", default_value = "capacity")]
    subject: String,

    /// Memory of the device the plan is for, which fractions in the budget are shares of, such as 141GiB
    #[arg(long, value_name = "SIZE")]
    device_memory: Option<ByteSize>,

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
    let loaded = args.source.load()?;
    let device = args.device_memory.map(stated_device);
    let request = PlanRequest {
        device: device.as_ref(),
        ..PlanRequest::new(&loaded.model.info, &loaded.collected.resources, &loaded.budget)
    };
    let plan = plan(&request).map_err(|error| Failure::new(error.exit_code(), miette!("{error}")))?;
    let derivation = explain(&request, &plan, &args.subject).map_err(Failure::error)?;
    match args.format {
        Format::Outline => print(&derivation.to_string()),
        Format::Json => print(&(serde_json::to_string_pretty(&derivation).map_err(Failure::error)? + "\n")),
    }
}
