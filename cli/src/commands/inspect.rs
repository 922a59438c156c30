//! `cacheplan inspect`: what was read of a model, from where, and what had to be assumed.

use cacheplan::planner::BudgetKey;
use clap::{Arg, ValueEnum};

use crate::commands::load::{ModelArgs, Target, refused};
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
    let request = args.source.request(&Target::default())?;
    let budget = request.budget().map_err(refused)?;
    let (model, walked) = (request.model().model(), request.model().walk(&budget, None).map_err(refused)?);
    match (model.zip(walked), args.graph) {
        (Some((_, (graph, _))), Some(GraphFormat::Dot)) => print(&graph.dot().to_string()),
        (Some((model, (_, collected))), None) => print(&model.inspection(&collected).to_string()),
        // A model that was read has a graph.
        (None, _) => Ok(()),
    }
}
