//! Sequences that leave the pools and come back: their contents wait in host memory.

use std::sync::{Arc, Weak};

use cacheplan_planner::CachePlan;

use super::cache::CacheBook;
use super::sequence::{Residency, SequenceId};
use super::table::{BlockTable, shortage};
use super::{BlockId, SlotRole};
use crate::error::{Lack, ManagerError, Scarce};

/// What a sequence holds in one paged pool: logical blocks `released..released + blocks`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) released: u32,
    pub(crate) blocks: u32,
}

/// The bytes of the host tier that are in use.
#[derive(Debug, Default)]
pub(crate) struct HostUse {
    /// Of parked sequences.
    pub(crate) parked: u64,
    /// Set aside for a prefix cache, while it is there.
    set_aside: Weak<u64>,
    pub(crate) high_water: u64,
    pub(crate) refused: u64,
}

/// Bytes of the host tier that are a prefix cache's. Dropping it gives them back.
#[derive(Debug)]
#[must_use = "the bytes are given back when it is dropped"]
pub struct SetAside {
    _bytes: Arc<u64>,
}

impl HostUse {
    pub(crate) fn total(&self) -> u64 {
        self.parked + self.set_aside()
    }

    fn set_aside(&self) -> u64 {
        self.set_aside.upgrade().map_or(0, |bytes| *bytes)
    }

    /// Checks that `needed` more bytes fit a tier of `capacity` bytes.
    fn check(&self, capacity: Option<u64>, needed: u64) -> Result<(), ManagerError> {
        let capacity = capacity.ok_or(ManagerError::NoHostTier)?;
        let free = capacity.saturating_sub(self.total());
        if needed <= free { Ok(()) } else { Err(Lack { of: Scarce::HostBytes, needed, free, capacity }.into()) }
    }
}

impl CacheBook {
    /// Takes blocks and slot from a sequence whose contents the caller has saved; its tokens still count.
    ///
    /// # Errors
    /// As [`CacheBook::check_offload`]; nothing has changed then.
    pub fn offload(&mut self, id: SequenceId) -> Result<(), ManagerError> {
        self.check_offload(id)?;
        self.park(id)
    }

    /// Whether a sequence can be offloaded; a refusal is counted.
    ///
    /// # Errors
    /// A plan without a host tier, or one with too little room; a sequence that is not resident or has an uncommitted
    /// speculative step.
    pub fn check_offload(&mut self, id: SequenceId) -> Result<(), ManagerError> {
        let bytes = self.parked_bytes(&self.spans(id)?);
        let checked = self.host.check(self.layout.host_bytes, bytes);
        self.host.refused += u64::from(checked.is_err());
        checked
    }

    /// Sets bytes of the host tier aside for a prefix cache that keeps evicted spans and states there.
    ///
    /// # Errors
    /// A plan without a host tier, one with too little room, or bytes that are set aside already.
    pub fn set_host_aside(&mut self, bytes: u64) -> Result<SetAside, ManagerError> {
        if self.host.set_aside.strong_count() > 0 {
            return Err(ManagerError::HostSetAside { bytes: self.host.set_aside() });
        }
        self.host.check(self.layout.host_bytes, bytes)?;
        let set_aside = Arc::new(bytes);
        self.host.set_aside = Arc::downgrade(&set_aside);
        self.host.high_water = self.host.high_water.max(self.host.total());
        Ok(SetAside { _bytes: set_aside })
    }

    /// As [`CacheBook::offload`] whatever the tier's room, for contents that are on their way to other pools.
    ///
    /// # Errors
    /// A sequence that is not resident or has an uncommitted speculative step.
    pub fn park(&mut self, id: SequenceId) -> Result<(), ManagerError> {
        let spans = self.spans(id)?;
        self.vacate(id, Residency::Offloaded)?;
        self.host.parked += self.parked_bytes(&spans);
        self.host.high_water = self.host.high_water.max(self.host.total());
        self.sequences.get_mut(id)?.parked = spans;
        Ok(())
    }

    /// Forgets what a sequence has in the host tier.
    pub(crate) fn unpark(&mut self, id: SequenceId) -> Result<(), ManagerError> {
        let sequence = self.sequences.get_mut(id)?;
        if sequence.residency == Residency::Offloaded {
            let spans = std::mem::take(&mut sequence.parked);
            self.host.parked -= self.parked_bytes(&spans);
        }
        Ok(())
    }

    /// Whether what is in the host tier fits that of other pools.
    pub(crate) fn check_host(&self, host_bytes: Option<u64>) -> Result<(), ManagerError> {
        if self.host.total() == 0 { Ok(()) } else { HostUse::default().check(host_bytes, self.host.total()) }
    }

    /// Bytes of the host tier that a resident sequence would take.
    ///
    /// # Errors
    /// A sequence that is not resident or has an uncommitted speculative step.
    pub fn bytes_to_park(&self, id: SequenceId) -> Result<u64, ManagerError> {
        Ok(self.parked_bytes(&self.spans(id)?))
    }

    fn parked_bytes(&self, spans: &[Span]) -> u64 {
        let blocks = spans.iter().zip(&self.layout.paged);
        blocks.map(|(span, spec)| u64::from(span.blocks) * spec.block_bytes).sum::<u64>() + self.layout.slot_bytes
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
            let needed = span.blocks.max(spec.ring);
            if needed > self.blocks[paged].available() {
                self.refused[paged] += 1;
                return Err(shortage(spec, &self.blocks[paged], u64::from(needed), 0));
            }
        }
        let slot = if layout.has_slots() { Some(self.take_slot(SlotRole::Live)?) } else { None };
        let mut tables = Vec::with_capacity(spans.len());
        for ((span, spec), blocks) in spans.iter().zip(&layout.paged).zip(&mut self.blocks) {
            let mut table = BlockTable::from_blocks(span.released as usize, &[]);
            table.append(spec, blocks, span.blocks.max(spec.ring))?;
            tables.push(table);
        }
        self.unpark(id)?;
        let sequence = self.sequences.get_mut(id)?;
        sequence.tables = tables;
        sequence.slot = slot;
        sequence.residency = Residency::Resident;
        Ok(())
    }

    /// The resident sequences, if the pools of `plan` can take them all over.
    ///
    /// # Errors
    /// A pool of the plan that is too small, an uncommitted speculative step, or blocks and slots that no sequence
    /// holds.
    pub fn check_migration(&self, plan: &CachePlan) -> Result<Vec<SequenceId>, ManagerError> {
        let fresh = Self::with_windows(plan, self.layout.windows)?;
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
                needed += u64::from(self.spans(id)?[paged].blocks.max(spec.ring));
            }
            if needed > u64::from(blocks.available()) {
                return Err(shortage(spec, blocks, needed, 0));
            }
        }
        if fresh.layout.has_slots() && resident.len() > fresh.slots.available(SlotRole::Live) as usize {
            return Err(fresh.slots.shortage(SlotRole::Live));
        }
        let blocks = (0..self.blocks.len()).map(|paged| self.blocks_held_outside(paged)).sum();
        let slots = u64::from(self.checkpoints().used(SlotRole::Checkpoint));
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
