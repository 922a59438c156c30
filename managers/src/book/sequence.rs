//! Sequences and the handles that name them.

use std::sync::atomic::{AtomicU32, Ordering};

use super::host::Span;
use super::ids::{SequenceId, SlotId};
use super::table::BlockTable;
use crate::book::error::{BookError, Result};

/// Tells where a sequence's caches are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residency {
    /// In the pools.
    Resident,
    /// Nowhere: it was preempted and must be computed again.
    Preempted,
    /// In host memory.
    Offloaded,
}

impl Residency {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Resident => "resident",
            Self::Preempted => "preempted",
            Self::Offloaded => "offloaded",
        }
    }
}

/// One sequence: what it holds and how far it is.
#[derive(Clone, Debug)]
pub(crate) struct Sequence {
    pub(crate) residency: Residency,
    /// Tokens whose caches are computed or being computed by the current step.
    pub(crate) tokens: u32,
    /// The row and the candidates of an uncommitted speculative step.
    pub(crate) draft: Option<Draft>,
    /// One table per paged pool.
    pub(crate) tables: Vec<BlockTable>,
    pub(crate) slot: Option<SlotId>,
    /// What it held before it was offloaded, per paged pool.
    pub(crate) parked: Vec<Span>,
    /// The last step it stood in, to find duplicates.
    pub(crate) step: u64,
}

impl Sequence {
    pub(crate) fn resident(tokens: u32, tables: Vec<BlockTable>, slot: Option<SlotId>) -> Self {
        Self { residency: Residency::Resident, tokens, draft: None, tables, slot, parked: Vec::new(), step: 0 }
    }
}

/// An uncommitted speculative step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draft {
    /// Its row in the draft pools, in plans with states.
    pub(crate) row: Option<u32>,
    pub(crate) candidates: u32,
}

/// All sequences of one book, by handle.
#[derive(Debug)]
pub(crate) struct Sequences {
    book: u32,
    entries: Vec<Entry>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Entry {
    generation: u32,
    sequence: Option<Sequence>,
}

impl Sequences {
    pub(crate) fn new() -> Self {
        static NEXT_BOOK: AtomicU32 = AtomicU32::new(0);
        Self { book: NEXT_BOOK.fetch_add(1, Ordering::Relaxed), entries: Vec::new(), free: Vec::new() }
    }

    pub(crate) fn insert(&mut self, sequence: Sequence) -> SequenceId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry { generation: 0, sequence: None });
            self.entries.len() as u32 - 1
        });
        let entry = &mut self.entries[index as usize];
        entry.sequence = Some(sequence);
        SequenceId { book: self.book, index, generation: entry.generation }
    }

    pub(crate) fn remove(&mut self, id: SequenceId) -> Result<Sequence> {
        self.get(id)?;
        let entry = &mut self.entries[id.index as usize];
        let sequence = entry.sequence.take().ok_or(BookError::StaleSequence(id))?;
        // An index that has had every generation is retired, so that no handle is ever given out twice.
        if let Some(next) = entry.generation.checked_add(1) {
            entry.generation = next;
            self.free.push(id.index);
        }
        Ok(sequence)
    }

    pub(crate) fn get(&self, id: SequenceId) -> Result<&Sequence> {
        let entry = self.entries.get(id.index as usize).filter(|_| id.book == self.book);
        let entry = entry.ok_or(BookError::ForeignSequence(id))?;
        entry.sequence.as_ref().filter(|_| entry.generation == id.generation).ok_or(BookError::StaleSequence(id))
    }

    pub(crate) fn get_mut(&mut self, id: SequenceId) -> Result<&mut Sequence> {
        let entry = self.entries.get_mut(id.index as usize).filter(|_| id.book == self.book);
        let entry = entry.ok_or(BookError::ForeignSequence(id))?;
        entry.sequence.as_mut().filter(|_| entry.generation == id.generation).ok_or(BookError::StaleSequence(id))
    }

    /// All sequences with their handles.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (SequenceId, &Sequence)> {
        self.entries.iter().enumerate().filter_map(|(index, entry)| {
            let id = SequenceId { book: self.book, index: index as u32, generation: entry.generation };
            entry.sequence.as_ref().map(|sequence| (id, sequence))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_never_given_out_twice() {
        let mut sequences = Sequences::new();
        let empty = || Sequence::resident(0, Vec::new(), None);
        let first = sequences.insert(empty());
        sequences.remove(first).unwrap();
        sequences.entries[0].generation = u32::MAX;
        let last = sequences.insert(empty());
        assert_eq!((last.index, last.generation), (0, u32::MAX));
        sequences.remove(last).unwrap();
        let next = sequences.insert(empty());
        assert_eq!((next.index, next.generation), (1, 0));
        for stale in [first, last] {
            assert_eq!(sequences.get(stale).unwrap_err(), BookError::StaleSequence(stale));
        }
    }
}
