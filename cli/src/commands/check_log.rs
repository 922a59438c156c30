//! `cacheplan check`: whether an engine did what a plan says, by the log of its start.

use std::io::BufReader;
use std::path::{Path, PathBuf};

use cacheplan::files::{Limit, Shown, Source};
use cacheplan::planner::logs::LogError;
use cacheplan::planner::{Engine, EngineLog, EngineSpec};
use cacheplan::transforms::ReadOptions;

use crate::commands::Format;
use crate::commands::load::{OnDevice, read_engine_plan};
use crate::commands::start::{Beside, Print, StartArgs};
use crate::failure::{DRIFT, Failure, in_file, note};

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
    /// The log of the start of vLLM, SGLang, TensorRT-LLM or llama.cpp; `-` for one piped in
    #[arg(long, value_name = "FILE", required_unless_present = "words")]
    log: Option<PathBuf>,

    /// The engine, where the log has lines of several, and its version, where the log does not say it
    #[arg(long = "as", value_name = "ENGINE[@VERSION]")]
    engine: Option<EngineSpec>,

    /// The plan that the engine was started for, as `plan --as ENGINE --out FILE` writes it
    #[arg(long, value_name = "FILE", required_unless_present = "words", conflicts_with = "words")]
    plan: Option<PathBuf>,

    #[command(flatten)]
    device: OnDevice,

    #[command(flatten)]
    start: StartArgs,

    /// What to print
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let log = args.log.clone().map(|log| Log { log, engine: args.engine });
    let (Some(log), Some(file)) = (&log, &args.plan) else { return of_command(args, log.as_ref()) };
    args.start.refuse_alone()?;
    if log.log == Path::new("-") && file == Path::new("-") {
        return Err(Failure::new(2, "one of the log and the plan can be piped in"));
    }
    let (plan, of_engine) = read_engine_plan(file)?;
    let name = Shown(log.log.display());
    let log = log.read()?;
    // The newest is taken where nobody says a version.
    let version = args.engine.map(|engine| engine.version).filter(|version| *version != log.engine.newest());
    let found = log.check_planned(&plan, of_engine.as_ref(), version).map_err(|error| {
        Failure::new(error.exit_code(), format!("{}: as {} sees it: {error}", file.display(), log.engine))
    })?;
    args.format.print(&found.table(), &found)?;
    if !found.drifted {
        return Ok(());
    }
    let names = found.drifting().join(", ");
    Err(Failure::new(DRIFT, format!("{name} is not as {} plans it: {names}", file.display())))
}

/// What a command would do, or did by its log.
fn of_command(args: &Args, log: Option<&Log>) -> Result<(), Failure> {
    let beside = Beside {
        strict: false,
        device: &args.device,
        overrides: &[],
        bits: None,
        read: ReadOptions::default(),
        draft: None,
        measured: None,
    };
    if let (Some(engine), None) = (args.engine, log) {
        return Err(Failure::new(
            2,
            format!("--as {}: the command names its engine; state --engine-version", engine.engine),
        ));
    }
    let print_as = if args.format == Format::Json { Print::Json } else { Print::Text };
    let Some(log) = log else { return args.start.run(&beside, print_as) };
    match log.parsed()? {
        Ok(read) => args.start.check(&read, &beside, print_as),
        // Its command says what would do.
        Err(error @ LogError::Failed { .. }) => {
            let ran = args.start.run(&beside, print_as);
            let error = match &ran {
                Err(refused) => error.told_by(refused.refusal()),
                Ok(()) => error,
            };
            note(log.of_file(&error).message());
            ran?;
            let said = "by what is known its command starts: it was another, or something else was on its devices";
            Err(Failure::new(DRIFT, format!("{error}; {said}")))
        }
        Err(error) => Err(log.of_file(&error)),
    }
}

impl Log {
    /// What the log says, without holding all of it.
    pub(crate) fn read(&self) -> Result<EngineLog, Failure> {
        let advice = "`cacheplan plan --device DEVICE -- COMMAND` says what would do";
        self.parsed()?.map_err(|error| match error {
            LogError::Failed { .. } => self.of_file(&error).with_advice(advice),
            error => self.of_file(&error),
        })
    }

    fn parsed(&self) -> Result<Result<EngineLog, LogError>, Failure> {
        let engine: Option<Engine> = self.engine.map(|spec| spec.engine);
        let source = Source::named(&self.log, Limit::LOG).map_err(Failure::error)?;
        source.within(Limit::LOG).map_err(Failure::error)?;
        Ok(EngineLog::read(BufReader::new(source.reader()), engine))
    }

    fn of_file(&self, error: &LogError) -> Failure {
        in_file(&self.log, error)
    }

    /// What to call it where its lines are kept.
    pub(crate) fn name(&self) -> String {
        match self.log.file_name() {
            Some(name) if self.log != Path::new("-") => name.to_string_lossy().into_owned(),
            _ => "a log piped in".into(),
        }
    }
}
