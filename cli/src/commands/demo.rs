//! `cacheplan demo`: the whole way on a small hybrid model that is built in.

use cacheplan::runtime::{Request, Session};

use crate::commands::run::results::ResultArgs;
use crate::commands::run::{OutputArgs, failure, serve};
use crate::failure::Failure;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let mut session = Session::demo(args.output.device.clone()).map_err(failure)?;
    serve(&mut session, &Request::demo(), args.output.format, None, &ResultArgs::default())
}
