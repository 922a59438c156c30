//! `cacheplan compare`: our plan beside each engine's allocation, for the same bytes and workload.

use cacheplan::planner::{ByteSize, Engine, EngineSpec, PlanRequest, compare, comparison_table};
use cacheplan::transforms::collect;
use clap::ValueEnum;
use miette::miette;

use crate::commands::load::Source;
use crate::failure::{Failure, print};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    source: Source,

    /// Bytes for the caches of either, in place of the budget's memory, such as 24GiB
    #[arg(long, value_name = "SIZE")]
    cache_bytes: Option<ByteSize>,

    /// Engines to compare with, such as vllm@0.19.0; all of them, newest versions, where absent
    #[arg(long = "with", value_name = "ENGINE[@VERSION]", value_delimiter = ',')]
    engines: Vec<EngineSpec>,

    /// What to print
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A table for people, at most 100 columns wide
    Table,
    /// One object per engine
    Json,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let (model, mut budget) = args.source.read()?;
    budget.engine.cache_bytes = args.cache_bytes.or(budget.engine.cache_bytes);
    let all = Engine::ALL.map(EngineSpec::from);
    let engines = if args.engines.is_empty() { all.as_slice() } else { &args.engines };
    let mut rows = Vec::new();
    for &engine in engines {
        // Each engine stores states in a dtype of its own choice, and so does our plan beside it.
        let context = budget.engine_context(&model.info, engine);
        let collected =
            collect(&mut model.graph.clone(), &context).map_err(|error| Failure::new(4, miette!("{error}")))?;
        let request = PlanRequest::new(&model.info, &collected.resources, &budget);
        let row = compare(&request, engine).map_err(|error| Failure::new(error.exit_code(), miette!("{error}")))?;
        rows.push(row);
    }
    match args.format {
        Format::Table => print(&comparison_table(&rows)),
        Format::Json => print(&(serde_json::to_string_pretty(&rows).map_err(Failure::error)? + "\n")),
    }
}
