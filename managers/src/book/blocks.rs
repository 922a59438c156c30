//! The blocks of one pool: who holds them, which are free.

use super::BlockId;
use crate::book::error::{BookError, Result};

/// Hands out the blocks of one pool and counts their holders.
///
/// Every operation is O(1) and independent of the pool's size.
/// A block is held by sequences and by prefix caches alike; it is free when its last holder lets go.
#[derive(Clone, Debug)]
pub struct BlockAllocator {
    /// Holders per block; 0 is free.
    references: Vec<u32>,
    /// Free blocks; the most recently freed is handed out first, while it is still warm.
    free: Vec<u32>,
    /// Blocks at the front that pad block tables.
    reserved: u32,
    high_water: u32,
}

impl BlockAllocator {
    /// A pool of `blocks`, of which the first `reserved` are never handed out and the others free.
    pub fn new(blocks: u32, reserved: u32) -> Self {
        let free = (reserved.min(blocks)..blocks).rev().collect();
        Self { references: vec![0; blocks as usize], free, reserved: reserved.min(blocks), high_water: 0 }
    }

    /// Takes a free block for one holder; `None` if there is none.
    pub fn allocate(&mut self) -> Option<BlockId> {
        let block = self.free.pop()?;
        self.references[block as usize] = 1;
        self.high_water = self.high_water.max(self.used());
        Some(BlockId(block))
    }

    /// Adds a holder to a block that is held already.
    ///
    /// # Errors
    /// A block that is free or out of range.
    pub fn retain(&mut self, block: BlockId) -> Result<()> {
        *self.held(block)? += 1;
        Ok(())
    }

    /// Removes a holder; true if it was the last, so that the block is free now.
    ///
    /// # Errors
    /// A block that is free or out of range: a double free.
    pub fn release(&mut self, block: BlockId) -> Result<bool> {
        let references = self.held(block)?;
        *references -= 1;
        let freed = *references == 0;
        if freed {
            self.free.push(block.0);
        }
        Ok(freed)
    }

    /// Counts the holders of a block; 0 if it is free or out of range.
    pub fn references(&self, block: BlockId) -> u32 {
        self.references.get(block.0 as usize).copied().unwrap_or(0)
    }

    /// Blocks that can be held at once.
    pub fn capacity(&self) -> u32 {
        self.references.len() as u32 - self.reserved
    }

    /// Blocks that nobody holds.
    pub fn available(&self) -> u32 {
        self.free.len() as u32
    }

    /// Blocks that somebody holds.
    pub fn used(&self) -> u32 {
        self.capacity() - self.available()
    }

    /// The most blocks that were held at once.
    pub fn high_water(&self) -> u32 {
        self.high_water
    }

    /// The blocks that nobody holds.
    pub fn free_blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.free.iter().map(|&block| BlockId(block))
    }

    /// The blocks that somebody holds.
    #[cfg(feature = "device")]
    pub(crate) fn held_blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        let held = self.references.iter().zip(0..).filter(|(references, _)| **references > 0);
        held.map(|(_, block)| BlockId(block))
    }

    /// All blocks, reserved ones included.
    pub(crate) fn units(&self) -> u32 {
        self.references.len() as u32
    }

    /// The held block of the highest number.
    pub(crate) fn highest_held(&self) -> Option<BlockId> {
        self.references.iter().rposition(|&references| references > 0).map(|block| BlockId(block as u32))
    }

    /// Makes the pool `blocks` large; blocks that go away must be free.
    pub(crate) fn resize(&mut self, blocks: u32) {
        let old = self.units();
        self.references.resize(blocks as usize, 0);
        self.free.retain(|&block| block < blocks);
        // New blocks are handed out last.
        self.free.splice(0..0, (old..blocks).rev());
    }

    fn held(&mut self, block: BlockId) -> Result<&mut u32> {
        match self.references.get_mut(block.0 as usize) {
            Some(references) if *references > 0 => Ok(references),
            _ => Err(BookError::BlockNotHeld { block }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_handed_out_in_order_and_reused_warm() {
        let mut blocks = BlockAllocator::new(3, 0);
        assert_eq!(blocks.allocate(), Some(BlockId(0)));
        assert_eq!(blocks.allocate(), Some(BlockId(1)));
        assert!(blocks.release(BlockId(0)).unwrap());
        assert_eq!(blocks.allocate(), Some(BlockId(0)));
        assert_eq!(blocks.allocate(), Some(BlockId(2)));
        assert_eq!(blocks.allocate(), None);
        assert_eq!((blocks.used(), blocks.available(), blocks.high_water()), (3, 0, 3));
    }

    #[test]
    fn reserved_blocks_are_never_handed_out() {
        let mut blocks = BlockAllocator::new(3, 1);
        assert_eq!((blocks.capacity(), blocks.available()), (2, 2));
        assert_eq!(blocks.allocate(), Some(BlockId(1)));
        assert_eq!(blocks.release(BlockId(0)), Err(BookError::BlockNotHeld { block: BlockId(0) }));
    }

    #[test]
    fn a_block_is_free_when_its_last_holder_lets_go() {
        let mut blocks = BlockAllocator::new(1, 0);
        let block = blocks.allocate().unwrap();
        blocks.retain(block).unwrap();
        assert!(!blocks.release(block).unwrap());
        assert!(blocks.release(block).unwrap());
    }

    #[test]
    fn a_double_free_is_an_error_that_names_the_block() {
        let mut blocks = BlockAllocator::new(1, 0);
        let block = blocks.allocate().unwrap();
        blocks.release(block).unwrap();
        assert_eq!(blocks.release(block), Err(BookError::BlockNotHeld { block }));
        assert_eq!(blocks.retain(block), Err(BookError::BlockNotHeld { block }));
        assert!(blocks.release(BlockId(9)).is_err());
        assert_eq!(blocks.available(), 1);
    }
}
