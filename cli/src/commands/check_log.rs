//! `cacheplan check`: whether an engine did what a plan says, by the log of its start.

use std::io::BufReader;
use std::path::{Path, PathBuf};

use cacheplan::files::{Limit, Source};
use cacheplan::planner::{Engine, EngineLog, EngineSpec};

use crate::commands::Format;
use crate::commands::load::read_plan;
use crate::failure::{Failure, in_file, print};

/// A log, and whose it is.
#[derive(clap::Args)]
pub(crate) struct Log {
    /// The log of the start of vLLM, SGLang, TensorRT-LLM or llama.cpp; `-` for one piped in
    #[arg(long, value_name = "FILE")]
    log: PathBuf,

    /// The engine, where the log has lines of several, and its version, where the log does not say it
    #[arg(long = "as", value_name = "ENGINE[@VERSION]")]
    engine: Option<EngineSpec>,
}

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    log: Log,

    /// The plan that the engine was started for, as `plan --as ENGINE --out FILE` writes it
    #[arg(long, value_name = "FILE")]
    plan: PathBuf,

    /// What to print
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

/// The exit code where the engine is not what the plan says.
const DRIFT: u8 = 5;

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if args.log.log == Path::new("-") && args.plan == Path::new("-") {
        return Err(Failure::new(2, "one of the log and the plan can be piped in"));
    }
    let plan = read_plan(&args.plan)?;
    let log = args.log.read()?;
    // The newest is taken where nobody says a version.
    let version = args.log.engine.map(|engine| engine.version).filter(|version| *version != log.engine.newest());
    let found = log.check(&plan, version).map_err(|error| {
        Failure::new(error.exit_code(), format!("{}: as {} sees it: {error}", args.plan.display(), log.engine))
    })?;
    match args.format {
        Format::Table => print(&found.table())?,
        Format::Json => print(&(serde_json::to_string_pretty(&found).map_err(Failure::error)? + "\n"))?,
    }
    if found.drifted { Err(Failure::new(DRIFT, drift(args, &found.drifting()))) } else { Ok(()) }
}

fn drift(args: &Args, names: &[&str]) -> String {
    format!("{} is not as {} plans it: {}", args.log.log.display(), args.plan.display(), names.join(", "))
}

impl Log {
    /// What the log says, without holding all of it.
    pub(crate) fn read(&self) -> Result<EngineLog, Failure> {
        let engine: Option<Engine> = self.engine.map(|spec| spec.engine);
        let source = Source::named(&self.log, Limit::LOG).map_err(Failure::error)?;
        source.within(Limit::LOG).map_err(Failure::error)?;
        EngineLog::read(BufReader::new(source.reader()), engine).map_err(|error| in_file(&self.log, error))
    }

    /// What to call it where its lines are kept.
    pub(crate) fn name(&self) -> String {
        match self.log.file_name() {
            Some(name) if self.log != Path::new("-") => name.to_string_lossy().into_owned(),
            _ => "a log piped in".into(),
        }
    }
}
