//! Why there is no plan.

use thiserror::Error;

use crate::size::ByteSize;

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The budget does not hold one sequence.
    #[error(transparent)]
    DoesNotFit(Box<Shortfall>),
    /// The grouping policy refuses the resources.
    #[error("{0}")]
    Grouping(String),
    /// The budget contradicts itself or the request.
    #[error("{0}")]
    Budget(String),
    /// A product of counts and bytes above 64 bits.
    #[error("pool `{pool}` would need more than {} bytes; lower max_seq_len or max_batch_size", u64::MAX)]
    TooLarge {
        /// The pool's name.
        pool: String,
    },
}

/// What is missing, and where.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "does not fit: {sequences} sequence(s) of {max_seq_len} tokens need {} of caches, {} are there; short of {} ({shortfall} bytes), most of it `{capped_by}`",
    ByteSize(*needed), ByteSize(*available), ByteSize(*shortfall)
)]
pub struct Shortfall {
    /// Sequences that were asked for.
    pub sequences: u64,
    /// Their length.
    pub max_seq_len: u64,
    /// Bytes that the caches need at least.
    pub needed: u64,
    /// Bytes that the budget leaves for them.
    pub available: u64,
    /// `needed - available`, or more where a fraction applies.
    pub shortfall: u64,
    /// The pool that needs the most.
    pub capped_by: String,
}

impl PlanError {
    /// The exit code of a command that ends with this error: 3 where the budget is too small, else 1.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::DoesNotFit(_) => 3,
            _ => 1,
        }
    }
}
