//! The `cacheplan` command: parses, calls the library, prints. One file per subcommand.
#![forbid(unsafe_code)]

mod commands;
mod failure;
mod progress;

use std::process::ExitCode;

use cacheplan::managers::CountingAllocator;
use clap::{Parser, Subcommand};

/// Counts what the process really allocates, so that `run` can set it beside the plan.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const AFTER_HELP: &str = "\
Exit codes:
  0  done, the plan fits
  1  error
  2  wrong usage
  3  the plan does not fit the budget
  4  unsupported model, layer or op
  5  drift between the plan and what was found

Data goes to stdout, everything else to stderr. Byte counts are binary: 1 GiB = 1024 MiB.";

/// Plan, prove, allocate and run the caches of LLM inference.
#[derive(Parser)]
#[command(version, after_help = AFTER_HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Say where every byte of a model's caches lives, who owns it, and why
    Plan(Box<commands::plan::Args>),
    /// Show what was read of a model, from where, and what had to be assumed
    Inspect(commands::inspect::Args),
    /// Set our plan beside what other engines would allocate for the same bytes
    Compare(commands::compare::Args),
    /// Write a plan in the words of an engine that people run
    Export(commands::export::Args),
    /// Plan, allocate, profile, resize and generate with a real model
    Run(commands::run::Args),
    /// Plan, allocate, profile, resize and generate with a small hybrid model that is built in
    Demo(commands::demo::Args),
    /// Simulate prefix reuse on a workload, without a model
    Simulate(commands::simulate::Args),
    /// Say how full the pools of a run were
    Stats(commands::stats::Args),
    /// Show the budget as it is stated, or what could be
    Config(commands::config::Args),
    /// Measure what part of this machine's own rates each kernel reaches
    Bench(commands::bench::Args),
}

fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_env("CACHEPLAN_LOG"))
        .with_writer(std::io::stderr)
        .init();
    // A long path or name must stay in one piece, so that it can be searched for and copied.
    let wrapping = miette::set_hook(Box::new(|_| Box::new(miette::MietteHandlerOpts::new().wrap_lines(false).build())));
    debug_assert!(wrapping.is_ok(), "the hook is set once, here");
    let result = match Cli::parse().command {
        Command::Plan(args) => commands::plan::run(&args),
        Command::Inspect(args) => commands::inspect::run(&args),
        Command::Compare(args) => commands::compare::run(&args),
        Command::Export(args) => commands::export::run(&args),
        Command::Run(args) => commands::run::run(&args),
        Command::Demo(args) => commands::demo::run(&args),
        Command::Simulate(args) => commands::simulate::run(&args),
        Command::Stats(args) => commands::stats::run(&args),
        Command::Config(args) => commands::config::run(&args),
        Command::Bench(args) => commands::bench::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
