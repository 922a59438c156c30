//! `cacheplan-gpu`: checks and measures the CUDA kernels with nothing but a driver, or with the emulator.
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test"))]

mod bench;
mod doctor;
mod driver;
mod emulated;
mod gpu;
mod machine;
mod modules;
mod table;

use clap::{Parser, Subcommand, ValueEnum};
use std::fmt;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

/// Check and measure the CUDA kernels of cacheplan.
#[derive(Parser)]
#[command(version, name = "cacheplan-gpu")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Hold every op to the CPU's on random inputs; exit with 0 only if all hold
    Doctor(doctor::Args),
    /// Measure every op as a part of what the device can do
    Bench(bench::Args),
}

/// Where kernels run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Cuda(usize),
    Emulator,
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "emulator" => Ok(Self::Emulator),
            "cuda" => Ok(Self::Cuda(0)),
            _ => {
                let number = text.strip_prefix("cuda:").and_then(|number| number.parse().ok());
                number.map(Self::Cuda).ok_or_else(|| format!("`{text}` is no device: `cuda:0` or `emulator` is"))
            }
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cuda(number) => write!(f, "cuda:{number}"),
            Self::Emulator => f.write_str("emulator"),
        }
    }
}

/// How a command prints.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Form {
    /// Tables for people
    Table,
    /// The same as JSON
    Json,
}

/// Why a command did not come to a verdict.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Driver(#[from] driver::DriverError),
    #[error("{0}")]
    Fault(String),
    #[error("{op}, {case}, on the CPU")]
    Cpu { op: &'static str, case: String, source: Box<cacheplan_kernels::KernelError> },
    #[error("no op is called like `{0}`; without a name all are measured")]
    NoOp(String),
    #[error("{}", file.display())]
    File { file: PathBuf, source: std::io::Error },
}

impl From<machine::Fault> for Failure {
    fn from(machine::Fault(what): machine::Fault) -> Self {
        Self::Fault(what)
    }
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Doctor(args) => doctor::run(&args),
        Command::Bench(args) => bench::run(&args),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            note(&format!("error: {}", chain(&failure)));
            ExitCode::FAILURE
        }
    }
}

/// The error's message followed by those of its causes, as far as it does not end with them already.
fn chain(error: &dyn std::error::Error) -> String {
    std::iter::successors(error.source(), |cause| cause.source()).fold(error.to_string(), |text, cause| {
        let cause = cause.to_string();
        if text.ends_with(&cause) { text } else { format!("{text}: {cause}") }
    })
}

/// Prints data; a reader that went away ends the command quietly.
fn print(text: &str) -> Result<(), Failure> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(source) if source.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::File { file: "standard output".into(), source })
        }
        _ => Ok(()),
    }
}

/// Says something beside the data.
fn note(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// A seed that was not used before.
fn fresh_seed() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| u64::from(time.subsec_nanos()) ^ time.as_secs())
}
