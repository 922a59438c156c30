//! Sequences that come in: their tables and their slot, with what a cached prefix has of them.

use std::sync::Arc;

use super::cache::CacheBook;
use super::checkpoints::StateAt;
use super::layout::Layout;
use super::sequence::{Residency, Sequence};
use super::table::{BlockTable, shortage};
use super::{BlockId, PoolOp, SequenceId, SlotId, SlotRole};
use crate::book::error::{BookError, Result};

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

impl CacheBook {
    /// Admits a sequence: takes a slot, zeroed, and the blocks of its whole prompt.
    ///
    /// A windowed pool reserves what the first step can need; later steps take over what they release.
    ///
    /// # Errors
    /// Too long a prompt, or the pool that lacks blocks or slots.
    pub fn admit(&mut self, prompt_tokens: u32) -> Result<SequenceId> {
        self.admit_prefix(prompt_tokens, &self.no_prefix())
    }

    /// Admits a sequence whose first tokens are cached: their blocks are shared, the state is copied, and so is a block
    /// within which the prefix ends.
    ///
    /// # Errors
    /// As [`CacheBook::admit`]; a prefix that does not fit the pools.
    pub fn admit_prefix(&mut self, prompt_tokens: u32, prefix: &Prefix) -> Result<SequenceId> {
        self.admit_from(prompt_tokens, prefix, prefix.state.map(StateAt::Checkpoint))
    }

    /// As [`CacheBook::admit_prefix`] with the state wherever it lies.
    pub(crate) fn admit_from(
        &mut self,
        prompt_tokens: u32,
        prefix: &Prefix,
        state: Option<StateAt>,
    ) -> Result<SequenceId> {
        self.reclaim()?;
        let (tables, slot) = self.reserve(prompt_tokens, prefix, state)?;
        Ok(self.sequences.insert(Sequence::resident(prefix.tokens, tables, slot)))
    }

    /// Gives a preempted sequence its slot and the blocks of its tokens so far, to be computed again.
    ///
    /// # Errors
    /// As [`CacheBook::admit`]; a sequence that was not preempted, or one of a lease ([`BookError::Leased`]), whose contents
    /// were lost.
    pub fn resume(&mut self, id: SequenceId, tokens: u32) -> Result<()> {
        self.reclaim()?;
        self.unleased(id)?;
        let found = self.sequences.get(id)?.residency;
        if found != Residency::Preempted {
            return Err(BookError::WrongState { sequence: id, found: found.name(), expected: "preempted" });
        }
        let (tables, slot) = self.reserve(tokens, &self.no_prefix(), None)?;
        let sequence = self.sequences.get_mut(id)?;
        sequence.tables = tables;
        sequence.slot = slot;
        sequence.residency = Residency::Resident;
        Ok(())
    }

    fn no_prefix(&self) -> Prefix {
        Prefix { blocks: vec![Vec::new(); self.blocks.len()], ..Prefix::default() }
    }

    /// Tables and a slot for a sequence that starts from `prefix` and will grow to `tokens`.
    fn reserve(
        &mut self,
        tokens: u32,
        prefix: &Prefix,
        state: Option<StateAt>,
    ) -> Result<(Vec<BlockTable>, Option<SlotId>)> {
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

    fn check_prefix(&self, tokens: u32, prefix: &Prefix, state: Option<StateAt>) -> Result<()> {
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

pub(crate) fn check_length(layout: &Layout, tokens: u64) -> Result<()> {
    let max_seq_len = layout.limits.max_seq_len.min(u64::from(u32::MAX >> 1));
    if tokens <= max_seq_len { Ok(()) } else { Err(BookError::TooLong { tokens, max_seq_len }) }
}

fn saturating_u32(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}
