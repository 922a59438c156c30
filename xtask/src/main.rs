//! Contributor tools: `cargo xtask <command>`.
#![forbid(unsafe_code)]

mod check_cuda;
mod fuzz;
mod soak;

use std::process::ExitCode;

const HELP: &str = "\
Usage: cargo xtask <command>

Commands:
  check-cuda        Type-check and lint the CUDA path; needs no CUDA
  check-fuzz        Type-check and lint the fuzz targets; needs no nightly
  soak [SECONDS]    Run the randomised tests long, SECONDS for each front-end (default 600)
  fuzz [SECONDS]    Run each fuzz target for SECONDS (default 600); needs nightly and cargo-fuzz
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let (command, seconds) = match args.as_slice() {
        ["help" | "--help" | "-h"] => return usage(""),
        [command] => (*command, 600),
        [command @ ("soak" | "fuzz"), seconds] => match seconds.parse() {
            Ok(seconds) => (*command, seconds),
            Err(_) => return usage(&format!("`{seconds}` is not a number of seconds")),
        },
        _ => return usage("unknown command"),
    };
    let result = match command {
        "check-cuda" => check_cuda::run(),
        "check-fuzz" => fuzz::check(),
        "soak" => soak::run(seconds),
        "fuzz" => fuzz::run(seconds),
        _ => return usage("unknown command"),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => fail(&message),
    }
}

#[expect(clippy::print_stderr, reason = "a command-line tool speaks to its user")]
fn fail(message: &str) -> ExitCode {
    eprintln!("error: {message}");
    ExitCode::FAILURE
}

#[expect(clippy::print_stderr, reason = "a command-line tool speaks to its user")]
fn usage(message: &str) -> ExitCode {
    if message.is_empty() {
        eprint!("{HELP}");
        return ExitCode::SUCCESS;
    }
    eprintln!("error: {message}\n\n{HELP}");
    ExitCode::from(2)
}

/// Runs a command to its end; an exit status other than 0 is an error that shows the command.
fn sh(command: &mut std::process::Command) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("{command:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}")) }
}
