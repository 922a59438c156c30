//! The pools whose blocks of one page, or of several, are one unit to the tree.

use std::ops::Range;

use crate::book::error::BookError;
use crate::book::{BlockId, CacheBook, SequenceId};

/// The tree knows one block per page; a plan may have several pools of blocks. Here the blocks of one page in all of
/// them are one *unit*, and a unit is what the tree holds. Where pages are smaller than blocks, several are of one unit.
///
/// A block holds all tokens of its sequence up to the last that is written. So of a block the tree may have some pages
/// from one sequence and those behind from another, and the last page's unit has them all.
#[derive(Debug)]
pub(super) struct Pages {
    /// Which paged pools.
    pub(super) pools: Vec<usize>,
    /// Pages in a block.
    per_block: usize,
    /// The blocks of each unit, one per pool.
    blocks: Vec<BlockId>,
    /// Pages that hold each unit.
    holders: Vec<u32>,
    /// Units that hold nothing.
    free: Vec<BlockId>,
    made: u32,
}

impl Pages {
    pub(super) fn new(pools: Vec<usize>, per_block: usize) -> Self {
        Self { pools, per_block, blocks: Vec::new(), holders: Vec::new(), free: Vec::new(), made: 0 }
    }

    /// The block of a unit in each pool, with the pool's number.
    pub(super) fn blocks_of(&self, unit: BlockId) -> impl Iterator<Item = (usize, BlockId)> {
        self.pools.iter().copied().zip(self.blocks[self.place(unit)].iter().copied())
    }

    fn place(&self, unit: BlockId) -> Range<usize> {
        let start = unit.0 as usize * self.pools.len();
        start..start + self.pools.len()
    }

    /// The blocks of the pages from `first` on, by paged pool: each block as the last of its pages has it.
    pub(super) fn spread(&self, first: usize, units: &[BlockId], blocks: &mut [Vec<BlockId>]) {
        let (front, whole) = units.split_at((first.next_multiple_of(self.per_block) - first).min(units.len()));
        let last = front.last().into_iter().chain(whole.chunks(self.per_block).filter_map(<[_]>::last));
        let last: Vec<BlockId> = last.copied().collect();
        for (at, &paged) in self.pools.iter().enumerate() {
            blocks[paged] = last.iter().map(|&unit| self.blocks[self.place(unit)][at]).collect();
        }
    }

    /// The first page of which a sequence has a block in each of the pools.
    pub(super) fn first_page(&self, book: &CacheBook, sequence: SequenceId) -> Result<usize, BookError> {
        let mut first = 0;
        for &paged in &self.pools {
            let table = book.block_table(sequence, paged)?;
            first = first.max(table.iter().take_while(|&&block| block < 0).count());
        }
        Ok(first * self.per_block)
    }

    /// How many units of fresh blocks there is room for.
    pub(super) fn room(&self, book: &CacheBook) -> usize {
        self.pools.iter().map(|&paged| book.blocks[paged].available() as usize).min().unwrap_or(0)
    }

    /// So many units of fresh blocks, for which there is [`Pages::room`].
    pub(super) fn fresh(&mut self, book: &mut CacheBook, count: usize) -> Vec<BlockId> {
        let mut tables = Vec::with_capacity(self.pools.len());
        for &paged in &self.pools {
            let blocks = &mut book.blocks[paged];
            tables.push((0..count).filter_map(|_| blocks.allocate()).collect::<Vec<_>>());
        }
        let units = self.units(&tables, count);
        units.iter().for_each(|&unit| self.holders[unit.0 as usize] += 1);
        units
    }

    /// Units of a sequence's pages, each with a reference of its own to the blocks.
    pub(super) fn take(
        &mut self,
        book: &mut CacheBook,
        sequence: SequenceId,
        pages: Range<usize>,
    ) -> Result<Vec<BlockId>, BookError> {
        if pages.is_empty() {
            return Ok(Vec::new());
        }
        let span = pages.start / self.per_block..pages.end.div_ceil(self.per_block);
        let mut tables = Vec::with_capacity(self.pools.len());
        for &paged in &self.pools {
            let blocks = &book.block_table(sequence, paged)?[span.clone()];
            tables.push(blocks.iter().map(|&block| BlockId(block as u32)).collect::<Vec<_>>());
        }
        for (&paged, blocks) in self.pools.iter().zip(&tables) {
            blocks.iter().try_for_each(|&block| book.blocks_mut(paged)?.retain(block))?;
        }
        let units = self.units(&tables, span.len());
        let held: Vec<BlockId> = pages.map(|page| units[page / self.per_block - span.start]).collect();
        held.iter().for_each(|&unit| self.holders[unit.0 as usize] += 1);
        Ok(held)
    }

    /// Pages at the front of `units` that are a sequence's own blocks in every pool; the first `known` of them are.
    pub(super) fn shared(
        &self,
        book: &CacheBook,
        sequence: SequenceId,
        known: usize,
        units: &[BlockId],
    ) -> Result<usize, BookError> {
        let mut shared = units.len();
        for (at, &paged) in self.pools.iter().enumerate() {
            let table = book.block_table(sequence, paged)?;
            let other = (known..shared).find(|&page| {
                let own = table.get(page / self.per_block).and_then(|&block| u32::try_from(block).ok());
                own != Some(self.blocks[self.place(units[page])][at].0)
            });
            shared = other.unwrap_or(shared);
        }
        Ok(shared)
    }

    /// Units that no page holds yet.
    fn units(&mut self, tables: &[Vec<BlockId>], count: usize) -> Vec<BlockId> {
        let units = (0..count).map(|page| {
            let unit = self.free.pop().unwrap_or_else(|| {
                self.made += 1;
                self.blocks.resize(self.made as usize * self.pools.len(), BlockId(u32::MAX));
                self.holders.push(0);
                BlockId(self.made - 1)
            });
            let place = self.place(unit);
            self.blocks[place].iter_mut().zip(tables).for_each(|(block, blocks)| *block = blocks[page]);
            unit
        });
        units.collect()
    }

    pub(super) fn give_back(&mut self, book: &mut CacheBook, units: Vec<BlockId>) -> Result<(), BookError> {
        for unit in units {
            let holders = &mut self.holders[unit.0 as usize];
            *holders -= 1;
            if *holders > 0 {
                continue;
            }
            for (&paged, &block) in self.pools.iter().zip(&self.blocks[self.place(unit)]) {
                book.blocks_mut(paged)?.release(block)?;
            }
            self.free.push(unit);
        }
        Ok(())
    }
}
