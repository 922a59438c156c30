//! Steps: growing the sequences of a batch.

use std::sync::Arc;

use super::admit::check_length;
use super::cache::CacheBook;
use super::layout::Layout;
use super::sequence::Draft;
use super::step::StepMetadata;
use super::table::{Growth, shortage};
use super::{PoolOp, SequenceId, SlotRole};
use crate::book::error::{BookError, Result};

/// One sequence's part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// The sequence.
    pub sequence: SequenceId,
    /// Tokens that this step computes for it: a chunk of its prompt, 1 to decode, the candidates of a speculation.
    pub tokens: u32,
}

impl CacheBook {
    /// Grows the sequences of a step by its tokens and fills in where everything lies.
    ///
    /// # Errors
    /// Whatever makes any sequence's part impossible; then none has changed.
    pub fn step(&mut self, work: &[Work], metadata: &mut StepMetadata) -> Result<()> {
        self.advance(work, metadata, false)
    }

    /// As [`CacheBook::step`] for candidate tokens: nothing counts before [`CacheBook::commit`].
    ///
    /// Each sequence gets a row of the draft pools for its candidates' states; live slots are only read.
    ///
    /// # Errors
    /// As [`CacheBook::step`]; more candidates or sequences than the plan has draft rows and positions for.
    pub fn speculate(&mut self, work: &[Work], metadata: &mut StepMetadata) -> Result<()> {
        let layout = Arc::clone(&self.layout);
        for part in work {
            check_limit("candidate positions", u64::from(part.tokens), layout.limits.draft_positions)?;
        }
        if layout.has_slots() {
            check_limit("sequences in speculative steps", work.len() as u64, self.free_rows.len() as u64)?;
        }
        self.advance(work, metadata, true)
    }

    fn advance(&mut self, work: &[Work], metadata: &mut StepMetadata, speculative: bool) -> Result<()> {
        self.reclaim()?;
        let layout = Arc::clone(&self.layout);
        let mut growths = std::mem::take(&mut self.growths);
        growths.clear();
        let checked = self.check_step(&layout, work, &mut growths);
        let done = checked.and_then(|()| self.apply_step(&layout, work, &growths, speculative));
        self.growths = growths;
        done?;
        self.describe(&layout, work, metadata)
    }

    /// Works out what the step needs and refuses it if that is not there. Changes nothing but duplicate stamps.
    fn check_step(&mut self, layout: &Layout, work: &[Work], growths: &mut Vec<Growth>) -> Result<()> {
        self.steps += 1;
        let stamp = self.steps;
        let tokens = work.iter().map(|part| u64::from(part.tokens)).sum();
        check_limit("sequences in a step", work.len() as u64, layout.limits.max_batch_size)?;
        check_limit("tokens in a step", tokens, layout.limits.max_num_tokens)?;
        for part in work {
            let sequence = self.settled(part.sequence)?;
            if part.tokens == 0 {
                return Err(BookError::NoTokens(part.sequence));
            }
            let end = u64::from(sequence.tokens) + u64::from(part.tokens);
            check_length(layout, end)?;
            for ((table, spec), blocks) in sequence.tables.iter().zip(&layout.paged).zip(&self.blocks) {
                growths.push(table.growth(spec, blocks, sequence.tokens, end as u32));
            }
            let sequence = self.sequences.get_mut(part.sequence)?;
            if std::mem::replace(&mut sequence.step, stamp) == stamp {
                return Err(BookError::DuplicateSequence(part.sequence));
            }
        }
        let pools = layout.paged.len();
        for (paged, (spec, blocks)) in layout.paged.iter().zip(&self.blocks).enumerate() {
            let column = || growths.iter().skip(paged).step_by(pools.max(1));
            let needed: u64 = column().map(|growth| u64::from(growth.needed())).sum();
            let freed: u64 = column().map(|growth| u64::from(growth.freed)).sum();
            if needed > u64::from(blocks.available()) + freed {
                self.refused[paged] += 1;
                return Err(shortage(spec, blocks, needed, freed));
            }
        }
        Ok(())
    }

    fn apply_step(&mut self, layout: &Layout, work: &[Work], growths: &[Growth], speculative: bool) -> Result<()> {
        let pools = layout.paged.len();
        // All releases come first: what one sequence lets go, another may take.
        for (row, part) in work.iter().enumerate() {
            let sequence = self.sequences.get_mut(part.sequence)?;
            for (paged, (table, blocks)) in sequence.tables.iter_mut().zip(&mut self.blocks).enumerate() {
                table.release_front(blocks, growths[row * pools + paged])?;
            }
        }
        for (row, part) in work.iter().enumerate() {
            let sequence = self.sequences.get_mut(part.sequence)?;
            let tables = sequence.tables.iter_mut().zip(&layout.paged).zip(&mut self.blocks);
            for (paged, ((table, spec), blocks)) in tables.enumerate() {
                if speculative {
                    table.begin_draft();
                }
                let growth = growths[row * pools + paged];
                if let Some((from, to)) = table.grow(spec, blocks, sequence.tokens, growth)? {
                    self.ops.push(PoolOp::CopyBlock { paged, from, to });
                }
            }
            if speculative {
                let row = sequence.slot.and_then(|_| self.free_rows.pop());
                sequence.draft = Some(Draft { row, candidates: part.tokens });
            } else {
                sequence.tokens += part.tokens;
            }
        }
        Ok(())
    }

    fn describe(&self, layout: &Layout, work: &[Work], metadata: &mut StepMetadata) -> Result<()> {
        metadata.clear(layout.paged.len());
        for part in work {
            let sequence = self.sequences.get(part.sequence)?;
            let end = sequence.tokens + sequence.draft.map_or(0, |draft| draft.candidates);
            metadata.positions.extend(end - part.tokens..end);
            metadata.cu_seqlens.push(metadata.positions.len() as u32);
            metadata.kv_lens.push(end);
            metadata.slots.push(sequence.slot.map_or(-1, |slot| slot.0 as i32));
            let row = sequence.draft.and_then(|draft| draft.row);
            metadata.draft_rows.push(row.map_or(-1, |row| row as i32));
        }
        for (paged, (spec, pool)) in layout.paged.iter().zip(&mut metadata.pools).enumerate() {
            pool.id.clone_from(&spec.id);
            let rows = work.iter().zip(&metadata.kv_lens);
            for (_, &end) in rows.clone() {
                pool.max_blocks = pool.max_blocks.max(spec.blocks_for(end) as usize);
            }
            pool.block_tables.reserve(work.len() * pool.max_blocks);
            for (part, &end) in rows {
                let table = &self.sequences.get(part.sequence)?.tables[paged];
                let row_end = pool.block_tables.len() + pool.max_blocks;
                pool.block_tables.extend_from_slice(&table.entries()[..spec.blocks_for(end) as usize]);
                pool.block_tables.resize(row_end, -1);
                let entries = i64::from(spec.entries_per_block);
                pool.slot_mapping.extend((end - part.tokens..end).map(|position| {
                    if (position + 1) % spec.stride != 0 && position + 1 != end {
                        return -1;
                    }
                    let entry = position / spec.stride;
                    let block = table.entries()[(entry / spec.entries_per_block) as usize];
                    i64::from(block) * entries + i64::from(entry % spec.entries_per_block)
                }));
            }
        }
        Ok(())
    }

    /// Counts the sequences that could be admitted before slots run out.
    pub fn free_live_slots(&self) -> u32 {
        self.slots.available(SlotRole::Live)
    }
}

fn check_limit(what: &'static str, found: u64, limit: u64) -> Result<()> {
    if found <= limit { Ok(()) } else { Err(BookError::StepTooLarge { what, found, limit }) }
}
