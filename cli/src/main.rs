//! The `cacheplan` command: parses, calls the library, prints. One file per subcommand.
#![forbid(unsafe_code)]

mod commands;
mod excerpt;
mod failure;
mod help;
mod log;
mod numbers;
mod paint;
mod progress;
mod trace;

use std::process::ExitCode;

use cacheplan::files::remember_inputs;
use cacheplan::managers::CountingAllocator;
use cacheplan::planner::DeviceInfo;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::commands::run::template;
use crate::failure::{Failure, print_raw, say};

/// Counts what the process really allocates, so that `run` can set it beside the plan.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const AFTER_HELP: &str = "\
Exit codes:
  0  done, the plan fits; an engine's command starts, or may (--strict: 3)
  1  error
  2  wrong usage
  3  the plan does not fit the budget
  4  unsupported model, layer or op
  5  drift between the plan and what was found

Data goes to stdout, everything else to stderr. 1 GiB is 1024 MiB.";

/// Plan, prove, allocate and run the caches of LLM inference.
#[derive(Parser)]
#[command(name = "cacheplan", version, after_help = AFTER_HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Say where every byte of a model's caches lives, whose, and why
    Plan(Box<commands::plan::Args>),
    /// Show what was read of a model, from where, and what is assumed
    Inspect(commands::inspect::Args),
    /// Set our plan beside what engines would make of the same bytes
    Compare(commands::compare::Args),
    /// Say which devices, and how many, hold so many sequences
    Fit(commands::fit::Args),
    /// Write a plan in the words of an engine that people run
    Export(commands::export::Args),
    /// Write a model as ONNX graphs over caches of fixed shapes
    ExportGraph(commands::export_graph::Args),
    /// Set a plan beside what an engine logged when it started
    Check(commands::check_log::Args),
    /// Start an engine without weights, and hold it to the prediction
    Verify(Box<commands::verify::Args>),
    /// Turn what an engine logged into measured lines for the next plan
    Calibrate(commands::calibrate::Args),
    /// Plan, allocate, profile, resize and generate with a real model
    Run(Box<commands::run::Args>),
    /// Measure what weights and one step take, for the next plan
    Profile(commands::profile::Args),
    /// Plan, allocate, measure and generate with a small hybrid
    Demo(commands::demo::Args),
    /// Simulate prefix reuse on a workload, without a model
    Simulate(commands::simulate::Args),
    /// Say how large host memory and disk must be, from a trace
    Tiers(Box<commands::tiers::Args>),
    /// Plan prefill and decode on devices of their own, and the link between
    Disaggregate(Box<commands::disaggregate::Args>),
    /// Say how full the pools of a run were
    Stats(commands::stats::Args),
    /// Serve the planner as a page on this machine
    Web(commands::web::Args),
    /// Show the budget as it is stated, or what could be
    Config(commands::config::Args),
    /// Write what a shell needs to complete commands and flags
    Completions(commands::completions::Args),
    /// Write a manual page, for `man -l -`
    Man(commands::man::Args),
    /// Measure what part of this machine's rates kernels reach
    Bench(commands::bench::Args),
    /// Hold CUDA kernels to the CPU's ops, on a device or emulated
    Doctor(commands::doctor::Args),
}

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|first| first == template::RUNNER) {
        return template::run();
    }
    log::begin();
    remember_inputs();
    let parsed = Cli::command().try_get_matches().and_then(|matches| Ok((Cli::from_arg_matches(&matches)?, matches)));
    let (command, matches) = match parsed {
        Ok((cli, matches)) => (cli.command, matches),
        Err(wrong) => {
            let words: Vec<String> =
                std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
            let in_full =
                if wrong.kind() == ErrorKind::DisplayHelp { help::in_full(Cli::command(), &words) } else { None };
            return match in_full {
                Some(text) => print_raw(&text).map_or_else(Failure::report, |()| ExitCode::SUCCESS),
                None => usage(&hinted(wrong).format(&mut Cli::command())),
            };
        }
    };
    let result = match command {
        Command::Plan(args) => commands::plan::run(&args),
        Command::Inspect(args) => commands::inspect::run(&args),
        Command::Compare(args) => commands::compare::run(&args),
        Command::Fit(args) => commands::fit::run(&args),
        Command::Export(args) => commands::export::run(&args),
        Command::ExportGraph(args) => commands::export_graph::run(&args),
        Command::Check(args) => commands::check_log::run(&args),
        Command::Verify(args) => commands::verify::run(&args),
        Command::Calibrate(args) => commands::calibrate::run(&args),
        Command::Run(args) => commands::run::run(&args, matches.subcommand().map(|(_, run)| run)),
        Command::Profile(args) => commands::profile::run(&args),
        Command::Demo(args) => commands::demo::run(&args),
        Command::Simulate(args) => commands::simulate::run(&args),
        Command::Tiers(args) => commands::tiers::run(&args),
        Command::Disaggregate(args) => commands::disaggregate::run(&args),
        Command::Stats(args) => commands::stats::run(&args),
        Command::Web(args) => commands::web::run(&args),
        Command::Config(args) => commands::config::run(&args),
        Command::Completions(args) => commands::completions::run(&args, Cli::command()),
        Command::Man(args) => commands::man::run(&args, Cli::command()),
        Command::Bench(args) => commands::bench::run(&args),
        Command::Doctor(args) => commands::doctor::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// What stands behind `--` is an engine's command: no flag that nobody knows is meant as a value there, and a program that
/// stands elsewhere is.
fn hinted(mut wrong: clap::Error) -> clap::Error {
    let Some(ContextValue::String(found)) = wrong.get(ContextKind::InvalidArg).cloned() else { return wrong };
    let mut tips = match wrong.remove(ContextKind::Suggested) {
        Some(ContextValue::StyledStrs(tips)) => tips,
        _ => Vec::new(),
    };
    tips.retain(|tip| !tip.to_string().contains("as a value"));
    if ["vllm", "serve", "sglang", "trtllm-serve", "llama-server", "-m"].contains(&found.as_str()) {
        tips.push(
            "a command that starts an engine stands behind `--`: cacheplan plan --device h100 -- vllm serve MODEL"
                .into(),
        );
    }
    let is_price = found.split_once('=').is_some_and(|(device, price)| {
        device.parse::<DeviceInfo>().is_ok() && price.trim_start_matches('$').parse::<f64>().is_ok()
    });
    if is_price {
        tips.push("prices are parted by a comma alone: --price h100=2.5,h200=3.5".into());
    }
    if found == "--quantization" {
        tips.clear();
        tips.push("weights of fewer bits are asked about with --weights fp8, int4 or Q4_K_M".into());
    }
    if !tips.is_empty() {
        wrong.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
    }
    wrong
}

/// Help and versions are our own words; what is wrong repeats the arguments.
fn usage(wrong: &clap::Error) -> ExitCode {
    match wrong.use_stderr() {
        true => say(&wrong.render().to_string()),
        false => drop(wrong.print()),
    }
    ExitCode::from(u8::try_from(wrong.exit_code()).unwrap_or(2))
}
