//! The limits of an engine's steps.

use serde::Serialize;

/// The limits that an engine starts with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// The longest sequence, in tokens.
    pub max_seq_len: u64,
    /// The most sequences in a step, where it has such a limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_batch_size: Option<u64>,
    /// The most tokens in a step.
    pub max_num_tokens: u64,
}
