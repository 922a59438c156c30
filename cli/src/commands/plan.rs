//! `cacheplan plan`: where every byte of a model's caches lives, who owns it, and why.

use std::path::{Path, PathBuf};

use cacheplan::files::{Limit, Source};
use cacheplan::planner::error::Suggestion;
use cacheplan::planner::{CachePlan, Engine, EngineSpec, Parallel, PlanRequest, RankPlans};
use cacheplan_serve::fit::Asks;
use clap::ValueEnum;

use crate::commands::load::{Reading, Target, refused};
use crate::commands::start::{Beside, Print, StartArgs};
use crate::commands::{check, diff, explain, hub, start};
use crate::failure::{Failure, json, note, print, print_json, write};
use crate::paint::print_table;
use crate::trace::TraceArgs;

#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,

    #[command(flatten)]
    make: Option<Make>,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Derive a number of the plan, down to a tensor's axis or a key of the budget
    Explain(explain::Args),
    /// Show what changed between two plans
    Diff(diff::Args),
    /// Prove that a plan is right, and still that of its model, budget and device
    Check(check::Args),
}

// The model stands in a group further in; without it here clap would not see that these arguments are given.
#[derive(clap::Args)]
#[group(args = ["model", "words"])]
struct Make {
    /// A folder with config.json, or a config.json, .safetensors, .gguf or .onnx file; `-` for a config.json or a command piped in;
    /// org/name[@revision] or org/name/file.gguf for a model of the Hugging Face hub; a script or manifest (.sh, .txt, .yaml) that starts an engine
    #[arg(value_parser = hub::model(), required_unless_present = "words")]
    model: Option<PathBuf>,

    #[command(flatten)]
    reading: Reading,

    #[command(flatten)]
    start: StartArgs,

    #[command(flatten)]
    target: Target,

    /// Print the plan of every pipeline stage and what all ranks agreed on
    #[arg(long, conflicts_with_all = ["engine", "stage"], hide_short_help = true)]
    ranks: bool,

    /// The pipeline stage whose plan is printed, where there are several
    #[arg(long, value_name = "N", default_value_t = 0, hide_short_help = true)]
    stage: u32,

    /// Plan with the dtypes that an engine would choose, such as vllm, sglang@0.5.12, tensorrt-llm or llama.cpp, and predict
    /// what it would allocate
    #[arg(long = "as", alias = "engine", value_name = "ENGINE[@VERSION]")]
    engine: Option<EngineSpec>,

    /// Exit with 3 also where a command only may start: bytes that the engine measures itself decide
    #[arg(long, help_heading = "Command behind --", hide_short_help = true)]
    strict: bool,

    /// What to print
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,

    /// Also write the plan as JSON to a file
    #[arg(long, short, value_name = "FILE")]
    out: Option<PathBuf>,

    #[command(flatten)]
    trace: TraceArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A table for people, at most 100 columns wide
    Table,
    /// The plan itself
    Json,
    /// The same as YAML
    Yaml,
    /// Tables for an issue or a document
    Markdown,
    /// A memory map, 1000 pixels wide
    Svg,
    /// One file with all pictures of the page and their numbers; works offline, and prints
    Html,
    /// The model's graph for Graphviz; nodes with caches stand out, layers alike are drawn once
    Dot,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    match (&args.command, &args.make) {
        (Some(Command::Explain(args)), _) => explain::run(args),
        (Some(Command::Diff(args)), _) => diff::run(args),
        (Some(Command::Check(args)), _) => check::run(args),
        (None, Some(args)) => make(args),
        (None, None) => Err(Failure::new(2, "no model is given; see `cacheplan plan --help`")),
    }
}

fn make(args: &Make) -> Result<(), Failure> {
    args.trace.begin(args.out.as_deref().into_iter().chain(args.trace.file()))?;
    let reading = &args.reading;
    let Some(model) = args.model.as_deref() else {
        return started(args, StartArgs::run);
    };
    args.start.refuse_beside(Some(model))?;
    if start::is_script(model) {
        return started(args, |start, beside, print| start.run_file(model, beside, print));
    }
    let piped =
        if model == Path::new("-") { Some(Source::stdin(Limit::CONFIG).map_err(Failure::error)?) } else { None };
    if let Some(piped) = &piped {
        let text = piped.text(Limit::CONFIG).map_err(Failure::error)?;
        if start::is_command(&text) {
            let launches = start::launches_of(&text, "-", Path::new(""), args.start.version())?;
            return started(args, |start, beside, print| start.answer_all(&launches, beside, print));
        }
    }
    args.start.refuse_alone()?;
    if args.strict {
        return Err(Failure::new(2, "--strict is about a command behind `--` or in a file, and there is none"));
    }
    if args.engine.is_none() {
        reading.budget.refuse_engine_flags("name the engine with --as")?;
    }
    let request = match &piped {
        Some(piped) => reading.request_piped(piped, &args.target, args.engine)?,
        None => reading.request(model, &args.target, args.engine)?,
    };
    let request = request.of_stage(args.stage);
    if args.format == Format::Dot {
        refuse_beside(args, "the model's graph")?;
        let walked = request.model().walk(&request.budget().map_err(refused)?, args.engine).map_err(refused)?;
        return walked.map_or(Ok(()), |(graph, _)| print(&graph.dot().to_string()));
    }
    engines_hold(args, &request).iter().for_each(|said| note(said));
    let several = request.budget().map_err(refused)?.parallel != Parallel::default();
    if !several && (args.ranks || args.stage > 0) {
        return Err(Failure::new(2, "there is one rank; --ranks and --stage need --tp, --pp or [parallel]"));
    }
    let ranks = request.ranks().map_err(refused)?;
    if args.ranks {
        return show_ranks(args, &ranks);
    }
    let heading = if several { ranks.heading() + "\n" } else { String::new() };
    let bound = request.bound(&ranks.stages).map(|bound| bound.lines()).unwrap_or_default();
    let plan = ranks.into_stage(args.stage).map_err(refused)?;
    // The plan is there too where an engine refuses the model.
    if let Some(path) = &args.out {
        write(path, &json(&plan)?)?;
    }
    request.missing(&plan).iter().for_each(|missing| note(missing));
    let Some(engine) = args.engine else {
        return match args.format {
            Format::Json => print_json(&plan),
            Format::Yaml => print(&plan.yaml()),
            Format::Markdown => print(&plan.markdown()),
            Format::Svg => print(&plan.svg_on(request.device())),
            Format::Html => print(&html(&request, &plan)),
            Format::Table | Format::Dot => {
                print_table(&(heading + &plan.table() + &bound + &Suggestion::table(&request.knobs(&plan))))
            }
        };
    };
    let both = request.predict(engine).map_err(refused)?.beside(&plan);
    if let Some(path) = &args.out {
        write(path, &json(&both)?)?;
    }
    match args.format {
        Format::Json => print_json(&both),
        Format::Yaml => print(&both.yaml()),
        Format::Markdown => print(&both.markdown()),
        Format::Svg | Format::Html => refuse_beside(args, "our own plan"),
        Format::Table | Format::Dot => print_table(&(heading + &both.table())),
    }
}

/// How long sequences may be by engines' own commands, where a plan was asked how long.
fn engines_hold(args: &Make, request: &PlanRequest) -> Option<String> {
    let is_table = args.format == Format::Table;
    let device = request.device().filter(|_| is_table && args.reading.budget.finds_length())?;
    let budget = request.budget().ok().filter(|budget| budget.parallel == Parallel::default())?;
    let engines: Vec<EngineSpec> = match args.engine {
        Some(engine) => vec![engine],
        None => Engine::all().iter().copied().map(EngineSpec::from).collect(),
    };
    let sequences = budget.max_batch_size.unwrap_or(1);
    let asks = Asks::of_model(request, None);
    let stated = budget.memory.as_ref().and_then(|memory| memory.weights).map(Into::into);
    let named = |(engine, longest): (EngineSpec, u64)| {
        let free = asks.longest_stated(request, device, sequences, stated, engine).map(|stated| {
            let cells = stated.saturating_mul(sequences);
            format!(" beside what --fit-target leaves free, and {stated} where -ngl 99 -c {cells} are stated")
        });
        format!("{} {longest}{}", engine.engine, free.unwrap_or_default())
    };
    let held = asks.longest_of_each(request, device, sequences, &engines);
    let held: Vec<String> = held.into_iter().map(named).collect();
    let whose = match args.engine {
        Some(engine) => format!("by the rules of {}", engine.engine),
        None => "of the planner's own pools".to_owned(),
    };
    (!held.is_empty()).then(|| {
        format!(
            "that is {whose} in this plan's share of the device (--memory-fraction), beside what it assumes; an engine's own command takes what it finds there: {}",
            held.join(", ")
        )
    })
}

/// Answers a command that starts an engine.
fn started(args: &Make, of: impl FnOnce(&StartArgs, &Beside<'_>, Print) -> Result<(), Failure>) -> Result<(), Failure> {
    let print_as = match args.format {
        Format::Table => Print::Text,
        Format::Json => Print::Json,
        Format::Markdown => Print::Markdown,
        Format::Yaml | Format::Svg | Format::Html | Format::Dot => {
            let other =
                "what a command would do is printed as table, json or markdown; plan its model for a picture of it";
            return Err(Failure::new(2, other));
        }
    };
    // Named one by one, so that whoever stated several sees each.
    let ours = [
        ("--as", args.engine.is_some()),
        ("--ranks", args.ranks),
        ("--stage", args.stage > 0),
        ("--out", args.out.is_some()),
        ("--budget", args.reading.budget.budget.is_some()),
        ("--measurement", args.target.measurement()),
    ];
    if let Some((flag, _)) = ours.iter().find(|(_, stated)| *stated) {
        let other =
            "is about a plan of our own; a command says engine and budget itself, and --measured what it logged";
        return Err(Failure::new(2, format!("{flag} {other}")));
    }
    let measured = args.target.measured()?;
    args.reading.budget.refuse_finding()?;
    let beside = Beside {
        strict: args.strict,
        device: &args.target.device,
        overrides: args.reading.budget.overrides(),
        bits: args.reading.budget.bits(),
        read: args.reading.options()?,
        draft: args.target.draft.as_deref(),
        measured: measured.as_ref(),
    };
    of(&args.start, &beside, print_as)
}

/// The plans of all stages.
fn show_ranks(args: &Make, ranks: &RankPlans) -> Result<(), Failure> {
    let written = json(ranks)?;
    if let Some(path) = &args.out {
        write(path, &written)?;
    }
    match args.format {
        Format::Json => print(&written),
        Format::Yaml => print(&ranks.yaml()),
        Format::Markdown => print(&ranks.markdown()),
        Format::Svg | Format::Html | Format::Dot => {
            let one = "this format draws one plan: name its stage with --stage N, without --ranks";
            Err(Failure::new(2, one))
        }
        Format::Table => print_table(&ranks.table()),
    }
}

/// The plan with its pictures, and what every engine would do with the same bytes.
fn html(request: &PlanRequest, plan: &CachePlan) -> String {
    let engines: Vec<EngineSpec> = Engine::all().iter().copied().map(EngineSpec::from).collect();
    let layers = request.model().model().map(|model| model.layers.as_slice()).unwrap_or_default();
    plan.html(request.device(), layers, &request.curves(&[], &engines))
}

/// A picture of one thing is no answer to a question about another.
fn refuse_beside(args: &Make, drawn: &str) -> Result<(), Failure> {
    let asked = match (args.engine, args.ranks) {
        (Some(_), _) => "--as",
        (None, true) => "--ranks",
        (None, false) => return Ok(()),
    };
    Err(Failure::new(2, format!("this format draws {drawn}; with {asked} use table, json, yaml or markdown")))
}
