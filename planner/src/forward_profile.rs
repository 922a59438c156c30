//! What a profiled forward showed.

use serde::{Deserialize, Serialize};

/// What a profiled forward showed; it replaces what would be assumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForwardProfile {
    /// Bytes that stay resident without the caches: weights and what the process needs. The weights of a draft model are
    /// counted beside them.
    pub resident_bytes: u64,
    /// Peak bytes of one forward beyond the resident ones.
    pub forward_bytes: u64,
    /// Device bytes free once the weights are loaded and the first caches are dropped.
    pub free_bytes: u64,
}
