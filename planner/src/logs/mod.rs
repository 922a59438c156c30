//! What an engine logs when it starts, read from its log.
//!
//! [`EngineLog::read`] goes through the log once, line by line, and keeps numbers only: no text of a log is ever passed on.
//! [`EngineLog::check`] sets a plan beside them, [`start`] beside what an engine says before it allocates. Each engine's wordings stand in a file of their own.

mod as_engine;
mod calibration;
mod check;
pub(crate) mod dialect;
pub(crate) mod fact;
pub mod failures;
pub(crate) mod line;
mod lines;
mod reader;
mod rules;
pub mod start;
mod utf16;
pub(crate) mod wording;

use std::collections::BTreeMap;

use thiserror::Error;

use crate::engines::{Engine, Version};

pub use calibration::{MeasuredError, NothingMeasured};
pub use check::{Drift, LogCheck, Row};
pub(crate) use dialect::LogDialect;
pub use fact::{Fact, Unit};
use failures::Line;
pub use wording::Logged;

/// What a log says of an engine's last complete start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineLog {
    /// The engine whose words these are.
    pub engine: Engine,
    /// Its version, where the log says it.
    pub version: Option<Version>,
    /// Starts in the log, the broken ones included.
    pub starts: u64,
    /// Whether the log ends in a start after the one that was read.
    pub is_cut: bool,
    facts: BTreeMap<Fact, Logged>,
}

/// A log that says nothing that can be relied on.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LogError {
    /// The log could not be read to its end.
    #[error("line {line}: {source}")]
    Io {
        /// The line.
        line: u64,
        /// Why.
        source: std::io::Error,
    },
    /// No line is worded as a known engine's.
    #[error(
        "none of its {lines} lines is of the start of {}; expected, for instance, `{}`", engines(*asked), example(*asked)
    )]
    Foreign {
        /// How many lines there are.
        lines: u64,
        /// The only engine that was looked for.
        asked: Option<Engine>,
    },
    /// The only start, or every start, ends before the sizes of the caches.
    #[error(
        "this looks like {engine}, but it ends before `{expected}`: wait until the engine has started, and pass its whole log"
    )]
    Torn {
        /// The engine.
        engine: Engine,
        /// The line that says what the caches are.
        expected: &'static str,
    },
    /// The start ends before the sizes of the caches, with an error.
    #[error("{engine} did not start: {why} (line {line})")]
    Failed {
        /// The engine.
        engine: Engine,
        /// The first line that says it: what follows is mostly the end of other processes.
        line: u64,
        /// Why, in words of ours.
        why: &'static str,
        /// The line that says it.
        said: Line,
    },
    /// Lines of several engines.
    #[error("lines of both {} and {}; pass the log of one engine, or name it with --as", .0, .1)]
    Mixed(Engine, Engine),
    /// A number that cannot be.
    #[error("line {line} has a number that is more than any device has; the log is damaged there")]
    TooLarge {
        /// The line.
        line: u64,
    },
}

impl LogError {
    /// The same, where its line says what a command was found to be refused for.
    #[must_use]
    pub fn told_by(self, refusal: &str) -> Self {
        match self {
            Self::Failed { engine, line, said, .. } if said.says(refusal) => {
                Self::Failed { engine, line, why: "what its command is refused for", said }
            }
            other => other,
        }
    }
}

fn engines(asked: Option<Engine>) -> String {
    let names = Engine::all().iter().map(|engine| engine.name()).collect::<Vec<&str>>().join(", ");
    asked.map_or(names, |engine| engine.to_string())
}

fn example(asked: Option<Engine>) -> &'static str {
    asked.or(Engine::all().first().copied()).map_or("", |engine| engine.dialect().example)
}

impl EngineLog {
    /// What it says of one thing.
    pub fn get(&self, fact: Fact) -> Option<Logged> {
        self.facts.get(&fact).copied()
    }

    /// Everything that it says.
    pub fn facts(&self) -> impl Iterator<Item = (Fact, Logged)> {
        self.facts.iter().map(|(fact, logged)| (*fact, *logged))
    }

    /// A number that was printed in full.
    fn count(&self, fact: Fact) -> Option<u64> {
        self.get(fact).map(Logged::middle)
    }

    fn dialect(&self) -> &'static LogDialect {
        self.engine.dialect()
    }

    fn switch(&self, fact: Fact) -> Option<bool> {
        self.get(fact).map(|on| on.low == 1)
    }

    /// Whether prefixes are kept for reuse.
    pub fn prefix_caching(&self) -> Option<bool> {
        let off = self.switch(Fact::NoPrefixCaching).map(|off| !off);
        self.switch(Fact::PrefixCaching).or(off)
    }
}
