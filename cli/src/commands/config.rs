//! `cacheplan config`: the budget as it is stated, and what could be.

use cacheplan::planner::Config;

use crate::commands::budget::BudgetArgs;
use crate::commands::load::OnDevice;
use crate::failure::{Failure, note, print};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Print every key that is stated, or with --origin every key and where its value came from
    Show {
        #[command(flatten)]
        budget: Box<BudgetArgs>,

        #[command(flatten)]
        device: OnDevice,

        /// Print every key and where its value came from
        #[arg(long)]
        origin: bool,
    },
    /// Print a budget file with every key, commented out
    Init,
    /// Print the JSON Schema of budget files
    Schema,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    match &args.command {
        Command::Show { budget, device, origin } => {
            budget.refuse_finding()?;
            let config = device.resolve(budget)?;
            device.notes(&config)?.iter().for_each(|said| note(said));
            let shown = if *origin { config.table() } else { config.stated() };
            if shown.is_empty() {
                note("nothing is stated: every key has its default; --origin prints them all");
            }
            print(&shown)
        }
        Command::Init => print(&Config::commented_file()),
        Command::Schema => print(&Config::schema()),
    }
}
