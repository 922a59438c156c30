//! What is wrong with a budget, and where the value at fault came from.

use std::fmt;
use std::ops::Range;

use cacheplan_files::Shown;
use serde::Serialize;
use thiserror::Error;

/// Where a value came from, the strongest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// A flag of the command line, `--grouping`.
    Flag(String),
    /// What somebody who has no flags states it by: an argument of Python, a key of an engine's file, a box of the page.
    Argument(String),
    /// Nobody stated it to this engine, which has a default.
    Engine(String),
    /// An environment variable.
    Environment(String),
    /// A line of the budget file, counted from 1.
    File {
        /// The file's name.
        name: String,
        /// The line, where it is known.
        line: Option<usize>,
    },
    /// Nobody stated it, but a device is stated, of which this is the usual share.
    Device,
    /// Nobody stated it.
    Default,
}

impl Origin {
    /// Whether somebody stated the value.
    pub const fn is_stated(&self) -> bool {
        !matches!(self, Self::Device | Self::Default)
    }

    /// Whether it is the usual share of the device that was stated.
    pub const fn is_of_device(&self) -> bool {
        matches!(self, Self::Device)
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(name) => write!(f, "flag {name}"),
            Self::Argument(name) => f.write_str(name),
            Self::Engine(name) => write!(f, "{name}'s default"),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::File { name, line: Some(line) } => write!(f, "{name}:{line}"),
            Self::File { name, line: None } => f.write_str(name),
            Self::Device => f.write_str("default for the stated device"),
            Self::Default => f.write_str("default"),
        }
    }
}

/// A budget that cannot be read or contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}: {}{}", Shown(place(origin.as_ref())), Shown(message), hint(nearest.as_deref()))]
pub struct BudgetError {
    /// Where the value at fault came from; `None` where values of several places contradict each other.
    pub origin: Option<Origin>,
    /// The bytes of the file that are at fault.
    pub span: Option<Range<usize>>,
    /// What is wrong and what would do.
    pub message: String,
    /// The known key nearest to an unknown one.
    pub nearest: Option<String>,
}

impl BudgetError {
    pub(crate) fn new(origin: Option<Origin>, message: impl Into<String>) -> Self {
        Self { origin, span: None, message: message.into(), nearest: None }
    }

    /// The exit code of a command that ends with this error: 2 where what was asked is wrong by itself, else 1.
    pub const fn exit_code(&self) -> u8 {
        if matches!(self.origin, Some(Origin::Flag(_) | Origin::Argument(_) | Origin::Engine(_))) { 2 } else { 1 }
    }
}

fn place(origin: Option<&Origin>) -> String {
    origin.map_or_else(|| "the configuration".into(), Origin::to_string)
}

fn hint(nearest: Option<&str>) -> String {
    nearest.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default()
}

/// Serde's message without the names of Rust's types.
pub(crate) fn in_words(message: &str) -> String {
    let words = [
        // TOML's own integers are wider than any count.
        (" as i128, expected u64", ", expected one below 2^64"),
        (", expected u64", ", expected a whole number"),
        (", expected u32", ", expected a whole number"),
        (", expected f64", ", expected a number"),
        (", expected struct ", ", expected the section "),
        // Only lengths are one of several things with a value.
        ("wanted exactly 1 element", "expected one of `fixed`, `uniform`, `lognormal`, `histogram`, `file`"),
    ];
    words.iter().fold(message.to_owned(), |message, (rust, words)| message.replace(rust, words))
}

/// The expected key nearest to the unknown one, read from serde's own message.
pub(crate) fn nearest_key(message: &str) -> Option<String> {
    let mut quoted = message.strip_prefix("unknown ")?.split('`').skip(1).step_by(2);
    let unknown = quoted.next()?;
    nearest(unknown, quoted)
}

/// The known name that `unknown` was probably meant to be.
pub(crate) fn nearest<'a>(unknown: &str, known: impl Iterator<Item = &'a str>) -> Option<String> {
    known
        .map(|known| (Shown(unknown).distance(known), known))
        .min()
        .filter(|(distance, known)| *distance <= known.len().div_ceil(2))
        .map(|(_, known)| known.to_owned())
}
