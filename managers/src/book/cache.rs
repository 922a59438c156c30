//! The bookkeeping of all pools at once: sequences that own their blocks and slots.

use std::sync::Arc;

use cacheplan_planner::{CachePlan, SlotDomain};

use super::guard::{Dropped, SequenceGuard};
use super::host::HostUse;
use super::layout::{Layout, Windows};
use super::sequence::{Residency, Sequence, Sequences};
use super::table::{BlockTable, shortage};
use super::{BlockAllocator, BlockId, PoolOp, SequenceId, SlotAllocator, SlotId, SlotRole};
use crate::book::error::BookError;

/// Who holds which block and slot.
///
/// Every operation either does all of its work or returns an error and has changed nothing.
/// Changes of pool contents are queued as [`PoolOp`]s; whoever owns the tensors executes them in order
/// ([`CacheBook::take_ops`]) before the next kernel runs.
#[derive(Debug)]
pub struct CacheBook {
    pub(crate) layout: Arc<Layout>,
    pub(crate) blocks: Vec<BlockAllocator>,
    pub(crate) slots: SlotAllocator,
    /// Checkpoints in pools of their own, where they are no slots.
    pub(crate) checkpoint_only: Option<SlotAllocator>,
    pub(crate) sequences: Sequences,
    pub(crate) ops: Vec<PoolOp>,
    /// Refused requests per paged pool, and for want of a slot of either role.
    pub(crate) refused: Vec<u64>,
    pub(crate) refused_slots: u64,
    pub(crate) refused_checkpoints: u64,
    pub(crate) steps: u64,
    /// Rows of the draft pools that no uncommitted speculative step uses.
    pub(crate) free_rows: Vec<u32>,
    /// Bytes of the host tier.
    pub(crate) host: HostUse,
    /// Sequences whose guards were dropped.
    dropped: Arc<Dropped>,
    /// Checkpoints that hold no state, since none could be stored in them.
    spoiled: Vec<SlotId>,
    /// What the current step needs, reused between steps.
    pub(crate) growths: Vec<super::table::Growth>,
}

/// A cached prefix that a new sequence starts from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prefix {
    /// Tokens that the prefix covers.
    pub tokens: u32,
    /// Its blocks per paged pool, from the first one that the pool's window still shows.
    pub blocks: Vec<Vec<BlockId>>,
    /// The checkpoint after the prefix's last token, in plans with states.
    pub state: Option<SlotId>,
}

/// Where the state that a sequence starts from lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StateAt {
    /// In a checkpoint.
    Checkpoint(SlotId),
    /// In a unit of the host memory of cached prefixes.
    Host(u32),
}

/// A slot that was moved by [`CacheBook::compact_slots`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotMove {
    /// Whose slot.
    pub sequence: SequenceId,
    /// Where it was.
    pub from: SlotId,
    /// Where it is.
    pub to: SlotId,
}

impl CacheBook {
    /// Empty books for the pools of a plan.
    ///
    /// # Errors
    /// A plan that contradicts itself.
    pub fn new(plan: &CachePlan) -> Result<Self, BookError> {
        Self::with_windows(plan, Windows::Sliding)
    }

    /// As [`CacheBook::new`] with a choice for windowed pools.
    ///
    /// # Errors
    /// A plan that contradicts itself.
    pub fn with_windows(plan: &CachePlan, windows: Windows) -> Result<Self, BookError> {
        let layout = Arc::new(Layout::new(plan, windows)?);
        Ok(Self {
            blocks: layout.paged.iter().map(|spec| BlockAllocator::new(spec.blocks, spec.reserved)).collect(),
            slots: SlotAllocator::new(layout.slots)?,
            checkpoint_only: layout
                .checkpoints_apart
                .map(|units| SlotAllocator::new(checkpoint_only(units)))
                .transpose()?,
            sequences: Sequences::new(),
            ops: Vec::new(),
            refused: vec![0; layout.paged.len()],
            refused_slots: 0,
            refused_checkpoints: 0,
            steps: 0,
            free_rows: layout.draft_rows.clone().rev().collect(),
            host: HostUse::default(),
            dropped: Arc::default(),
            spoiled: Vec::new(),
            growths: Vec::new(),
            layout,
        })
    }

    /// The pools' geometry.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The queued changes of pool contents, which the caller must execute in order.
    pub fn take_ops(&mut self) -> Vec<PoolOp> {
        std::mem::take(&mut self.ops)
    }

    /// Admits a sequence: takes a slot, zeroed, and the blocks of its whole prompt.
    ///
    /// A windowed pool reserves what the first step can need; later steps take over what they release.
    ///
    /// # Errors
    /// Too long a prompt, or the pool that lacks blocks or slots.
    pub fn admit(&mut self, prompt_tokens: u32) -> Result<SequenceId, BookError> {
        self.admit_prefix(prompt_tokens, &Prefix { blocks: vec![Vec::new(); self.blocks.len()], ..Prefix::default() })
    }

    /// Admits a sequence whose first tokens are cached: their blocks are shared, the state is copied, and so is a block
    /// within which the prefix ends.
    ///
    /// # Errors
    /// As [`CacheBook::admit`]; a prefix that does not fit the pools.
    pub fn admit_prefix(&mut self, prompt_tokens: u32, prefix: &Prefix) -> Result<SequenceId, BookError> {
        self.admit_from(prompt_tokens, prefix, prefix.state.map(StateAt::Checkpoint))
    }

    /// As [`CacheBook::admit_prefix`] with the state wherever it lies.
    pub(crate) fn admit_from(
        &mut self,
        prompt_tokens: u32,
        prefix: &Prefix,
        state: Option<StateAt>,
    ) -> Result<SequenceId, BookError> {
        self.reclaim()?;
        let (tables, slot) = self.reserve(prompt_tokens, prefix, state)?;
        Ok(self.sequences.insert(Sequence::resident(prefix.tokens, tables, slot)))
    }

    /// Gives a preempted sequence its slot and the blocks of its tokens so far, to be computed again.
    ///
    /// # Errors
    /// As [`CacheBook::admit`]; a sequence that was not preempted.
    pub fn resume(&mut self, id: SequenceId, tokens: u32) -> Result<(), BookError> {
        self.reclaim()?;
        let found = self.sequences.get(id)?.residency;
        if found != Residency::Preempted {
            return Err(BookError::WrongState { sequence: id, found: found.name(), expected: "preempted" });
        }
        let (tables, slot) =
            self.reserve(tokens, &Prefix { blocks: vec![Vec::new(); self.blocks.len()], ..Prefix::default() }, None)?;
        let sequence = self.sequences.get_mut(id)?;
        sequence.tables = tables;
        sequence.slot = slot;
        sequence.residency = Residency::Resident;
        Ok(())
    }

    /// Takes everything from a sequence; its handle stays, for [`CacheBook::resume`].
    ///
    /// # Errors
    /// A stale handle, or a sequence that holds nothing.
    pub fn preempt(&mut self, id: SequenceId) -> Result<(), BookError> {
        self.resident(id)?;
        self.vacate(id, Residency::Preempted)?;
        self.sequences.get_mut(id)?.tokens = 0;
        Ok(())
    }

    /// Ends a sequence: its blocks lose a holder, its slot is free, its handle is stale.
    ///
    /// # Errors
    /// A stale handle.
    pub fn finish(&mut self, id: SequenceId) -> Result<(), BookError> {
        self.sequences.get(id)?;
        self.vacate(id, Residency::Preempted)?;
        self.sequences.remove(id)?;
        Ok(())
    }

    /// A second sequence with the same past: blocks are shared until one of the two writes into the last, partial one;
    /// the state is copied now.
    ///
    /// # Errors
    /// No slot; a sequence that is not resident or has an uncommitted speculative step.
    pub fn fork(&mut self, id: SequenceId) -> Result<SequenceId, BookError> {
        self.reclaim()?;
        let parent = self.settled(id)?;
        let (tokens, from) = (parent.tokens, parent.slot);
        let slot = match from {
            Some(_) => Some(self.take_slot(SlotRole::Live)?),
            None => None,
        };
        let parent = self.sequences.get(id)?;
        let mut tables = Vec::with_capacity(parent.tables.len());
        for ((table, spec), blocks) in parent.tables.iter().zip(&self.layout.paged).zip(&mut self.blocks) {
            tables.push(table.share(blocks, spec.blocks_for(tokens) as usize)?);
        }
        if let (Some(from), Some(to)) = (from, slot) {
            self.ops.push(PoolOp::CopySlot { from, to });
        }
        Ok(self.sequences.insert(Sequence::resident(tokens, tables, slot)))
    }

    /// Cuts a sequence to its first `tokens` tokens and releases the blocks behind them.
    ///
    /// # Errors
    /// A state that cannot be cut (cut to 0, or restore a captured one instead), a window that has passed the new end,
    /// more tokens than there are.
    pub fn truncate(&mut self, id: SequenceId, tokens: u32) -> Result<(), BookError> {
        let sequence = self.settled(id)?;
        if sequence.slot.is_some() && tokens != 0 && tokens != sequence.tokens {
            return Err(cannot_truncate(id, tokens, "its state has absorbed every token"));
        }
        self.cut(id, tokens)?;
        if tokens == 0
            && let Some(slot) = self.sequences.get(id)?.slot
        {
            self.ops.push(PoolOp::ZeroSlot(slot));
        }
        Ok(())
    }

    /// Cuts the tables alone, for callers that see to the state.
    pub(crate) fn cut(&mut self, id: SequenceId, tokens: u32) -> Result<(), BookError> {
        let layout = Arc::clone(&self.layout);
        let sequence = self.settled(id)?;
        if tokens > sequence.tokens {
            return Err(cannot_truncate(id, tokens, &format!("it has only {}", sequence.tokens)));
        }
        let passed = sequence
            .tables
            .iter()
            .zip(&layout.paged)
            .find(|(table, spec)| table.released() > spec.first_visible_block(tokens) as usize);
        if let Some((_, spec)) = passed {
            return Err(cannot_truncate(id, tokens, &format!("the window of pool `{}` has passed there", spec.id)));
        }
        let sequence = self.sequences.get_mut(id)?;
        sequence.tokens = tokens;
        for ((table, spec), blocks) in sequence.tables.iter_mut().zip(&layout.paged).zip(&mut self.blocks) {
            table.cut(spec, blocks, spec.blocks_for(tokens) as usize)?;
        }
        Ok(())
    }

    /// Copies a sequence's state into a checkpoint, which the caller holds from now on.
    ///
    /// A checkpoint is a slot, or a unit of the pools that a plan has for checkpoints alone.
    ///
    /// # Errors
    /// No checkpoint is free; a plan without states.
    pub fn checkpoint(&mut self, id: SequenceId) -> Result<SlotId, BookError> {
        let from = self.state_slot(id)?;
        let to = self.take_slot(SlotRole::Checkpoint)?;
        self.ops.push(match self.checkpoint_only {
            Some(_) => PoolOp::StoreCheckpoint { from, to },
            None => PoolOp::CopySlot { from, to },
        });
        Ok(to)
    }

    /// Gives up a checkpoint.
    ///
    /// # Errors
    /// One that nobody holds.
    pub fn release_checkpoint(&mut self, checkpoint: SlotId) -> Result<(), BookError> {
        self.check_checkpoint(checkpoint)?;
        self.spoiled.retain(|spoiled| *spoiled != checkpoint);
        self.checkpoints_mut().release(checkpoint)
    }

    /// Ends a sequence and keeps its state as a checkpoint, without a copy where checkpoints are slots.
    ///
    /// # Errors
    /// No quota for a checkpoint; a plan without states.
    pub fn finish_into_checkpoint(&mut self, id: SequenceId) -> Result<SlotId, BookError> {
        if self.checkpoint_only.is_some() {
            let checkpoint = self.checkpoint(id)?;
            self.finish(id)?;
            return Ok(checkpoint);
        }
        let slot = self.state_slot(id)?;
        self.slots.convert(slot, SlotRole::Checkpoint)?;
        self.sequences.get_mut(id)?.slot = None;
        self.finish(id)?;
        Ok(slot)
    }

    /// Copies a checkpoint over a sequence's state and cuts its tables to the checkpoint's length.
    ///
    /// # Errors
    /// A slot that is no checkpoint; what [`CacheBook::truncate`] refuses.
    pub fn rewind(&mut self, id: SequenceId, checkpoint: SlotId, tokens: u32) -> Result<(), BookError> {
        let to = self.state_slot(id)?;
        self.check_checkpoint(checkpoint)?;
        self.cut(id, tokens)?;
        self.ops.push(self.load_op(StateAt::Checkpoint(checkpoint), to));
        Ok(())
    }

    /// Moves live slots to the lowest free numbers and reports the moves.
    ///
    /// Checkpoints stay where they are, since prefix caches know them by number.
    ///
    /// # Errors
    /// None in consistent books.
    pub fn compact_slots(&mut self) -> Result<Vec<SlotMove>, BookError> {
        let mut free: Vec<SlotId> = self.slots.free_slots().collect();
        free.sort_unstable();
        let mut held: Vec<(SlotId, SequenceId)> =
            self.sequences.iter().filter_map(|(id, sequence)| sequence.slot.map(|slot| (slot, id))).collect();
        held.sort_unstable_by(|left, right| right.cmp(left));
        let mut moves = Vec::new();
        for ((from, sequence), to) in held.into_iter().zip(free) {
            if from <= to {
                break;
            }
            self.slots.relocate(from, to)?;
            self.sequences.get_mut(sequence)?.slot = Some(to);
            self.ops.push(PoolOp::CopySlot { from, to });
            moves.push(SlotMove { sequence, from, to });
        }
        Ok(moves)
    }

    /// Tokens whose caches are there.
    ///
    /// # Errors
    /// A stale handle.
    pub fn tokens(&self, id: SequenceId) -> Result<u32, BookError> {
        Ok(self.sequences.get(id)?.tokens)
    }

    /// Where its caches are.
    ///
    /// # Errors
    /// A stale handle.
    pub fn residency(&self, id: SequenceId) -> Result<Residency, BookError> {
        Ok(self.sequences.get(id)?.residency)
    }

    /// Its slot; `None` in plans without states.
    ///
    /// # Errors
    /// A stale handle.
    pub fn slot(&self, id: SequenceId) -> Result<Option<SlotId>, BookError> {
        Ok(self.sequences.get(id)?.slot)
    }

    /// Its block table in a paged pool: a block per logical block, -1 where a window has released it.
    ///
    /// # Errors
    /// A stale handle or an unknown pool.
    pub fn block_table(&self, id: SequenceId, paged: usize) -> Result<&[i32], BookError> {
        let table = self.sequences.get(id)?.tables.get(paged);
        table.map(BlockTable::entries).ok_or_else(|| BookError::UnknownPool(paged.to_string()))
    }

    /// Adds a holder to a block that somebody holds, for prefix caches of the caller's own.
    ///
    /// # Errors
    /// An unknown pool, or a block that nobody holds.
    pub fn retain_block(&mut self, paged: usize, block: BlockId) -> Result<(), BookError> {
        self.blocks_mut(paged)?.retain(block)
    }

    /// Removes a holder of a block; true if it was the last.
    ///
    /// # Errors
    /// An unknown pool, or a block that nobody holds.
    pub fn release_block(&mut self, paged: usize, block: BlockId) -> Result<bool, BookError> {
        self.blocks_mut(paged)?.release(block)
    }

    pub(crate) fn blocks_mut(&mut self, paged: usize) -> Result<&mut BlockAllocator, BookError> {
        self.blocks.get_mut(paged).ok_or_else(|| BookError::UnknownPool(paged.to_string()))
    }

    /// The blocks of a paged pool.
    ///
    /// # Errors
    /// An unknown pool.
    pub fn blocks(&self, paged: usize) -> Result<&BlockAllocator, BookError> {
        self.blocks.get(paged).ok_or_else(|| BookError::UnknownPool(paged.to_string()))
    }

    /// The slots.
    pub fn slots(&self) -> &SlotAllocator {
        &self.slots
    }

    /// Returns the allocator of checkpoints: the slots, or units of pools of their own.
    pub fn checkpoints(&self) -> &SlotAllocator {
        self.checkpoint_only.as_ref().unwrap_or(&self.slots)
    }

    pub(crate) fn checkpoints_mut(&mut self) -> &mut SlotAllocator {
        self.checkpoint_only.as_mut().unwrap_or(&mut self.slots)
    }

    fn check_checkpoint(&self, slot: SlotId) -> Result<(), BookError> {
        match self.checkpoints().role(slot) {
            Some(SlotRole::Checkpoint) => Ok(()),
            _ => Err(BookError::SlotNotHeld { slot }),
        }
    }

    /// What brings the state of a prefix into a slot.
    fn load_op(&self, state: StateAt, to: SlotId) -> PoolOp {
        match state {
            StateAt::Host(from) => PoolOp::CheckpointFromHost { from, to },
            StateAt::Checkpoint(from) if self.checkpoint_only.is_some() => PoolOp::LoadCheckpoint { from, to },
            StateAt::Checkpoint(from) => PoolOp::CopySlot { from, to },
        }
    }

    /// Handles of all sequences that are not finished.
    pub fn sequences(&self) -> impl Iterator<Item = SequenceId> + '_ {
        self.sequences.iter().map(|(id, _)| id)
    }

    /// The books of other pools with the sequences of these, whose pools must be idle.
    pub fn replaced_by(self, fresh: Self) -> Self {
        // The count of steps goes on, since sequences remember the last one they stood in.
        Self { sequences: self.sequences, steps: self.steps, host: self.host, dropped: self.dropped, ..fresh }
    }

    /// Nothing if no block and no slot is held.
    ///
    /// # Errors
    /// What is held.
    pub fn ensure_idle(&self) -> Result<(), BookError> {
        let sequences = self.sequences.iter().filter(|(_, sequence)| sequence.residency == Residency::Resident).count();
        let blocks = self.blocks.iter().map(|blocks| u64::from(blocks.used())).sum();
        let slots = u64::from(self.slots.used(SlotRole::Live) + self.checkpoints().used(SlotRole::Checkpoint));
        if sequences == 0 && blocks == 0 && slots == 0 {
            return Ok(());
        }
        Err(BookError::Busy { sequences, blocks, slots })
    }

    /// Ends the sequences that [`ReuseLease`](crate::prefix::ReuseLease)s were dropped of. Every operation that takes
    /// room does so first.
    ///
    /// # Errors
    /// None in consistent books.
    pub fn reclaim(&mut self) -> Result<(), BookError> {
        for sequence in self.dropped.take() {
            match self.finish(sequence) {
                // Whoever ended it before has dropped the lease since.
                Ok(()) | Err(BookError::StaleSequence(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Whether dropped leases have left something to [`CacheBook::reclaim`].
    pub(crate) fn has_dropped(&self) -> bool {
        self.dropped.any()
    }

    /// A sequence that ends when the guard is dropped.
    pub(crate) fn guard(&self, sequence: SequenceId) -> SequenceGuard {
        SequenceGuard::new(sequence, &self.dropped)
    }

    /// Whether any sequence holds blocks or a slot.
    pub(crate) fn has_residents(&self) -> bool {
        self.sequences.iter().any(|(_, sequence)| sequence.residency == Residency::Resident)
    }

    /// Marks a checkpoint as one that holds no state, until it is released.
    #[cfg(feature = "device")]
    pub(crate) fn spoil(&mut self, checkpoint: SlotId) {
        self.spoiled.push(checkpoint);
    }

    /// Whether a checkpoint holds no state.
    pub(crate) fn is_spoiled(&self, checkpoint: SlotId) -> bool {
        self.spoiled.contains(&checkpoint)
    }

    /// A resident sequence.
    pub(crate) fn resident(&self, id: SequenceId) -> Result<&Sequence, BookError> {
        let sequence = self.sequences.get(id)?;
        if sequence.residency == Residency::Resident {
            return Ok(sequence);
        }
        Err(BookError::WrongState { sequence: id, found: sequence.residency.name(), expected: "resident" })
    }

    /// A resident sequence without an uncommitted speculative step.
    pub(crate) fn settled(&self, id: SequenceId) -> Result<&Sequence, BookError> {
        let sequence = self.resident(id)?;
        if sequence.draft.is_none() {
            return Ok(sequence);
        }
        Err(BookError::WrongState { sequence: id, found: "speculating", expected: "committed" })
    }

    /// The slot of a settled sequence.
    fn state_slot(&self, id: SequenceId) -> Result<SlotId, BookError> {
        self.settled(id)?.slot.ok_or_else(|| BookError::UnknownPool("slots".into()))
    }

    /// Releases everything that a sequence holds.
    pub(crate) fn vacate(&mut self, id: SequenceId, residency: Residency) -> Result<(), BookError> {
        self.unpark(id)?;
        let sequence = self.sequences.get_mut(id)?;
        for (table, blocks) in sequence.tables.iter_mut().zip(&mut self.blocks) {
            table.clear(blocks)?;
        }
        self.free_rows.extend(sequence.draft.take().and_then(|draft| draft.row));
        sequence.residency = residency;
        if let Some(slot) = sequence.slot.take() {
            self.slots.release(slot)?;
        }
        Ok(())
    }

    pub(crate) fn take_slot(&mut self, role: SlotRole) -> Result<SlotId, BookError> {
        let (slots, refused) = match role {
            SlotRole::Live => (&mut self.slots, &mut self.refused_slots),
            SlotRole::Checkpoint => {
                (self.checkpoint_only.as_mut().unwrap_or(&mut self.slots), &mut self.refused_checkpoints)
            }
        };
        slots.allocate(role).ok_or_else(|| {
            *refused += 1;
            slots.shortage(role)
        })
    }

    /// Tables and a slot for a sequence that starts from `prefix` and will grow to `tokens`.
    fn reserve(
        &mut self,
        tokens: u32,
        prefix: &Prefix,
        state: Option<StateAt>,
    ) -> Result<(Vec<BlockTable>, Option<SlotId>), BookError> {
        let layout = Arc::clone(&self.layout);
        check_length(&layout, u64::from(tokens))?;
        self.check_prefix(tokens, prefix, state)?;
        let first_step = tokens.min(saturating_u32(layout.limits.max_num_tokens));
        let mut appends = Vec::with_capacity(layout.paged.len());
        for ((spec, held), paged) in layout.paged.iter().zip(&prefix.blocks).zip(0..) {
            let end = match spec.window {
                Some(_) => tokens.min(prefix.tokens.saturating_add(first_step)),
                None => tokens,
            };
            let front = spec.first_visible_block(prefix.tokens).min(spec.blocks_for(prefix.tokens));
            let end = spec.blocks_for(end).max(spec.ring_end(front));
            let append = end.saturating_sub(front + held.len() as u32);
            // The sequence goes on within the last block of its prefix, which others may read.
            let partial = !held.is_empty() && !prefix.tokens.is_multiple_of(spec.entries_per_block * spec.stride);
            let needed = append + u32::from(partial);
            if needed > self.blocks[paged].available() {
                self.refused[paged] += 1;
                return Err(shortage(spec, &self.blocks[paged], u64::from(needed), 0));
            }
            appends.push((front, append, partial));
        }
        let slot = if layout.has_slots() { Some(self.take_slot(SlotRole::Live)?) } else { None };
        let mut tables = Vec::with_capacity(appends.len());
        for ((((spec, held), (front, append, partial)), blocks), paged) in
            layout.paged.iter().zip(&prefix.blocks).zip(appends).zip(&mut self.blocks).zip(0..)
        {
            let mut held = held.clone();
            if let (Some(last), true) = (held.last_mut(), partial) {
                let to = super::table::allocate(spec, blocks)?;
                self.ops.push(PoolOp::CopyBlock { paged, from: std::mem::replace(last, to), to });
            }
            for &block in &held[..held.len() - usize::from(partial)] {
                blocks.retain(block)?;
            }
            let mut table = BlockTable::from_blocks(front as usize, &held);
            table.append(spec, blocks, append)?;
            tables.push(table);
        }
        let fill = slot.map(|to| match state {
            Some(state) => self.load_op(state, to),
            None => PoolOp::ZeroSlot(to),
        });
        self.ops.extend(fill);
        Ok((tables, slot))
    }

    fn check_prefix(&self, tokens: u32, prefix: &Prefix, state: Option<StateAt>) -> Result<(), BookError> {
        let bad = |reason: String| Err(BookError::BadPrefix(reason));
        if prefix.tokens > tokens {
            return bad(format!("it has {} tokens, the prompt {tokens}", prefix.tokens));
        }
        if prefix.blocks.len() != self.blocks.len() {
            return bad(format!("it has blocks for {} pools, the plan has {}", prefix.blocks.len(), self.blocks.len()));
        }
        for ((spec, held), blocks) in self.layout.paged.iter().zip(&prefix.blocks).zip(&self.blocks) {
            let end = spec.blocks_for(prefix.tokens);
            let expected = end.saturating_sub(spec.first_visible_block(prefix.tokens));
            if held.len() != expected as usize {
                return bad(format!("pool `{}` needs {expected} blocks of it, found {}", spec.id, held.len()));
            }
            if let Some(free) = held.iter().find(|&&block| blocks.references(block) == 0) {
                return bad(format!("block {} of pool `{}` is held by no one", free.0, spec.id));
            }
        }
        match state {
            Some(StateAt::Checkpoint(slot)) if self.checkpoints().role(slot).is_none() => {
                bad(format!("slot {} is held by no one", slot.0))
            }
            None if self.layout.has_slots() && prefix.tokens > 0 => bad("it has no state".into()),
            _ => Ok(()),
        }
    }
}

/// The domain of checkpoints that are no slots.
pub(super) const fn checkpoint_only(units: u64) -> SlotDomain {
    SlotDomain { padding: 0, live: 0, checkpoints: units }
}

pub(crate) fn check_length(layout: &Layout, tokens: u64) -> Result<(), BookError> {
    let max_seq_len = layout.limits.max_seq_len.min(u64::from(u32::MAX >> 1));
    if tokens <= max_seq_len { Ok(()) } else { Err(BookError::TooLong { tokens, max_seq_len }) }
}

fn saturating_u32(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

fn cannot_truncate(sequence: SequenceId, tokens: u32, reason: &str) -> BookError {
    BookError::CannotTruncate { sequence, tokens: u64::from(tokens), reason: reason.to_owned() }
}
