//! Sequences in host memory; the books count their bytes.

use std::collections::HashMap;

use candle_core::Tensor;

use super::mamba::CapturedState;
use crate::book::SequenceId;

/// Contents of offloaded sequences.
pub(super) type HostTier = HashMap<SequenceId, HostCopy>;

/// One sequence's contents.
#[derive(Debug)]
pub(super) struct HostCopy {
    /// `[blocks, block_elems]` per paged pool.
    pub(super) blocks: Vec<Tensor>,
    pub(super) state: CapturedState,
}
