//! The block table of one sequence in one pool.

use super::layout::PagedSpec;
use super::{BlockAllocator, BlockId};
use crate::book::error::{BookError, Lack, Result, Scarce};

/// What a released block's entry holds.
const RELEASED: i32 = -1;

/// The blocks of one sequence in one pool, by logical block.
///
/// Entries are kept in the form that kernels read, so that a step copies rows and computes nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockTable {
    /// Block per logical block; -1 for those that a sliding window has released, which all stand in front.
    entries: Vec<i32>,
    /// How many stand in front.
    released: usize,
    /// Logical blocks that there were before an uncommitted speculative step, those reserved for later included.
    before_draft: usize,
}

/// What one step needs of one table, worked out before anything changes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Growth {
    /// Blocks at the front that the window has passed and that leave it.
    pub(crate) release: usize,
    /// The first of them, from among which blocks move to the end.
    pub(crate) reusable: usize,
    /// How many move: those that nobody else holds.
    pub(crate) reuse: u32,
    /// Of the others, those that nobody else holds, so that they become free.
    pub(crate) freed: u32,
    /// Whether the first written block is shared and must be copied first.
    pub(crate) copy: bool,
    /// Blocks that are new at the end.
    pub(crate) append: u32,
}

impl Growth {
    /// Blocks taken from the allocator.
    pub(crate) fn needed(self) -> u32 {
        self.append + u32::from(self.copy)
    }
}

impl BlockTable {
    /// A table that starts with `blocks`, which the caller has retained for it.
    pub(crate) fn from_blocks(released: usize, blocks: &[BlockId]) -> Self {
        let front = std::iter::repeat_n(RELEASED, released);
        Self { entries: front.chain(blocks.iter().map(|block| block.0 as i32)).collect(), released, before_draft: 0 }
    }

    /// The entries: a block each, or -1 where a window has released it.
    pub(crate) fn entries(&self) -> &[i32] {
        &self.entries
    }

    /// Logical blocks at the front that were released.
    pub(crate) fn released(&self) -> usize {
        self.released
    }

    /// The block at a logical index, if held.
    pub(crate) fn block(&self, logical: u32) -> Option<BlockId> {
        self.entries.get(logical as usize).and_then(|&entry| u32::try_from(entry).ok()).map(BlockId)
    }

    /// What growing from `tokens` to `end` tokens needs.
    pub(crate) fn growth(&self, spec: &PagedSpec, blocks: &BlockAllocator, tokens: u32, end: u32) -> Growth {
        let visible = (spec.first_visible_block(tokens) as usize).min(self.entries.len());
        let append = (spec.blocks_for(end) as usize).saturating_sub(self.entries.len());
        let passed = visible.saturating_sub(self.released);
        // A ring keeps what the step leaves room for.
        let room = (spec.ring as usize).saturating_sub(self.entries.len() - visible + append);
        let release = passed.saturating_sub(room);
        let leaving = &self.entries[self.released..self.released + release];
        let alone = |entries: &[i32]| {
            entries.iter().filter(|&&entry| blocks.references(BlockId(entry as u32)) == 1).count() as u32
        };
        let reusable = if spec.ring > 0 { append.min(release) } else { 0 };
        let (first, rest) = leaving.split_at(reusable);
        let first_written = tokens / spec.stride / spec.entries_per_block;
        let copy = self.block(first_written).is_some_and(|block| blocks.references(block) > 1);
        let reuse = alone(first);
        Growth { release, reusable, reuse, freed: alone(rest), copy, append: append as u32 - reuse }
    }

    /// Grows as worked out; returns the copy to make, if any. The caller has checked that the blocks are there.
    pub(crate) fn grow(
        &mut self,
        spec: &PagedSpec,
        blocks: &mut BlockAllocator,
        tokens: u32,
        growth: Growth,
    ) -> Result<Option<(BlockId, BlockId)>> {
        let mut copied = None;
        if growth.copy {
            let first_written = (tokens / spec.stride / spec.entries_per_block) as usize;
            let from = BlockId(self.entries[first_written] as u32);
            // Another sequence of the same step may have copied it already and left it to this one.
            if blocks.references(from) > 1 {
                let to = allocate(spec, blocks)?;
                blocks.release(from)?;
                self.entries[first_written] = to.0 as i32;
                copied = Some((from, to));
            }
        }
        self.append(spec, blocks, growth.append)?;
        Ok(copied)
    }

    /// Lets the first held blocks go: some move to the end, the others are released.
    pub(crate) fn release_front(&mut self, blocks: &mut BlockAllocator, growth: Growth) -> Result<()> {
        let front = self.released..self.released + growth.release;
        let mut reuse = growth.reuse;
        for at in front.clone() {
            let block = BlockId(std::mem::replace(&mut self.entries[at], RELEASED) as u32);
            if reuse > 0 && at - front.start < growth.reusable && blocks.references(block) == 1 {
                reuse -= 1;
                self.entries.push(block.0 as i32);
            } else {
                blocks.release(block)?;
            }
        }
        self.released = front.end;
        Ok(())
    }

    /// Appends `count` fresh blocks.
    pub(crate) fn append(&mut self, spec: &PagedSpec, blocks: &mut BlockAllocator, count: u32) -> Result<()> {
        self.entries.reserve(count as usize);
        for _ in 0..count {
            self.entries.push(allocate(spec, blocks)?.0 as i32);
        }
        Ok(())
    }

    /// Remembers what there is, before a speculative step grows it.
    pub(crate) fn begin_draft(&mut self) {
        self.before_draft = self.entries.len();
    }

    /// Keeps the first `len` logical blocks, whatever was there before the speculative step, and a ring.
    pub(crate) fn end_draft(&mut self, spec: &PagedSpec, blocks: &mut BlockAllocator, len: usize) -> Result<()> {
        self.truncate(blocks, len.max(self.before_draft).max(self.ring_end(spec)))
    }

    /// Logical blocks that a table with a ring keeps whatever its length.
    fn ring_end(&self, spec: &PagedSpec) -> usize {
        spec.ring_end(self.released as u32) as usize
    }

    /// Keeps the first `len` logical blocks and releases the others.
    pub(crate) fn truncate(&mut self, blocks: &mut BlockAllocator, len: usize) -> Result<()> {
        let kept = len.max(self.released).min(self.entries.len());
        for &entry in self.entries[kept..].iter().rev() {
            blocks.release(BlockId(entry as u32))?;
        }
        self.entries.truncate(kept);
        Ok(())
    }

    /// Keeps the first `len` logical blocks and a ring, as far as nobody else holds what lies behind them.
    pub(crate) fn cut(&mut self, spec: &PagedSpec, blocks: &mut BlockAllocator, len: usize) -> Result<()> {
        let end = self.ring_end(spec).min(self.entries.len());
        let behind = self.entries.get(len..end).unwrap_or(&[]);
        let alone = behind.iter().take_while(|&&entry| blocks.references(BlockId(entry as u32)) == 1).count();
        self.truncate(blocks, len + alone)
    }

    /// Holds `other` where it holds `block`.
    #[cfg(feature = "device")]
    pub(crate) fn exchange(&mut self, blocks: &mut BlockAllocator, block: BlockId, other: BlockId) -> Result<()> {
        if let Some(entry) = self.entries.iter_mut().find(|entry| **entry == block.0 as i32) {
            blocks.retain(other)?;
            blocks.release(block)?;
            *entry = other.0 as i32;
        }
        Ok(())
    }

    /// A table that holds the first `len` logical blocks too.
    pub(crate) fn share(&self, blocks: &mut BlockAllocator, len: usize) -> Result<Self> {
        let entries = self.entries[..len.min(self.entries.len())].to_vec();
        for &entry in entries.iter().skip(self.released) {
            blocks.retain(BlockId(entry as u32))?;
        }
        Ok(Self { entries, released: self.released, before_draft: 0 })
    }

    /// Releases every block and forgets them.
    pub(crate) fn clear(&mut self, blocks: &mut BlockAllocator) -> Result<()> {
        self.truncate(blocks, 0)?;
        self.entries.clear();
        self.released = 0;
        Ok(())
    }
}

pub(super) fn allocate(spec: &PagedSpec, blocks: &mut BlockAllocator) -> Result<BlockId> {
    blocks.allocate().ok_or_else(|| shortage(spec, blocks, 1, 0))
}

/// The error for a pool that has fewer than `needed` blocks, `freed` of which the request itself would free.
pub(crate) fn shortage(spec: &PagedSpec, blocks: &BlockAllocator, needed: u64, freed: u64) -> BookError {
    let free = u64::from(blocks.available()) + freed;
    let of = Scarce::Blocks { paged: spec.paged, pool: spec.id.clone() };
    Lack { of, needed, free, capacity: u64::from(blocks.capacity()) }.into()
}
