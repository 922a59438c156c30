//! `cacheplan inspect`: what was read of a model, from where, and what had to be assumed.

use cacheplan::planner::BudgetKey;
use clap::{Arg, ValueEnum};

use crate::commands::load::{ModelArgs, Target};
use crate::failure::{Failure, print};

#[derive(clap::Args)]
#[command(mut_args(of_the_model))]
pub(crate) struct Args {
    #[command(flatten)]
    source: ModelArgs,

    /// Print the graph instead; nodes with caches stand out
    #[arg(long, value_enum, value_name = "FORMAT")]
    graph: Option<GraphFormat>,
}

#[derive(Clone, Copy, ValueEnum)]
enum GraphFormat {
    /// For Graphviz
    Dot,
}

/// Of the budget only dtypes tell how a model is read; the other keys are taken, so that one file or line serves every
/// command, but not listed.
fn of_the_model(arg: Arg) -> Arg {
    let key = BudgetKey::all().iter().find(|key| arg.get_id() == key.path);
    let hidden = key.is_some_and(|key| key.section() != Some("dtypes"));
    arg.hide(hidden)
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let loaded = args.source.load(&Target::default())?;
    match args.graph {
        Some(GraphFormat::Dot) => print(&loaded.model.graph.dot().to_string()),
        None => print(&loaded.model.inspection(&loaded.collected).to_string()),
    }
}
