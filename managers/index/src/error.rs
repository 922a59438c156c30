//! Why a batch of events was refused.

use thiserror::Error;

/// Why a batch of events was refused; nothing of it was kept.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Error {
    /// The batch is longer than any that an engine sends.
    #[error("a batch of events of {found} bytes; at most {most} are read")]
    TooLong {
        /// Its bytes.
        found: usize,
        /// How many are read.
        most: usize,
    },
    /// The batch ends within a value.
    #[error("a batch of events ends at byte {at}, within {field}")]
    Ends {
        /// Where it ends.
        at: usize,
        /// What is read there.
        field: &'static str,
    },
    /// Another value than the field has.
    #[error("{event}: {field} is {found}, not {wanted}")]
    Field {
        /// The event.
        event: &'static str,
        /// Its field.
        field: &'static str,
        /// What stands there.
        found: String,
        /// What would do.
        wanted: &'static str,
    },
    /// No event of TensorRT-LLM.
    #[error("events of TensorRT-LLM: {0}")]
    Json(String),
    /// An event that is not known.
    #[error("an event of type `{0}`; BlockStored, BlockRemoved and AllBlocksCleared are known")]
    Event(String),
    /// There are as many workers as the index was given room for.
    #[error(
        "worker {worker} would be one more than the {most} that the index has room for; forget one, or make it with more"
    )]
    Workers {
        /// The worker that was refused.
        worker: u64,
        /// How many there may be.
        most: usize,
    },
}
