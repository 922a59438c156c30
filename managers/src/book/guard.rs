//! Sequences that end when whoever holds them lets go.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::ids::SequenceId;

/// The sequences that guards hold, and those of dropped ones, which the book ends before it is next asked for anything.
#[derive(Debug, Default)]
pub(crate) struct Guarded {
    /// Whether any were dropped, so that nobody waits for the lists where none were.
    any_dropped: AtomicBool,
    lists: Mutex<Lists>,
}

#[derive(Debug, Default)]
struct Lists {
    held: Vec<SequenceId>,
    dropped: Vec<SequenceId>,
}

impl Guarded {
    fn lists(&self) -> MutexGuard<'_, Lists> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a guard of a sequence.
    fn let_go(&self, sequence: SequenceId, dropped: bool) {
        let mut lists = self.lists();
        if let Some(at) = lists.held.iter().position(|&held| held == sequence) {
            lists.held.swap_remove(at);
        }
        if dropped {
            lists.dropped.push(sequence);
            self.any_dropped.store(true, Ordering::Release);
        }
    }

    /// Whether a guard holds the sequence.
    pub(super) fn holds(&self, sequence: SequenceId) -> bool {
        self.lists().held.contains(&sequence)
    }

    /// The dropped ones since it was asked last.
    pub(super) fn take_dropped(&self) -> Vec<SequenceId> {
        if !self.any_dropped() {
            return Vec::new();
        }
        self.any_dropped.store(false, Ordering::Release);
        std::mem::take(&mut self.lists().dropped)
    }

    /// Whether any were dropped.
    pub(super) fn any_dropped(&self) -> bool {
        self.any_dropped.load(Ordering::Acquire)
    }
}

/// A sequence that its book ends when this is dropped.
#[derive(Debug)]
pub(crate) struct SequenceGuard {
    sequence: SequenceId,
    guarded: Option<Arc<Guarded>>,
}

impl SequenceGuard {
    pub(super) fn new(sequence: SequenceId, guarded: &Arc<Guarded>) -> Self {
        guarded.lists().held.push(sequence);
        Self { sequence, guarded: Some(Arc::clone(guarded)) }
    }

    /// The sequence.
    pub(crate) fn id(&self) -> SequenceId {
        self.sequence
    }

    /// Leaves the sequence to the caller.
    pub(crate) fn release(mut self) -> SequenceId {
        if let Some(guarded) = self.guarded.take() {
            guarded.let_go(self.sequence, false);
        }
        self.sequence
    }
}

impl Drop for SequenceGuard {
    fn drop(&mut self) {
        if let Some(guarded) = self.guarded.take() {
            guarded.let_go(self.sequence, true);
        }
    }
}
