//! `cacheplan export`: a plan in the words of an engine that people run.

use std::path::PathBuf;

use cacheplan::planner::{ByteSize, ExportError, Parallel, Serving, Target};
use clap::ValueEnum;

use crate::commands::load::read_plan;
use crate::failure::{Failure, json, note, print, write};
use crate::numbers::whole;

#[derive(clap::Args)]
#[command(allow_negative_numbers = true)]
pub(crate) struct Args {
    /// Plan (JSON), as `cacheplan plan --out` writes it
    plan: PathBuf,

    /// vllm, sglang, tensorrt-llm, dynamo, dynamo-sglang, dynamo-tensorrt-llm, llm-d, ray, edge-llm, and for simulators and
    /// planners llm-d-sim, vidur or aiconfigurator
    #[arg(long, value_name = "TARGET")]
    to: Target,

    /// The engine's version, Dynamo's own for Dynamo; the newest known one where absent
    #[arg(long, value_name = "VERSION")]
    engine_version: Option<String>,

    /// Name or path that the engine loads the model by; where absent the file has <MODEL> in its place
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,

    /// Tensor-parallel ranks, each of which has this plan; the plan's where absent
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=4096))]
    tp: Option<u32>,

    /// Pipeline stages; the plan's where absent
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=4096))]
    pp: Option<u32>,

    /// Host memory that each rank offloads caches to, such as 64GiB
    #[arg(long, value_name = "SIZE")]
    host_memory: Option<ByteSize>,

    /// What to print
    #[arg(long, value_enum, default_value_t = Format::File)]
    format: Format,

    /// Write the file there instead of printing it
    #[arg(long, short, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// The file that the engine reads
    File,
    /// The file with every value's source and what is not expressed, as JSON
    Json,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let plan = read_plan(&args.plan)?;
    let serving = Serving {
        model: args.model.clone(),
        parallel: Some(Parallel {
            tp: args.tp.unwrap_or(plan.parallel.tp),
            pp: args.pp.unwrap_or(plan.parallel.pp),
            ..plan.parallel
        }),
        host_bytes: args.host_memory.map(|size| size.0),
    };
    let export = plan.export(args.to, args.engine_version.as_deref(), &serving).map_err(|error| match error {
        ExportError::Version { .. } => Failure::new(2, error),
        error => Failure::error(error),
    })?;
    let has_comments = export.has_comments();
    let text = match args.format {
        Format::File => export.text,
        Format::Json => json(&export)?,
    };
    // JSON has no comments, so that what Edge-LLM's file cannot say is said beside it.
    if args.format == Format::File && !has_comments {
        for gap in &export.not_expressed {
            note(&format!("not expressed: {gap}"));
        }
    }
    if args.model.is_none() && args.to.names_model() {
        note("the file names the model <MODEL>: replace that by the model's name or path, or state --model");
    }
    match &args.out {
        Some(path) => write(path, &text),
        None => print(&text),
    }
}
