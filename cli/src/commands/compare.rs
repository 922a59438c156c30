//! `cacheplan compare`: our plan beside each engine's allocation, for the same bytes and workload.

use cacheplan::planner::{Comparison, Engine, EngineSpec, PlanError};

use crate::commands::Format;
use crate::commands::load::{ModelArgs, Target, refused};
use crate::failure::{Failure, note};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    source: ModelArgs,

    #[command(flatten)]
    target: Target,

    /// Engines to compare with, such as vllm@0.19.0; all of them, newest versions, where absent
    #[arg(long = "with", aliases = ["engine", "engines", "as"], value_name = "ENGINE[@VERSION]", value_delimiter = ',')]
    engines: Vec<EngineSpec>,

    /// What to print
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let request = args.source.request(&args.target)?;
    let all: Vec<EngineSpec> = Engine::all().iter().copied().map(EngineSpec::from).collect();
    let engines = if args.engines.is_empty() { &all } else { &args.engines };
    Engine::refuse_unconsumed(engines, &request.config().budget).map_err(|error| Failure::new(1, error))?;
    let mut rows = Vec::new();
    if args.engines.is_empty() {
        for &engine in engines {
            match request.compare(engine) {
                // Others may still be known.
                Err(PlanError::Engine(unread)) => note(&unread.to_string()),
                row => rows.push(row.map_err(refused)?),
            }
        }
    } else {
        rows = request.compare_all(engines).map_err(refused)?;
    }
    args.format.print(&Comparison::table(&rows), &rows)?;
    if !rows.is_empty() && rows.iter().all(|row| row.sequences == 0 && row.engine_sequences == 0) {
        return Err(Failure::new(3, "not one sequence fits, neither in our plan nor in an engine's"));
    }
    Ok(())
}
