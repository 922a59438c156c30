//! What only the device half asks for: which units matter, and taking back what it did not carry out.

use std::sync::Arc;

use super::cache::{CacheBook, SlotMove};
use super::layout::Indexing;
use super::{PoolOp, Work};
use crate::book::error::Result;

impl CacheBook {
    /// The units of a pool whose contents matter; `None` if all do.
    pub(crate) fn held_units(&self, indexing: Indexing) -> Option<Vec<u32>> {
        match indexing {
            Indexing::Blocks(paged) => Some(self.blocks.get(paged)?.held_blocks().map(|block| block.0).collect()),
            Indexing::Slots => Some(self.slots.held_slots().map(|slot| slot.0).collect()),
            Indexing::Checkpoints => Some(self.checkpoints().held_slots().map(|slot| slot.0).collect()),
            Indexing::DraftRows | Indexing::Fixed => None,
        }
    }

    /// Takes back the last step, whose copies the device did not make.
    ///
    /// Blocks that a window has passed stay released: no later token sees them.
    pub(crate) fn undo_step(&mut self, work: &[Work], copies: &[PoolOp], speculative: bool) -> Result<()> {
        let layout = Arc::clone(&self.layout);
        let pools = layout.paged.len();
        for (row, part) in work.iter().enumerate() {
            let sequence = self.sequences.get_mut(part.sequence)?;
            if speculative {
                self.free_rows.extend(sequence.draft.take().and_then(|draft| draft.row));
            } else {
                sequence.tokens -= part.tokens;
            }
            for (paged, (table, blocks)) in sequence.tables.iter_mut().zip(&mut self.blocks).enumerate() {
                let appended = self.growths[row * pools + paged].append as usize;
                table.truncate(blocks, table.entries().len() - appended)?;
                for copy in copies {
                    if let PoolOp::CopyBlock { paged: pool, from, to } = *copy
                        && pool == paged
                    {
                        table.exchange(blocks, to, from)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Takes back moves that the device did not make.
    pub(crate) fn undo_moves(&mut self, moves: &[SlotMove]) -> Result<()> {
        for moved in moves.iter().rev() {
            self.slots.relocate(moved.to, moved.from)?;
            self.sequences.get_mut(moved.sequence)?.slot = Some(moved.from);
        }
        Ok(())
    }
}
