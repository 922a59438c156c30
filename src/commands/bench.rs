//! `cacheplan bench`: what part of this machine's own rates each kernel reaches.

use cacheplan::kernels::roofline::{Measurement, run as measure};

use crate::failure::{Failure, print};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only the ops whose name contains this
    op: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    print(&(Measurement::headings() + "\n"))?;
    let mut printed = Ok(());
    measure(args.op.as_deref().unwrap_or_default(), |row| {
        if printed.is_ok() {
            printed = print(&format!("{row}\n"));
        }
    })
    .map_err(Failure::error)?;
    printed
}
