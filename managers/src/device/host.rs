//! What of a manager's pools lies in host memory; the books count its bytes.

use std::collections::HashMap;

use candle_core::Tensor;

use super::captured::CapturedState;
use super::prefix::PrefixHost;
use crate::book::SequenceId;

/// It outlives the pools, which a resize makes anew.
#[derive(Debug, Default)]
pub(super) struct HostMemory {
    /// Contents of offloaded sequences.
    pub(super) sequences: HashMap<SequenceId, HostCopy>,
    /// Cached prefixes that the pools have no room for.
    pub(super) prefixes: PrefixHost,
}

/// One sequence's contents.
#[derive(Debug)]
pub(super) struct HostCopy {
    /// `[blocks, block_elems]` per paged pool.
    pub(super) blocks: Vec<Tensor>,
    pub(super) state: CapturedState,
}
