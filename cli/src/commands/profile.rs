//! `cacheplan profile`: what a model's weights and one forward of it take, as lines for the next plan.

use std::path::PathBuf;

use cacheplan::kernels::Backend;
use cacheplan::runtime::{Session, SessionOptions};

use crate::commands::budget::stated_length;
use crate::commands::load::ModelArgs;
use crate::commands::run::{failure, open};
use crate::failure::{Failure, print, refuse_places, write};
use crate::progress;

#[derive(clap::Args)]
#[command(allow_negative_numbers = true, mut_arg("max_seq_len", stated_length))]
pub(crate) struct Args {
    #[command(flatten)]
    source: ModelArgs,

    /// A draft model, which is measured beside the model; needs --draft-tokens or [speculation]
    #[arg(long, value_name = "MODEL")]
    draft: Option<PathBuf>,

    /// Where the lines go, for `plan --measured FILE`; they are printed where absent
    #[arg(long, short, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Where the model runs: cpu, or cuda:N in a build with the feature cuda
    #[arg(long, default_value = "cpu", value_parser = Session::open_device)]
    device: Backend,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let options =
        SessionOptions { backend: args.device.clone(), draft: args.draft.clone(), ..args.source.session_options()? };
    let mut session = open(&args.source, options)?;
    refuse_places(args.out.as_deref())?;
    let profile = progress::during("measuring one forward", || session.profile()).map_err(failure)?;
    let lines = session.measured(&profile).map_err(failure)?.to_toml();
    match &args.out {
        Some(path) => write(path, &lines),
        None => print(&lines),
    }
}
