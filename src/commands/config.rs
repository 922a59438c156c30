//! `cacheplan config`: the budget as it is stated, and what could be.

use cacheplan::planner::{ByteSize, budget_schema, commented_budget};

use crate::commands::budget::BudgetArgs;
use crate::commands::load::resolve;
use crate::failure::{Failure, print};

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

        /// Memory of a device; 0.9 of it is divided where nothing else is stated
        #[arg(long, value_name = "SIZE")]
        device_memory: Option<ByteSize>,

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
        Command::Show { budget, device_memory, origin } => {
            let config = resolve(budget, device_memory.is_some())?;
            print(&if *origin { config.table() } else { config.stated() })
        }
        Command::Init => print(&commented_budget()),
        Command::Schema => print(&budget_schema()),
    }
}
