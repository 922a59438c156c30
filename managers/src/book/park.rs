//! Sequences that leave the pools and come back: their contents wait in host memory.

use std::sync::Arc;

#[cfg(feature = "device")]
use super::admit::check_length;
use super::cache::CacheBook;
use super::host::{HostUse, SetAside, Span};
use super::sequence::Residency;
#[cfg(feature = "device")]
use super::sequence::Sequence;
use super::table::{BlockTable, shortage};
use super::{BlockId, PagedSpec, SequenceId, SlotRole};
use crate::book::error::{BookError, Result};

impl CacheBook {
    /// Takes blocks and slot from a sequence whose contents the caller has saved; its tokens still count.
    ///
    /// # Errors
    /// As [`CacheBook::check_offload`]; nothing has changed then.
    pub fn offload(&mut self, id: SequenceId) -> Result<()> {
        self.check_offload(id)?;
        self.park(id)
    }

    /// Whether a sequence can be offloaded; a refusal is counted.
    ///
    /// # Errors
    /// A plan without a host tier, or one with too little room; a sequence that is not resident or has an uncommitted
    /// speculative step.
    pub fn check_offload(&mut self, id: SequenceId) -> Result<()> {
        let bytes = self.parked_bytes(&self.spans(id)?);
        let checked = self.host.check(self.layout.host_bytes, bytes);
        self.host.refused += u64::from(checked.is_err());
        checked
    }

    /// Sets bytes of the host tier aside for a prefix cache that keeps evicted spans and states there.
    ///
    /// # Errors
    /// A plan without a host tier, one with too little room, or bytes that are set aside already.
    pub fn set_host_aside(&mut self, bytes: u64) -> Result<SetAside> {
        if self.host.set_aside.strong_count() > 0 {
            return Err(BookError::HostSetAside { bytes: self.host.set_aside() });
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
    pub fn park(&mut self, id: SequenceId) -> Result<()> {
        let spans = self.spans(id)?;
        self.vacate(id, Residency::Offloaded)?;
        self.host.parked += self.parked_bytes(&spans);
        self.host.high_water = self.host.high_water.max(self.host.total());
        self.sequences.get_mut(id)?.parked = spans;
        Ok(())
    }

    /// Forgets what a sequence has in the host tier.
    pub(crate) fn unpark(&mut self, id: SequenceId) -> Result<()> {
        let sequence = self.sequences.get_mut(id)?;
        if sequence.residency == Residency::Offloaded {
            let spans = std::mem::take(&mut sequence.parked);
            self.host.parked -= self.parked_bytes(&spans);
        }
        Ok(())
    }

    /// Whether what is in the host tier fits that of other pools.
    pub(crate) fn check_host(&self, host_bytes: Option<u64>) -> Result<()> {
        if self.host.total() == 0 { Ok(()) } else { HostUse::default().check(host_bytes, self.host.total()) }
    }

    /// Bytes of the host tier that a resident sequence would take.
    ///
    /// # Errors
    /// A sequence that is not resident or has an uncommitted speculative step.
    pub fn bytes_to_park(&self, id: SequenceId) -> Result<u64> {
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
    pub fn onload(&mut self, id: SequenceId) -> Result<()> {
        let sequence = self.sequences.get(id)?;
        if sequence.residency != Residency::Offloaded {
            let found = sequence.residency.name();
            return Err(BookError::WrongState { sequence: id, found, expected: "offloaded" });
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

    /// The blocks of a settled sequence that hold tokens, per paged pool, in order.
    ///
    /// # Errors
    /// As [`CacheBook::offload`].
    pub fn held_blocks(&self, id: SequenceId) -> Result<Vec<Vec<BlockId>>> {
        let spans = self.spans(id)?;
        let tables = &self.sequences.get(id)?.tables;
        let held = |(span, table): (&Span, &BlockTable)| {
            (span.released..span.released + span.blocks).filter_map(|logical| table.block(logical)).collect()
        };
        Ok(spans.iter().zip(tables).map(held).collect())
    }

    /// How many blocks of each paged pool keep what a sequence of so many tokens goes on from.
    #[cfg(feature = "device")]
    pub(crate) fn stored_counts(&self, tokens: u32) -> Vec<u32> {
        self.stored_spans(tokens).iter().map(|span| span.blocks).collect()
    }

    /// These blocks of a settled sequence, per paged pool, in order; `None` where it has given one up.
    #[cfg(feature = "device")]
    pub(crate) fn stored_blocks(&self, id: SequenceId) -> Result<Option<Vec<Vec<BlockId>>>> {
        let sequence = self.settled(id)?;
        let spans = self.stored_spans(sequence.tokens);
        let held = |(span, table): (&Span, &BlockTable)| {
            (span.released..span.released + span.blocks).map(|logical| table.block(logical)).collect()
        };
        Ok(spans.iter().zip(&sequence.tables).map(held).collect())
    }

    /// Admits a sequence of so many tokens whose contents the caller has: as one that comes back from the host tier.
    ///
    /// # Errors
    /// As [`CacheBook::onload`]; nothing has changed then.
    #[cfg(feature = "device")]
    pub(crate) fn admit_stored(&mut self, tokens: u32) -> Result<SequenceId> {
        self.reclaim()?;
        check_length(&self.layout, u64::from(tokens))?;
        let parked = self.stored_spans(tokens);
        self.host.parked += self.parked_bytes(&parked);
        let sequence = Sequence::resident(tokens, Vec::new(), None);
        let id = self.sequences.insert(Sequence { residency: Residency::Offloaded, parked, ..sequence });
        match self.onload(id) {
            Ok(()) => Ok(id),
            Err(error) => {
                self.finish(id)?;
                Err(error)
            }
        }
    }

    #[cfg(feature = "device")]
    fn stored_spans(&self, tokens: u32) -> Vec<Span> {
        let span = |spec: &PagedSpec| {
            let released = spec.first_visible_block(tokens).min(spec.blocks_for(tokens));
            Span { released, blocks: spec.blocks_for(tokens) - released }
        };
        self.layout.paged.iter().map(span).collect()
    }

    fn spans(&self, id: SequenceId) -> Result<Vec<Span>> {
        let sequence = self.settled(id)?;
        let tables = sequence.tables.iter().zip(&self.layout.paged);
        let span = |(table, spec): (&BlockTable, &PagedSpec)| {
            let released = table.released() as u32;
            Span { released, blocks: spec.blocks_for(sequence.tokens).saturating_sub(released) }
        };
        Ok(tables.map(span).collect())
    }
}
