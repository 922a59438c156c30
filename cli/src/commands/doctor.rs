//! `cacheplan doctor`: what this build has, and whether its CUDA kernels hold on a device.

use std::ffi::OsString;

use cacheplan::files::Shown;

use super::{Format, runner};
use crate::failure::{Failure, note};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// `cuda:0`, `cuda:1`, .., or `emulator`, which needs no GPU
    #[arg(long, default_value = "cuda:0")]
    device: String,
    /// What inputs follow from; a new one each time, which is printed
    #[arg(long)]
    seed: Option<u64>,
    /// How to print
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let runs = if cfg!(feature = "cuda") { "the CPU and CUDA" } else { "the CPU" };
    note(&format!("cacheplan {} runs models on {runs}", env!("CARGO_PKG_VERSION")));
    if let Some(found) = runner::find() {
        note(&format!("kernels are checked by {}", Shown(found.display())));
    }
    let format = if args.format == Format::Json { "json" } else { "table" };
    let mut arguments: Vec<OsString> = ["doctor", "--device", &args.device, "--format", format].map(Into::into).into();
    if let Some(seed) = args.seed {
        arguments.extend(["--seed".into(), seed.to_string().into()]);
    }
    runner::run(arguments)
}
