//! `cacheplan man`: manual pages, from the definition of the flags.

use clap_mangen::Man;

use crate::failure::{Failure, print};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// A subcommand, such as `plan` or `plan explain`; the whole command where none is named
    subcommand: Vec<String>,
}

pub(crate) fn run(args: &Args, mut command: clap::Command) -> Result<(), Failure> {
    // Pages of subcommands are called after all of their names.
    command.build();
    let mut page = &command;
    for name in &args.subcommand {
        let known = || page.get_subcommands().map(clap::Command::get_name).collect::<Vec<_>>().join(", ");
        page = page
            .find_subcommand(name)
            .ok_or_else(|| Failure::new(2, format!("there is no subcommand `{name}`; those are: {}", known())))?;
    }
    let mut text = Vec::new();
    Man::new(page.clone()).render(&mut text).map_err(Failure::error)?;
    print(&String::from_utf8_lossy(&text))
}
