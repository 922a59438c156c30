//! `cacheplan verify`: whether an engine, started on the model, allocates what is predicted of it.

mod start;

use std::path::{Path, PathBuf};
use std::time::Duration;

use cacheplan::files::Shown;
use cacheplan::planner::{EngineLog, EngineSpec};

use self::start::{Skeleton, start};
use crate::commands::Format;
use crate::commands::load::{ModelArgs, Target, refused};
use crate::failure::{DRIFT, Failure};
use crate::numbers::whole;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    source: ModelArgs,

    #[command(flatten)]
    target: Target,

    /// The engine: llama.cpp, which starts without a GPU and without weights; @VERSION for older rules
    #[arg(long, value_name = "ENGINE[@VERSION]")]
    engine: EngineSpec,

    /// The engine's server, by its path or as PATH has it
    #[arg(long, value_name = "PROGRAM", default_value = "llama-server")]
    program: PathBuf,

    /// Seconds in which it must say what its caches are
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = whole::<u64>(1..=86_400))]
    within: u64,

    /// What to print
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let request = args.source.request(&args.target)?;
    let predicted = request.predict(args.engine).map_err(refused)?;
    let budget = &request.config().budget;
    let Some(mut arguments) = predicted.arguments(budget) else {
        let engine = args.engine.engine;
        return Err(Failure::new(2, format!("{engine} does not start without a GPU; llama.cpp can be verified")));
    };
    if budget.speculation.is_some() {
        return Err(Failure::new(2, "the engine is started without a draft model; leave the drafted tokens out"));
    }
    let model = &args.source.model;
    let skeleton = request.model().model().filter(|_| !is_gguf(model)).map(Skeleton::of).transpose()?;
    let file = skeleton.as_ref().map_or(model.as_path(), Skeleton::path);
    arguments.splice(0..0, ["-m".to_owned(), file.display().to_string()]);
    let said = start(&args.program, &arguments, Duration::from_secs(args.within))?;
    drop(skeleton);
    let log = EngineLog::read(said.as_slice(), Some(args.engine.engine)).map_err(|error| {
        let program = Shown(args.program.display());
        Failure::new(1, format!("{program} did not start: {error}; it ended with:\n{}", last_lines(&said)))
    })?;
    let found = log.beside(&predicted, budget.max_seq_len_for(request.model().info()));
    args.format.print(&found.table(), &found)?;
    if !found.drifted {
        return Ok(());
    }
    let names = found.drifting().join(", ");
    Err(Failure::new(DRIFT, format!("{} does not allocate what is predicted: {names}", args.engine.engine)))
}

/// Such a file is started as it is.
fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "gguf")
}

/// What an engine said last, on lines that are not too long.
fn last_lines(said: &[u8]) -> String {
    const LINES: usize = 5;
    const LONGEST: usize = 200;
    let text = String::from_utf8_lossy(said);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = &lines[lines.len().saturating_sub(LINES)..];
    last.iter().map(|line| format!("  {}\n", line.chars().take(LONGEST).collect::<String>())).collect()
}
