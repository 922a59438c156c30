//! Why a manifest is not read.

use std::fmt;

use cacheplan_files::{Shown, SourceError};
use thiserror::Error;

/// A place in a manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The file, as its caller names it.
    pub file: String,
    /// The line, counted from one.
    pub line: Option<usize>,
    /// The keys that lead there, such as `spec.template.spec.containers[0].args[3]`; empty in a script.
    pub path: String,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Shown(&self.file))?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if !self.path.is_empty() {
            write!(f, ": {}", Shown(&self.path))?;
        }
        Ok(())
    }
}

/// A manifest, or a part of one, that is not read. No message has a value of a variable or of a flag in it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ManifestError {
    /// Too long, or no text.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// No YAML, or no script.
    #[error("{at}: {reason}")]
    Syntax {
        /// Where.
        at: Place,
        /// What is wrong.
        reason: String,
    },
    /// What would have to be computed, or is left out of what is read.
    #[error("{at}: {what} is not read; {instead}")]
    NotRead {
        /// Where.
        at: Place,
        /// What was found.
        what: String,
        /// What would do.
        instead: &'static str,
    },
    /// A value that the manifest does not state, where the engine needs it.
    #[error("{at}: {} {why}; {instead}", Shown(.name))]
    NotKnown {
        /// Where.
        at: Place,
        /// What it is written as, such as `$MODEL`.
        name: String,
        /// Why it is not known.
        why: &'static str,
        /// What would do.
        instead: &'static str,
    },
    /// A file of options that the engine does not take, in its words.
    #[error("{at}: {engine} would not start: {said}", said = Shown(.said))]
    Refused {
        /// Where.
        at: Place,
        /// The engine.
        engine: &'static str,
        /// Its message.
        said: String,
    },
    /// A list where a text belongs, and the like.
    #[error("{at}: this is {found}; {expected} was expected")]
    Shape {
        /// Where.
        at: Place,
        /// What was found.
        found: &'static str,
        /// What belongs there.
        expected: &'static str,
    },
    /// More than any manifest has.
    #[error("{at}: {what} of more than {most} is not read")]
    TooMuch {
        /// Where.
        at: Place,
        /// What there is too much of.
        what: &'static str,
        /// The limit.
        most: usize,
    },
    /// Nothing in the file starts an engine.
    #[error(
        "{}: no command that starts an engine was found{}; looked for `vllm serve`, `sglang.launch_server`, \
         `llama-server`, `trtllm-serve` and `dynamo.*` in scripts, compose files, objects of Kubernetes (also KServe, \
         Dynamo, Ray), values of the charts of llm-d and of vLLM's production stack, and an engine's own YAML",
        Shown(.file), .seen
    )]
    NoCommand {
        /// The file.
        file: String,
        /// What was found instead.
        seen: String,
    },
}
