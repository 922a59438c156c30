//! Identities of the units that pools hand out.
//!
//! An id says which unit, never where it lies: the device half maps it to bytes.

use serde::{Deserialize, Serialize};

/// One block of a KV pool: the keys and values of `tokens_per_block` tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BlockId(pub u32);

/// One slot of a state pool: the recurrent and convolution state of one sequence at one length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SlotId(pub u32);
