//! Sequences that leave the pools and come back: their contents wait in host memory.

use std::sync::Arc;

use cacheplan_planner::CachePlan;

use super::cache::CacheBook;
use super::sequence::{Residency, SequenceId};
use super::table::{BlockTable, shortage};
use super::{BlockId, SlotRole};
use crate::ManagerError;

/// What a sequence holds in one paged pool: logical blocks `released..released + blocks`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) released: u32,
    pub(crate) blocks: u32,
}

impl CacheBook {
    /// Takes blocks and slot from a sequence whose contents the caller has saved; its tokens still count.
    ///
    /// # Errors
    /// A sequence that is not resident or has an uncommitted speculative step.
    pub fn offload(&mut self, id: SequenceId) -> Result<(), ManagerError> {
        let spans = self.spans(id)?;
        self.vacate(id, Residency::Offloaded)?;
        self.sequences.get_mut(id)?.parked = spans;
        Ok(())
    }

    /// Gives an offloaded sequence blocks and a slot again; the caller then writes the contents back.
    ///
    /// # Errors
    /// What lacks, or a sequence that was not offloaded; nothing has changed then.
    pub fn onload(&mut self, id: SequenceId) -> Result<(), ManagerError> {
        let sequence = self.sequences.get(id)?;
        if sequence.residency != Residency::Offloaded {
            let found = sequence.residency.name();
            return Err(ManagerError::WrongState { sequence: id, found, expected: "offloaded" });
        }
        let layout = Arc::clone(&self.layout);
        let spans = sequence.parked.clone();
        for (paged, (span, spec)) in spans.iter().zip(&layout.paged).enumerate() {
            if span.blocks > self.blocks[paged].available() {
                self.refused[paged] += 1;
                return Err(shortage(spec, &self.blocks[paged], u64::from(span.blocks), 0));
            }
        }
        let slot = if layout.has_slots() { Some(self.take_slot(SlotRole::Live)?) } else { None };
        let mut tables = Vec::with_capacity(spans.len());
        for ((span, spec), blocks) in spans.iter().zip(&layout.paged).zip(&mut self.blocks) {
            let mut table = BlockTable::from_blocks(span.released as usize, &[]);
            table.append(spec, blocks, span.blocks)?;
            tables.push(table);
        }
        let sequence = self.sequences.get_mut(id)?;
        sequence.tables = tables;
        sequence.slot = slot;
        sequence.residency = Residency::Resident;
        sequence.parked.clear();
        Ok(())
    }

    /// The resident sequences, if the pools of `plan` can take them all over.
    ///
    /// # Errors
    /// A pool of the plan that is too small, an uncommitted speculative step, or blocks and slots that no sequence
    /// holds.
    pub fn check_migration(&self, plan: &CachePlan) -> Result<Vec<SequenceId>, ManagerError> {
        let fresh = Self::new(plan)?;
        if !self.layout.same_but_for_units(&fresh.layout) {
            return Err(ManagerError::OtherPools);
        }
        let resident = self.sequences.iter().filter(|(_, sequence)| sequence.residency == Residency::Resident);
        let resident: Vec<SequenceId> = resident.map(|(id, _)| id).collect();
        for &id in &resident {
            self.settled(id)?;
        }
        for (paged, (spec, blocks)) in fresh.layout.paged.iter().zip(&fresh.blocks).enumerate() {
            let mut needed = 0;
            for &id in &resident {
                needed += u64::from(self.spans(id)?[paged].blocks);
            }
            if needed > u64::from(blocks.available()) {
                return Err(shortage(spec, blocks, needed, 0));
            }
        }
        if fresh.layout.has_slots() && resident.len() > fresh.slots.available(SlotRole::Live) as usize {
            return Err(fresh.slots.shortage(SlotRole::Live));
        }
        let blocks = (0..self.blocks.len()).map(|paged| self.blocks_held_outside(paged)).sum();
        let slots = u64::from(self.slots.used(SlotRole::Checkpoint));
        if blocks > 0 || slots > 0 {
            return Err(ManagerError::Busy { sequences: 0, blocks, slots });
        }
        Ok(resident)
    }

    /// Blocks of a pool that others than sequences hold, alone or beside sequences.
    fn blocks_held_outside(&self, paged: usize) -> u64 {
        let blocks = &self.blocks[paged];
        let mut by_sequences = vec![0; blocks.units() as usize];
        for (_, sequence) in self.sequences.iter() {
            let entries = sequence.tables.get(paged).map_or(&[][..], BlockTable::entries);
            for &block in entries.iter().filter(|&&block| block >= 0) {
                by_sequences[block as usize] += 1;
            }
        }
        let outside = by_sequences.iter().zip(0..).filter(|&(&held, block)| blocks.references(BlockId(block)) > held);
        outside.count() as u64
    }

    /// The blocks of a settled sequence that hold tokens, per paged pool, in order.
    ///
    /// # Errors
    /// As [`CacheBook::offload`].
    pub fn held_blocks(&self, id: SequenceId) -> Result<Vec<Vec<BlockId>>, ManagerError> {
        let spans = self.spans(id)?;
        let tables = &self.sequences.get(id)?.tables;
        let held = |(span, table): (&Span, &BlockTable)| {
            (span.released..span.released + span.blocks).filter_map(|logical| table.block(logical)).collect()
        };
        Ok(spans.iter().zip(tables).map(held).collect())
    }

    fn spans(&self, id: SequenceId) -> Result<Vec<Span>, ManagerError> {
        let sequence = self.settled(id)?;
        let tables = sequence.tables.iter().zip(&self.layout.paged);
        let span = |(table, spec): (&BlockTable, &super::PagedSpec)| {
            let released = table.released() as u32;
            Span { released, blocks: spec.blocks_for(sequence.tokens).saturating_sub(released) }
        };
        Ok(tables.map(span).collect())
    }
}
