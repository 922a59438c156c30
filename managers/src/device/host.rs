//! Sequences in host memory.

use std::collections::HashMap;

use candle_core::Tensor;
use serde::Serialize;

use super::mamba::CapturedState;
use crate::ManagerError;
use crate::book::SequenceId;

/// Contents of offloaded sequences, within a limit of bytes.
#[derive(Debug)]
pub(crate) struct HostTier {
    capacity: u64,
    used: u64,
    sequences: HashMap<SequenceId, HostCopy>,
}

/// One sequence's contents.
#[derive(Debug)]
pub(crate) struct HostCopy {
    /// `[blocks, block_elems]` per paged pool.
    pub(crate) blocks: Vec<Tensor>,
    pub(crate) state: CapturedState,
    pub(crate) bytes: u64,
}

/// How full the host tier is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HostStats {
    /// Bytes that it may hold.
    pub capacity_bytes: u64,
    /// Bytes that it holds.
    pub used_bytes: u64,
    /// Sequences in it.
    pub sequences: u64,
}

impl HostTier {
    pub(crate) fn new(capacity: u64) -> Self {
        Self { capacity, used: 0, sequences: HashMap::new() }
    }

    pub(crate) fn set_capacity(&mut self, capacity: u64) {
        self.capacity = capacity;
    }

    pub(crate) fn stats(&self) -> HostStats {
        let sequences = self.sequences.len() as u64;
        HostStats { capacity_bytes: self.capacity, used_bytes: self.used, sequences }
    }

    pub(crate) fn check_room(&self, bytes: u64) -> Result<(), ManagerError> {
        let free = self.capacity.saturating_sub(self.used);
        if bytes <= free {
            return Ok(());
        }
        Err(ManagerError::OutOfHostMemory { needed: bytes, free, capacity: self.capacity })
    }

    pub(crate) fn insert(&mut self, id: SequenceId, copy: HostCopy) {
        self.used += copy.bytes;
        self.sequences.insert(id, copy);
    }

    pub(crate) fn get(&self, id: SequenceId) -> Option<&HostCopy> {
        self.sequences.get(&id)
    }

    pub(crate) fn remove(&mut self, id: SequenceId) {
        if let Some(copy) = self.sequences.remove(&id) {
            self.used -= copy.bytes;
        }
    }
}
