//! `cacheplan bench`: what part of this machine's own rates each kernel reaches.

use cacheplan::kernels::roofline::run as measure;

use miette::miette;

use crate::failure::{Failure, print};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only the ops whose name contains this
    op: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let (mut printed, mut found) = (Ok(()), false);
    let op = args.op.as_deref().unwrap_or_default();
    measure(op, |line| {
        found = true;
        if printed.is_ok() {
            printed = print(&format!("{line}\n"));
        }
    })
    .map_err(Failure::error)?;
    match found {
        true => printed,
        false => Err(Failure::new(2, miette!("no op is called like `{op}`; without a name all are measured"))),
    }
}
