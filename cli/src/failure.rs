//! What a subcommand ends with when it does not succeed, and the exit code that goes with it.
//!
//! All that a command prints goes through here, where what would steer a terminal is escaped.

use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

use cacheplan::files::{Limit, Shown, Source, replace};
use miette::Report;

/// The exit code of a plan that is not, or no longer, right.
pub(crate) const DRIFT: u8 = 5;

/// The most characters of an error that are shown.
const LONGEST: usize = 10_000;

/// An error with its exit code.
pub(crate) struct Failure {
    report: Report,
    code: u8,
}

impl Failure {
    /// An error of the given exit code, see the command's help.
    pub(crate) fn new(code: u8, report: impl Into<Report>) -> Self {
        Self { report: report.into(), code }
    }

    /// An error with exit code 1.
    pub(crate) fn error(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::new(1, miette::miette!("{}", chain(&error)))
    }

    /// The exit code and the message, for who shows them elsewhere.
    pub(crate) fn said(&self) -> (u8, String) {
        (self.code, self.report.to_string())
    }

    /// Prints the error to stderr.
    pub(crate) fn report(self) -> ExitCode {
        let text = format!("{:?}\n", self.report);
        let end = text.char_indices().nth(LONGEST).map(|(end, _)| end);
        say(&end.map_or(text.clone(), |end| format!("{}…\n", &text[..end])));
        ExitCode::from(self.code)
    }
}

/// An error about a file, with exit code 1.
pub(crate) fn in_file(path: &Path, error: impl std::fmt::Display) -> Failure {
    Failure::new(1, miette::miette!("{}: {error}", Shown(path.display())))
}

/// The text of a file; `-` is what is piped in.
pub(crate) fn read(path: &Path, limit: Limit) -> Result<String, Failure> {
    Source::named(path, limit).and_then(|source| source.text(limit)).map_err(Failure::error)
}

/// Writes a file anew.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), Failure> {
    replace(path, |out| out.write_all(text.as_bytes())).map_err(Failure::error)
}

/// The error's message followed by those of its causes, as far as it does not end with them already.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    std::iter::successors(error.source(), |cause| cause.source()).fold(error.to_string(), |text, cause| {
        let cause = cause.to_string();
        if text.ends_with(&cause) { text } else { format!("{text}: {cause}") }
    })
}

/// Prints data to stdout; a reader that went away (`| head`) ends the command quietly.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    match std::io::stdout().lock().write_all(Shown::printable(text).as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Failure::error(error)),
        _ => Ok(()),
    }
}

/// As [`print`], at once.
pub(crate) fn print_now(text: &str) -> Result<(), Failure> {
    print(text)?;
    match std::io::stdout().lock().flush() {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Failure::error(error)),
        _ => Ok(()),
    }
}

/// Says something about the data on stderr, beside it.
pub(crate) fn note(text: &str) {
    say(&format!("note: {}\n", Shown(text)));
}

/// Writes to stderr; where nobody reads it, there is nobody to tell.
pub(crate) fn say(text: &str) {
    let _ = std::io::stderr().lock().write_all(Shown::printable(text).as_bytes());
}
