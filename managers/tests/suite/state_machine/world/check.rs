//! What must hold of the books, between operations and when one is refused.

use super::*;

impl World {
    /// Runs an operation that may lack room. If it does, nothing may have changed, and something must be short.
    pub(super) fn expect_room<R>(
        &mut self,
        operation: impl FnOnce(&mut CacheBook) -> Result<R, BookError>,
    ) -> Option<R> {
        let before = self.fingerprint();
        match operation(&mut self.book) {
            Ok(result) => Some(result),
            Err(BookError::Lack(Lack { of, needed, free, .. })) => {
                assert!(needed > free);
                if let Scarce::Slots(_) = of {
                    assert_eq!(free, 0);
                }
                assert_eq!(self.fingerprint(), before);
                None
            }
            Err(BookError::NoHostTier) => {
                assert!(self.plan.host.is_none());
                assert_eq!(self.fingerprint(), before);
                None
            }
            Err(BookError::TooLong { .. } | BookError::WrongState { .. } | BookError::StepTooLarge { .. }) => {
                assert_eq!(self.fingerprint(), before);
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Everything that an operation could change.
    #[allow(clippy::type_complexity, reason = "compared, never looked into")]
    pub(super) fn fingerprint(&self) -> (Vec<(SequenceId, u32, Option<SlotId>, Vec<Vec<i32>>)>, Vec<u32>, [u32; 2]) {
        let mut sequences: Vec<_> = self
            .book
            .sequences()
            .map(|id| {
                let tables = (0..self.blocks.len()).map(|paged| match self.book.block_table(id, paged) {
                    Ok(table) => table.to_vec(),
                    Err(_) => Vec::new(),
                });
                (id, self.book.tokens(id).unwrap(), self.book.slot(id).unwrap(), tables.collect())
            })
            .collect();
        sequences.sort_unstable();
        let free = (0..self.blocks.len()).map(|paged| self.book.blocks(paged).unwrap().available()).collect();
        let slots = [SlotRole::Live, SlotRole::Checkpoint].map(|role| self.book.slots().used(role));
        (sequences, free, slots)
    }

    /// Checks contents, holders and counts against the model.
    pub(crate) fn check(&self) {
        let mut holders: Vec<HashMap<u32, u32>> = vec![HashMap::new(); self.blocks.len()];
        let mut slots = HashSet::new();
        for held in &self.held {
            for (paged, blocks) in held.prefix.blocks.iter().enumerate() {
                for block in blocks {
                    *holders[paged].entry(block.0).or_default() += 1;
                }
            }
            if let Some(slot) = held.prefix.state {
                assert!(slots.insert(slot), "slot {slot:?} is in two places");
                assert_eq!(self.slots[slot.0 as usize].as_ref(), Some(&held.tokens), "a checkpoint changed");
            }
        }
        for (&id, model) in &self.models {
            if self.book.residency(id).unwrap() != Residency::Resident {
                assert_eq!(self.book.slot(id).unwrap(), None);
                continue;
            }
            assert_eq!(self.book.tokens(id).unwrap() as usize, model.tokens.len());
            if let Some(slot) = self.book.slot(id).unwrap() {
                assert!(slots.insert(slot), "slot {slot:?} is in two places");
                assert_eq!(self.slots[slot.0 as usize].as_ref(), Some(&model.tokens), "the state of {id} is another's");
            }
            for (paged, pool) in self.blocks.iter().enumerate() {
                let spec = &self.book.layout().paged[paged];
                let table = self.book.block_table(id, paged).unwrap();
                for &block in table.iter().filter(|&&block| block >= 0) {
                    *holders[paged].entry(block as u32).or_default() += 1;
                }
                let entries = spec.entries_per_block as usize;
                let first = spec.window.map_or(0, |window| (model.tokens.len() + 1).saturating_sub(window as usize));
                for (position, &token) in model.tokens.iter().enumerate().skip(first) {
                    let block = table[position / entries];
                    assert!(block > 0, "{id} lost the visible token {position} of pool {}", spec.id);
                    assert_eq!(pool[block as usize][position % entries], Some(token), "{id} reads another's token");
                }
                if spec.ring > 0 && model.candidates.is_none() {
                    self.check_ring(id, paged, model, first);
                }
            }
        }
        for (paged, expected) in holders.iter().enumerate() {
            let blocks = self.book.blocks(paged).unwrap();
            assert_eq!(blocks.used() as usize, expected.len(), "blocks leaked");
            for (&block, &count) in expected {
                assert_eq!(blocks.references(BlockId(block)), count);
            }
        }
        let used = self.book.slots().used(SlotRole::Live) + self.book.slots().used(SlotRole::Checkpoint);
        assert_eq!(used as usize, slots.len(), "slots leaked");
        let stats = self.book.stats();
        let in_host = self.parked_bytes() + self.set_aside.as_ref().map_or(0, |(_, bytes)| *bytes);
        assert_eq!(stats.host.map(|host| host.used_bytes), self.plan.host.as_ref().map(|_| in_host));
        for (pool, expected) in stats.pools.iter().zip(&holders) {
            assert_eq!((pool.used as usize, pool.used + pool.free), (expected.len(), pool.capacity));
        }
    }

    /// A kernel that knows rings only finds every token that the next query sees.
    pub(super) fn check_ring(&self, id: SequenceId, paged: usize, model: &Model, first: usize) {
        let spec = &self.book.layout().paged[paged];
        let entries = spec.entries_per_block as usize;
        let ring = self.book.ragged_pages(&[id], paged, PassedPages::Ring).unwrap().pages;
        assert!(ring.len() <= spec.ring as usize);
        for (position, &token) in model.tokens.iter().enumerate().skip(first) {
            let page = ring[position / entries % ring.len()];
            let found = self.blocks[paged][page as usize][position % entries];
            assert_eq!(found, Some(token), "the ring of {id} lost the token {position}");
        }
    }

    /// Bytes of what the model knows to be in host memory.
    pub(super) fn parked_bytes(&self) -> u64 {
        let layout = self.book.layout();
        let blocks = |(saved, paged): (&Vec<_>, usize)| saved.len() as u64 * layout.paged[paged].block_bytes;
        let parked = self.parked.values().map(|(saved, _)| saved.iter().zip(0..).map(blocks).sum::<u64>());
        parked.sum::<u64>() + self.parked.len() as u64 * layout.slot_bytes
    }
}
