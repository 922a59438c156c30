//! What a serving loop does with sequences: admit, grow, fork, cut, finish.

use super::manager::CacheManager;
use crate::BookError;
use crate::book::{CacheBook, Prefix, SequenceId, SlotId, SlotMove, StepMetadata, Work};
use crate::device::error::Result;
use crate::prefix::{Key, PrefixReuse, ReuseLease, TenantId};

impl CacheManager {
    /// Admits a sequence; see [`CacheBook::admit`].
    ///
    /// # Errors
    /// What lacks, or a failing device; nothing has changed then.
    pub fn admit(&mut self, prompt_tokens: u32) -> Result<SequenceId> {
        self.admit_with(|book| book.admit(prompt_tokens))
    }

    /// Admits a sequence that starts from a cached prefix; see [`CacheBook::admit_prefix`].
    ///
    /// # Errors
    /// What lacks, a prefix that does not fit, or a failing device; nothing has changed then.
    pub fn admit_prefix(&mut self, prompt_tokens: u32, prefix: &Prefix) -> Result<SequenceId> {
        self.admit_with(|book| book.admit_prefix(prompt_tokens, prefix))
    }

    /// A second sequence with the same past; see [`CacheBook::fork`].
    ///
    /// # Errors
    /// What lacks, or a failing device; nothing has changed then.
    pub fn fork(&mut self, sequence: SequenceId) -> Result<SequenceId> {
        self.admit_with(|book| book.fork(sequence))
    }

    /// Admits a sequence behind what is cached of its prompt; see [`PrefixReuse::admit`].
    ///
    /// # Errors
    /// As [`PrefixReuse::admit`], or a failing device; the books have not the sequence then.
    pub fn admit_reusing(&mut self, reuse: &mut PrefixReuse, prompt: Key<'_>, tenant: TenantId) -> Result<ReuseLease> {
        self.settle()?;
        let lease = reuse.admit(&mut self.book, prompt, tenant)?;
        self.execute(|book, _| book.finish(lease.sequence()))?;
        Ok(lease)
    }

    /// Admits a sequence as `operation` does in the books.
    ///
    /// # Errors
    /// What `operation` refuses, or a failing device; the books have not the sequence then.
    pub fn admit_with(
        &mut self,
        operation: impl FnOnce(&mut CacheBook) -> Result<SequenceId, BookError>,
    ) -> Result<SequenceId> {
        self.settle()?;
        let sequence = operation(&mut self.book)?;
        self.execute(|book, _| book.finish(sequence))?;
        Ok(sequence)
    }

    /// Makes room for a step's tokens and says where everything lies; see [`CacheBook::step`].
    ///
    /// # Errors
    /// What lacks, or a failing device; nothing has changed then, but that blocks which a window has passed may be
    /// free already.
    pub fn step(&mut self, work: &[Work], metadata: &mut StepMetadata) -> Result<()> {
        self.settle()?;
        self.book.step(work, metadata)?;
        self.execute(|book, copies| book.undo_step(work, copies, false))
    }

    /// As [`CacheManager::step`] for candidates; see [`CacheBook::speculate`].
    ///
    /// # Errors
    /// As [`CacheManager::step`].
    pub fn speculate(&mut self, work: &[Work], metadata: &mut StepMetadata) -> Result<()> {
        self.settle()?;
        self.book.speculate(work, metadata)?;
        self.execute(|book, copies| book.undo_step(work, copies, true))
    }

    /// Cuts a sequence; see [`CacheBook::truncate`].
    ///
    /// # Errors
    /// A cut that the caches cannot express; nothing has changed then. [`ContentsLost`](crate::ManagerError::ContentsLost) if the device
    /// fails while it zeroes the state.
    pub fn truncate(&mut self, sequence: SequenceId, tokens: u32) -> Result<()> {
        self.settle()?;
        self.book.truncate(sequence, tokens)?;
        self.execute_in_place(sequence)
    }

    /// Copies a sequence's state into a checkpoint slot; see [`CacheBook::checkpoint`].
    ///
    /// # Errors
    /// What lacks, or a failing device; nothing has changed then.
    pub fn checkpoint(&mut self, sequence: SequenceId) -> Result<SlotId> {
        self.settle()?;
        let slot = self.book.checkpoint(sequence)?;
        self.execute(|book, _| book.release_checkpoint(slot))?;
        Ok(slot)
    }

    /// Goes back to a checkpoint; see [`CacheBook::rewind`].
    ///
    /// # Errors
    /// A checkpoint that does not fit; nothing has changed then. [`ContentsLost`](crate::ManagerError::ContentsLost) if the device fails
    /// while it copies the state.
    pub fn rewind(&mut self, sequence: SequenceId, checkpoint: SlotId, tokens: u32) -> Result<()> {
        self.settle()?;
        self.book.rewind(sequence, checkpoint, tokens)?;
        self.execute_in_place(sequence)
    }

    /// Takes everything from a sequence, which must not be a lease's; see [`CacheBook::preempt`].
    ///
    /// # Errors
    /// [`BookError::Leased`]; a sequence that holds nothing.
    pub fn preempt(&mut self, sequence: SequenceId) -> Result<(), BookError> {
        self.book.preempt(sequence)
    }

    /// Brings a preempted sequence back; see [`CacheBook::resume`].
    ///
    /// # Errors
    /// What lacks, or a failing device; nothing has changed then.
    pub fn resume(&mut self, sequence: SequenceId, tokens: u32) -> Result<()> {
        self.settle()?;
        self.book.resume(sequence, tokens)?;
        self.execute(|book, _| book.preempt(sequence))
    }

    /// Ends a sequence, wherever it is; see [`CacheBook::finish`].
    ///
    /// # Errors
    /// A stale handle.
    pub fn finish(&mut self, sequence: SequenceId) -> Result<(), BookError> {
        self.book.finish(sequence)?;
        self.host.sequences.remove(&sequence);
        Ok(())
    }

    /// Ends a sequence and keeps its slot; see [`CacheBook::finish_into_checkpoint`].
    ///
    /// # Errors
    /// No quota for a checkpoint; nothing has changed then.
    pub fn finish_into_checkpoint(&mut self, sequence: SequenceId) -> Result<SlotId, BookError> {
        self.book.finish_into_checkpoint(sequence)
    }

    /// Moves live slots to the front; see [`CacheBook::compact_slots`].
    ///
    /// # Errors
    /// A failing device; nothing has moved then.
    pub fn compact_slots(&mut self) -> Result<Vec<SlotMove>> {
        self.settle()?;
        let moves = self.book.compact_slots()?;
        self.execute(|book, _| book.undo_moves(&moves))?;
        Ok(moves)
    }
}
