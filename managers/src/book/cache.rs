//! The bookkeeping of all pools at once: sequences that own their blocks and slots.

use std::sync::{Arc, Mutex, Weak};

use cacheplan_planner::CachePlan;

use super::guard::{Guarded, SequenceGuard};
use super::host::HostUse;
use super::layout::{Layout, Windows};
use super::sequence::{Residency, Sequence, Sequences};
use super::slots::checkpoint_only;
use super::table::BlockTable;
use super::{BlockAllocator, BlockId, PoolOp, SequenceId, SlotAllocator, SlotId, SlotRole};
use crate::book::error::{BookError, Result};
use crate::prefix::Metrics;

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
    /// What a prefix cache over these books has achieved, while it is there.
    pub(crate) prefixes: Weak<Mutex<Metrics>>,
    /// Sequences that leases hold, or held.
    guarded: Arc<Guarded>,
    /// Checkpoints that hold no state, since none could be stored in them.
    pub(super) spoiled: Vec<SlotId>,
    /// What the current step needs, reused between steps.
    pub(crate) growths: Vec<super::table::Growth>,
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
    pub fn new(plan: &CachePlan) -> Result<Self> {
        Self::with_windows(plan, Windows::Sliding)
    }

    /// As [`CacheBook::new`] with a choice for windowed pools.
    ///
    /// # Errors
    /// A plan that contradicts itself.
    pub fn with_windows(plan: &CachePlan, windows: Windows) -> Result<Self> {
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
            prefixes: Weak::new(),
            guarded: Arc::default(),
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

    /// Takes everything from a sequence; its handle stays, for [`CacheBook::resume`].
    ///
    /// One of a [`ReuseLease`](crate::prefix::ReuseLease) makes way by
    /// [`PrefixReuse::finish`](crate::prefix::PrefixReuse::finish), which keeps what it computed for when its tokens are
    /// admitted again.
    ///
    /// # Errors
    /// [`BookError::Leased`]; a stale handle, or a sequence that holds nothing.
    pub fn preempt(&mut self, id: SequenceId) -> Result<()> {
        self.resident(id)?;
        self.unleased(id)?;
        self.lose(id)
    }

    /// As [`CacheBook::preempt`] where contents are lost, whoever holds the sequence.
    pub(crate) fn lose(&mut self, id: SequenceId) -> Result<()> {
        self.vacate(id, Residency::Preempted)?;
        self.sequences.get_mut(id)?.tokens = 0;
        Ok(())
    }

    /// Ends a sequence: its blocks lose a holder, its slot is free, its handle is stale.
    ///
    /// # Errors
    /// A stale handle.
    pub fn finish(&mut self, id: SequenceId) -> Result<()> {
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
    pub fn fork(&mut self, id: SequenceId) -> Result<SequenceId> {
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
    pub fn truncate(&mut self, id: SequenceId, tokens: u32) -> Result<()> {
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
    pub(crate) fn cut(&mut self, id: SequenceId, tokens: u32) -> Result<()> {
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

    /// Moves live slots to the lowest free numbers and reports the moves.
    ///
    /// Checkpoints stay where they are, since prefix caches know them by number.
    ///
    /// # Errors
    /// None in consistent books.
    pub fn compact_slots(&mut self) -> Result<Vec<SlotMove>> {
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
    pub fn tokens(&self, id: SequenceId) -> Result<u32> {
        Ok(self.sequences.get(id)?.tokens)
    }

    /// Where its caches are.
    ///
    /// # Errors
    /// A stale handle.
    pub fn residency(&self, id: SequenceId) -> Result<Residency> {
        Ok(self.sequences.get(id)?.residency)
    }

    /// Its slot; `None` in plans without states.
    ///
    /// # Errors
    /// A stale handle.
    pub fn slot(&self, id: SequenceId) -> Result<Option<SlotId>> {
        Ok(self.sequences.get(id)?.slot)
    }

    /// Its block table in a paged pool: a block per logical block, -1 where a window has released it.
    ///
    /// # Errors
    /// A stale handle or an unknown pool.
    pub fn block_table(&self, id: SequenceId, paged: usize) -> Result<&[i32]> {
        let table = self.sequences.get(id)?.tables.get(paged);
        table.map(BlockTable::entries).ok_or_else(|| BookError::UnknownPool(paged.to_string()))
    }

    /// Adds a holder to a block that somebody holds, for prefix caches of the caller's own.
    ///
    /// # Errors
    /// An unknown pool, or a block that nobody holds.
    pub fn retain_block(&mut self, paged: usize, block: BlockId) -> Result<()> {
        self.blocks_mut(paged)?.retain(block)
    }

    /// Removes a holder of a block; true if it was the last.
    ///
    /// # Errors
    /// An unknown pool, or a block that nobody holds.
    pub fn release_block(&mut self, paged: usize, block: BlockId) -> Result<bool> {
        self.blocks_mut(paged)?.release(block)
    }

    pub(crate) fn blocks_mut(&mut self, paged: usize) -> Result<&mut BlockAllocator> {
        self.blocks.get_mut(paged).ok_or_else(|| BookError::UnknownPool(paged.to_string()))
    }

    /// The blocks of a paged pool.
    ///
    /// # Errors
    /// An unknown pool.
    pub fn blocks(&self, paged: usize) -> Result<&BlockAllocator> {
        self.blocks.get(paged).ok_or_else(|| BookError::UnknownPool(paged.to_string()))
    }

    /// The slots.
    pub fn slots(&self) -> &SlotAllocator {
        &self.slots
    }

    /// Handles of all sequences that are not finished.
    pub fn sequences(&self) -> impl Iterator<Item = SequenceId> + '_ {
        self.sequences.iter().map(|(id, _)| id)
    }

    /// The books of other pools with the sequences of these, whose pools must be idle.
    pub fn replaced_by(self, fresh: Self) -> Self {
        // The count of steps goes on, since sequences remember the last one they stood in.
        Self { sequences: self.sequences, steps: self.steps, host: self.host, guarded: self.guarded, ..fresh }
    }

    /// Nothing if no block and no slot is held.
    ///
    /// # Errors
    /// What is held.
    pub fn ensure_idle(&self) -> Result<()> {
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
    pub fn reclaim(&mut self) -> Result<()> {
        for sequence in self.guarded.take_dropped() {
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
        self.guarded.any_dropped()
    }

    /// A sequence that ends when the guard is dropped.
    pub(crate) fn guard(&self, sequence: SequenceId) -> SequenceGuard {
        SequenceGuard::new(sequence, &self.guarded)
    }

    /// Refuses what a lease would not know of.
    pub(super) fn unleased(&self, id: SequenceId) -> Result<()> {
        if self.guarded.holds(id) { Err(BookError::Leased(id)) } else { Ok(()) }
    }

    /// Whether any sequence holds blocks or a slot.
    pub(crate) fn has_residents(&self) -> bool {
        self.sequences.iter().any(|(_, sequence)| sequence.residency == Residency::Resident)
    }

    /// A resident sequence.
    pub(crate) fn resident(&self, id: SequenceId) -> Result<&Sequence> {
        let sequence = self.sequences.get(id)?;
        if sequence.residency == Residency::Resident {
            return Ok(sequence);
        }
        Err(BookError::WrongState { sequence: id, found: sequence.residency.name(), expected: "resident" })
    }

    /// A resident sequence without an uncommitted speculative step.
    pub(crate) fn settled(&self, id: SequenceId) -> Result<&Sequence> {
        let sequence = self.resident(id)?;
        if sequence.draft.is_none() {
            return Ok(sequence);
        }
        Err(BookError::WrongState { sequence: id, found: "speculating", expected: "committed" })
    }

    /// Releases everything that a sequence holds.
    pub(crate) fn vacate(&mut self, id: SequenceId, residency: Residency) -> Result<()> {
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

    pub(crate) fn take_slot(&mut self, role: SlotRole) -> Result<SlotId> {
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
}

fn cannot_truncate(sequence: SequenceId, tokens: u32, reason: &str) -> BookError {
    BookError::CannotTruncate { sequence, tokens: u64::from(tokens), reason: reason.to_owned() }
}
