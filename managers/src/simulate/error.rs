//! What can go wrong in a simulation.

use std::io;

use cacheplan_files::Limit;
use cacheplan_files::Shown;
use thiserror::Error;

use crate::prefix::PrefixError;

/// A trace that cannot be read or a scenario that cannot be run.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SimulateError {
    /// The trace cannot be read.
    #[error("trace: {shown}", shown = Shown(.0))]
    Io(#[from] io::Error),
    /// A line of the trace is not a request.
    #[error("trace line {line}: {source}; expected {{\"prompt\": …}} or {{\"hash_ids\": …, \"input_length\": …}}", source = Shown(.source))]
    Line {
        /// Counted from 1.
        line: usize,
        /// What the parser found.
        source: serde_json::Error,
    },
    /// A trace of more than is read.
    #[error("trace line {line}: a line of 8 MiB, 4 million lines, or more requests before it than {} bytes hold", Limit::TRACE.bytes)]
    TooLong {
        /// Counted from 1.
        line: usize,
    },
    /// A request of the trace contradicts itself.
    #[error("trace line {line}: {blocks} blocks of 512 tokens cannot hold {tokens} tokens")]
    BlockCount {
        /// Counted from 1.
        line: usize,
        /// How many hash ids it has.
        blocks: usize,
        /// Its input length.
        tokens: usize,
    },
    /// More work than a simulation does.
    #[error(
        "the requests have {tokens} tokens in {steps} steps; fewer requests, or a larger max_num_tokens of the plan, would do"
    )]
    TooMuch {
        /// Prompts and outputs.
        tokens: usize,
        /// How often a step's tokens fit in.
        steps: usize,
    },
    /// One request alone needs more than there is.
    #[error("request {request} needs {needed} KV tokens, at most {available} can be had")]
    TooLarge {
        /// Counted from 0.
        request: usize,
        /// Prompt and output.
        needed: usize,
        /// The size of the pool.
        available: usize,
    },
    /// The cache refused the scenario.
    #[error(transparent)]
    Prefix(#[from] PrefixError),
}
