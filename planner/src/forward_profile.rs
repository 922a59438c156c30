//! What a profiled forward showed.

use serde::{Deserialize, Serialize};

use crate::size;

/// What a profiled forward showed; it replaces what would be assumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForwardProfile {
    /// Bytes that stay resident without the caches: weights and what the process needs. The weights of a draft model are
    /// counted beside them.
    #[serde(deserialize_with = "size::bytes")]
    pub resident_bytes: u64,
    /// Peak bytes of one forward beyond the resident ones.
    #[serde(deserialize_with = "size::bytes")]
    pub forward_bytes: u64,
    /// Device bytes free once the weights are loaded and the first caches are dropped.
    #[serde(deserialize_with = "size::bytes")]
    pub free_bytes: u64,
}
