//! `cacheplan stats`: how full the pools of a run were.

use std::path::PathBuf;

use cacheplan::files::Limit;
use cacheplan::managers::book::Stats;
use clap::ValueEnum;

use crate::failure::{Failure, in_file, print, print_json, read};
use crate::paint::print_table;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// A snapshot that `cacheplan run --stats FILE` or a server of your own wrote
    snapshot: PathBuf,

    /// What to print
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// A table for people, at most 100 columns wide
    Table,
    /// The snapshot itself
    Json,
    /// The Prometheus text format
    Prometheus,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let text = read(&args.snapshot, Limit::MEASURED)?;
    let stats: Stats = Limit::MEASURED.parse_json(text.as_bytes()).map_err(|error| {
        in_file(&args.snapshot, format!("no snapshot: {error}; `cacheplan run MODEL --stats FILE` writes one"))
    })?;
    match args.format {
        Format::Table => print_table(&stats.to_string()),
        Format::Json => print_json(&stats),
        Format::Prometheus => print(&stats.prometheus()),
    }
}
