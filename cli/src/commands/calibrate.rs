//! `cacheplan calibrate`: what an engine logged besides its caches, as lines for the next plan.

use std::path::PathBuf;

use cacheplan::planner::MeasuredLedger;

use crate::commands::check_log::Log;
use crate::failure::{Failure, in_file, print, write};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    log: Log,

    /// Where the lines go, for `plan --measured FILE`; they are printed where absent
    #[arg(long, short, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let log = args.log.read()?;
    let name = args.log.name();
    let measured = MeasuredLedger::from_log(&log, &name).map_err(|error| in_file(name.as_ref(), error))?;
    match &args.out {
        Some(path) => write(path, &measured.to_toml()),
        None => print(&measured.to_toml()),
    }
}
