//! `cacheplan plan`: where every byte of a model's caches lives, who owns it, and why.

use std::path::PathBuf;

use cacheplan::planner::{ByteSize, CachePlan, DeviceInfo, DeviceKind, PlanRequest, plan};
use cacheplan::transforms::Dot;
use clap::ValueEnum;
use miette::miette;

use crate::commands::load::Source;
use crate::failure::{Failure, print};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    source: Source,

    /// Memory of the device the plan is for, which fractions in the budget are shares of, such as 141GiB
    #[arg(long, value_name = "SIZE")]
    device_memory: Option<ByteSize>,

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
    /// The model's graph for Graphviz; nodes with caches stand out
    Dot,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let loaded = args.source.load()?;
    if args.format == Format::Dot {
        return print(&Dot(&loaded.model.graph).to_string());
    }
    let device = args.device_memory.map(|memory| DeviceInfo {
        name: "stated".into(),
        total_bytes: memory.0,
        free_bytes: memory.0,
        kind: DeviceKind::Cuda,
    });
    let request = PlanRequest {
        device: device.as_ref(),
        ..PlanRequest::new(&loaded.model.info, &loaded.collected.resources, &loaded.budget)
    };
    let plan = plan(&request).map_err(|error| Failure::new(error.exit_code(), miette!("{error}")))?;
    if let Some(path) = &args.out {
        std::fs::write(path, json(&plan)?).map_err(|error| Failure::new(1, miette!("{}: {error}", path.display())))?;
    }
    match args.format {
        Format::Json => print(&json(&plan)?),
        _ => print(&plan.table()),
    }
}

/// The plan as JSON, ending with a newline.
fn json(plan: &CachePlan) -> Result<String, Failure> {
    serde_json::to_string_pretty(plan).map(|text| text + "\n").map_err(Failure::error)
}
