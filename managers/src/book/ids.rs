//! Identities of sequences, and of the units that pools hand out.
//!
//! An id says which unit, never where it lies: the device half maps it to bytes.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One block of a KV pool: the keys and values of `tokens_per_block` tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BlockId(pub u32);

/// One slot of a state pool: the recurrent and convolution state of one sequence at one length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SlotId(pub u32);

/// Tells the uses of slots apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SlotRole {
    /// The state of a running sequence.
    Live,
    /// A state kept for prefix reuse.
    Checkpoint,
}

impl fmt::Display for SlotRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Live => "live",
            Self::Checkpoint => "checkpoint",
        })
    }
}

/// A handle of one sequence. It is checked at every use: stale and foreign ones are errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId {
    pub(super) book: u32,
    pub(super) index: u32,
    pub(super) generation: u32,
}

impl fmt::Display for SequenceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("sequence {}.{}", self.index, self.generation))
    }
}
