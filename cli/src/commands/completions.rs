//! `cacheplan completions`: what a shell completes, from the definition of the flags.

use clap_complete::{Shell, generate};

use crate::failure::{Failure, print};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The shell, whose own manual says where the text goes
    shell: Shell,
}

pub(crate) fn run(args: &Args, mut command: clap::Command) -> Result<(), Failure> {
    let mut text = Vec::new();
    generate(args.shell, &mut command, "cacheplan", &mut text);
    print(&String::from_utf8_lossy(&text))
}
