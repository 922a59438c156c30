//! `cacheplan bench`: what part of this machine's own rates each kernel reaches, on the CPU or, by `cacheplan-gpu`, on a device.

use std::ffi::OsString;
use std::path::PathBuf;

use cacheplan::kernels::roofline::run as measure;

use super::runner;
use crate::failure::{Failure, print};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only the ops whose name contains this
    op: Option<String>,
    /// `cuda:0`, `cuda:1`, .., or `emulator`, which counts sectors and instructions; without it, this machine's CPU
    #[arg(long)]
    device: Option<String>,
    /// Write the figures of a device to a file too
    #[arg(long, value_name = "FILE", requires = "device")]
    json: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if let Some(device) = &args.device {
        let mut arguments: Vec<OsString> = ["bench", "--device", device].map(Into::into).into();
        arguments.extend(args.json.iter().flat_map(|file| ["--json".into(), file.into()]));
        arguments.extend(args.op.iter().flat_map(|op| ["--".into(), op.into()]));
        return runner::run(arguments);
    }
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
        false => Err(Failure::new(2, format!("no op is called like `{op}`; without a name all are measured"))),
    }
}
