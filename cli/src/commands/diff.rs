//! `cacheplan plan diff`: what changed between two plans.

use std::path::PathBuf;

use crate::commands::Format;
use crate::commands::load::read_engine_plan;
use crate::failure::Failure;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// A plan as `plan --out` writes it
    before: PathBuf,

    /// The plan to compare it with
    after: PathBuf,

    /// What to print; nothing as a table where the plans are alike
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let (before, of_before) = read_engine_plan(&args.before)?;
    let (after, of_after) = read_engine_plan(&args.after)?;
    let diff = before.diff(&after).and_engines(of_before.as_ref(), of_after.as_ref());
    args.format.print(&diff.table(), &diff)
}
