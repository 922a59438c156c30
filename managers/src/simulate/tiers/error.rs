//! Why tiers cannot be sized.

use cacheplan_files::Shown;
use cacheplan_planner::PlanError;
use thiserror::Error;

use crate::prefix::PrefixError;
use crate::simulate::SimulateError;

/// Tiers that cannot be sized.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TiersError {
    /// A request that cannot be planned.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A model without anything that a later request could go on from.
    #[error("{model} keeps nothing that a later prompt could go on from: neither keys of all tokens nor states")]
    NoReuse {
        /// The model's type.
        model: String,
    },
    /// A trace without a request that the plan serves.
    #[error(
        "all {requests} requests are longer than the {most} tokens of the plan's `max_seq_len`, the shortest of {shortest}"
    )]
    AllTooLong {
        /// How many there are.
        requests: usize,
        /// The plan's limit.
        most: u64,
        /// Tokens of the shortest.
        shortest: usize,
    },
    /// A device on which nothing is left for prefixes.
    #[error(
        "{found} bytes of caches on the device hold no request of {tokens} tokens, which takes {needed}; a smaller `max_seq_len`, or a larger device"
    )]
    TooSmall {
        /// What the device has.
        found: u64,
        /// What one request takes.
        needed: u64,
        /// Its tokens.
        tokens: usize,
    },
    /// A number that is none of a tier.
    #[error("`{what}` is {found}; {expected} was expected")]
    Value {
        /// What it is of.
        what: &'static str,
        /// What it is.
        found: String,
        /// What would do.
        expected: &'static str,
    },
    /// A value, or a key, that is none of tiers.
    #[error("`{key}`: {why}", key = Shown(.key), why = Shown(.why))]
    Stated {
        /// The key.
        key: String,
        /// Its value.
        found: String,
        /// What is wrong.
        why: String,
    },
    /// A trace that cannot be replayed.
    #[error(transparent)]
    Simulate(#[from] SimulateError),
    /// Pools that cannot share an index.
    #[error(transparent)]
    Prefix(#[from] PrefixError),
}

impl TiersError {
    /// The exit code of a command that ends with it.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Plan(error) => error.exit_code(),
            Self::Value { .. } | Self::Stated { .. } => 2,
            Self::TooSmall { .. } => 3,
            Self::NoReuse { .. } => 4,
            _ => 1,
        }
    }
}
