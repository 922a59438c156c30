//! Sequences that end when whoever holds them lets go.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::ids::SequenceId;

/// The sequences of dropped guards, which the book ends before it is next asked for anything.
#[derive(Debug, Default)]
pub(crate) struct Dropped {
    /// Whether there are any, so that nobody waits for the list where there are none.
    any: AtomicBool,
    sequences: Mutex<Vec<SequenceId>>,
}

impl Dropped {
    fn push(&self, sequence: SequenceId) {
        self.sequences.lock().unwrap_or_else(PoisonError::into_inner).push(sequence);
        self.any.store(true, Ordering::Release);
    }

    /// Those since it was asked last.
    pub(super) fn take(&self) -> Vec<SequenceId> {
        if !self.any() {
            return Vec::new();
        }
        self.any.store(false, Ordering::Release);
        std::mem::take(&mut *self.sequences.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether there are any.
    pub(super) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }
}

/// A sequence that its book ends when this is dropped.
#[derive(Debug)]
pub(crate) struct SequenceGuard {
    sequence: SequenceId,
    dropped: Option<Arc<Dropped>>,
}

impl SequenceGuard {
    pub(super) fn new(sequence: SequenceId, dropped: &Arc<Dropped>) -> Self {
        Self { sequence, dropped: Some(Arc::clone(dropped)) }
    }

    /// The sequence.
    pub(crate) fn id(&self) -> SequenceId {
        self.sequence
    }

    /// Leaves the sequence to the caller.
    pub(crate) fn release(mut self) -> SequenceId {
        self.dropped = None;
        self.sequence
    }
}

impl Drop for SequenceGuard {
    fn drop(&mut self) {
        if let Some(dropped) = self.dropped.take() {
            dropped.push(self.sequence);
        }
    }
}
