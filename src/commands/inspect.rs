//! `cacheplan inspect`: what was read of a model, from where, and what had to be assumed.

use cacheplan::transforms::{Dot, Inspection};
use clap::ValueEnum;

use crate::commands::load::{Source, Target};
use crate::failure::{Failure, print};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    source: Source,

    /// Print the graph instead; nodes with caches stand out
    #[arg(long, value_enum, value_name = "FORMAT")]
    graph: Option<GraphFormat>,
}

#[derive(Clone, Copy, ValueEnum)]
enum GraphFormat {
    /// For Graphviz
    Dot,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let loaded = args.source.load(&Target::default())?;
    match args.graph {
        Some(GraphFormat::Dot) => print(&Dot(&loaded.model.graph).to_string()),
        None => print(&Inspection { model: &loaded.model, collected: &loaded.collected }.to_string()),
    }
}
