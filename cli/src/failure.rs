//! What a subcommand ends with when it does not succeed, and the exit code that goes with it.
//!
//! All that a command prints goes through here, where what would steer a terminal is escaped.

use std::fmt::Display;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

use cacheplan::files::{self, Limit, ReplaceError, Shown, Source, refuse_input, replace};
use serde::Serialize;

/// The exit code of a plan that is not, or no longer, right.
pub(crate) const DRIFT: u8 = 5;

/// The most characters of an error that are shown.
const LONGEST: usize = 10_000;

/// An error with its exit code.
pub(crate) struct Failure {
    message: String,
    /// Where in a file it lies.
    excerpt: String,
    /// What an engine refuses a command with, where that is said elsewhere.
    refusal: String,
    code: u8,
}

impl Failure {
    /// An error of the given exit code, see the command's help.
    pub(crate) fn new(code: u8, message: impl Display) -> Self {
        Self { message: message.to_string(), excerpt: String::new(), refusal: String::new(), code }
    }

    /// The same error, with the lines that it is about.
    pub(crate) fn at(self, excerpt: String) -> Self {
        Self { excerpt, ..self }
    }

    /// The same error of a command that an engine refuses so.
    pub(crate) fn refused_for(self, refusal: &str) -> Self {
        Self { refusal: refusal.to_string(), ..self }
    }

    /// What an engine refuses a command with; empty where none does.
    pub(crate) fn refusal(&self) -> &str {
        &self.refusal
    }

    /// The same error, with what would do.
    pub(crate) fn with_advice(self, advice: &str) -> Self {
        Self { message: format!("{}; {advice}", self.message), ..self }
    }

    /// An error with exit code 1.
    pub(crate) fn error(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::new(1, chain(&error))
    }

    /// The same error, where it is that of one of several.
    pub(crate) fn in_place(self, place: &str) -> Self {
        Self { message: format!("{}: {}", Shown(place), self.message), ..self }
    }

    /// What is wrong.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// The exit code and the message, for who shows them elsewhere.
    pub(crate) fn said(self) -> (u8, String) {
        (self.code, self.message)
    }

    /// Prints the error to stderr. A long path or name stays in one piece, so that it can be searched for and copied; without
    /// colours, all control characters of an error are somebody else's.
    pub(crate) fn report(self) -> ExitCode {
        let text = format!("  × {}\n{}\n", self.message.replace('\n', "\n  │ "), self.excerpt);
        let end = text.char_indices().nth(LONGEST).map(|(end, _)| end);
        say(&end.map_or(text.clone(), |end| format!("{}…\n", &text[..end])));
        ExitCode::from(self.code)
    }
}

/// An error about a file, with exit code 1.
pub(crate) fn in_file(path: &Path, error: impl Display) -> Failure {
    Failure::new(1, format!("{}: {error}", Shown(path.display())))
}

/// The text of a file; `-` is what is piped in.
pub(crate) fn read(path: &Path, limit: Limit) -> Result<String, Failure> {
    Source::named(path, limit).and_then(|source| source.text(limit)).map_err(Failure::error)
}

/// Writes a file anew; `-` is stdout. No output takes the place of what the same command reads.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), Failure> {
    if path == Path::new("-") {
        return print(text);
    }
    refuse_input(path).map_err(unwritten)?;
    replace(path, |out| out.write_all(text.as_bytes())).map_err(unwritten)
}

/// Refuses outputs that could not be written, or would take the place of what was read, before anything is computed for them.
pub(crate) fn refuse_places<'a>(outputs: impl IntoIterator<Item = &'a Path>) -> Result<(), Failure> {
    files::refuse_places(outputs.into_iter().filter(|path| *path != Path::new("-"))).map_err(unwritten)
}

/// Refuses outputs in each other's place, before anything is read or begun.
pub(crate) fn refuse_twice<'a>(outputs: impl IntoIterator<Item = &'a Path>) -> Result<(), Failure> {
    files::refuse_twice(outputs.into_iter().filter(|path| *path != Path::new("-"))).map_err(unwritten)
}

pub(crate) fn unwritten(error: ReplaceError) -> Failure {
    let is_usage = matches!(error, ReplaceError::Input { .. } | ReplaceError::Twice { .. });
    Failure::new(if is_usage { 2 } else { 1 }, error)
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
    print_raw(&Shown::printable(text))
}

/// Data as JSON, with a newline at its end.
pub(crate) fn json(data: &impl Serialize) -> Result<String, Failure> {
    Ok(serde_json::to_string_pretty(data).map_err(Failure::error)? + "\n")
}

/// Prints data to stdout as JSON.
pub(crate) fn print_json(data: &impl Serialize) -> Result<(), Failure> {
    print(&json(data)?)
}

/// As [`print`], for text in which nothing is somebody else's.
pub(crate) fn print_raw(text: &str) -> Result<(), Failure> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
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
