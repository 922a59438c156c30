//! What a subcommand ends with when it does not succeed, and the exit code that goes with it.

use std::io::ErrorKind;
use std::path::Path;
use std::process::ExitCode;

use miette::Report;

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

    /// Prints the error to stderr.
    pub(crate) fn report(self) -> ExitCode {
        say(&format!("{:?}\n", self.report));
        ExitCode::from(self.code)
    }
}

/// An error about a file, with exit code 1.
pub(crate) fn in_file(path: &Path, error: impl std::fmt::Display) -> Failure {
    Failure::new(1, miette::miette!("{}: {error}", path.display()))
}

/// The text of a file; `-` is what is piped in.
pub(crate) fn read(path: &Path) -> Result<String, Failure> {
    let text =
        if path == Path::new("-") { std::io::read_to_string(std::io::stdin()) } else { std::fs::read_to_string(path) };
    text.map_err(|error| match error.kind() {
        ErrorKind::InvalidData => in_file(path, "this is no text"),
        _ => in_file(path, error),
    })
}

/// Writes a file anew.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|error| in_file(path, error))
}

/// The error's message followed by those of its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    std::iter::successors(error.source(), |cause| cause.source())
        .fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// Prints data to stdout; a reader that went away (`| head`) ends the command quietly.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    use std::io::Write;
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Failure::error(error)),
        _ => Ok(()),
    }
}

/// Says something about the data on stderr, beside it.
pub(crate) fn note(text: &str) {
    say(&format!("note: {text}\n"));
}

/// Writes to stderr; where nobody reads it, there is nobody to tell.
fn say(text: &str) {
    use std::io::Write;
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}
