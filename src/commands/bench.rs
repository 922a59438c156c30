//! `cacheplan bench`: what part of this machine's own rates each kernel reaches.

use cacheplan::kernels::roofline::{Measurement, run as measure};

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
    measure(op, |row| {
        let heading = if found { String::new() } else { Measurement::headings() + "\n" };
        found = true;
        if printed.is_ok() {
            printed = print(&format!("{heading}{row}\n"));
        }
    })
    .map_err(Failure::error)?;
    match found {
        true => printed,
        false => Err(Failure::new(2, miette!("no op is called like `{op}`; without a name all are measured"))),
    }
}
