//! Prefixes that lie in host memory: brought back before a sequence starts from them.

use super::PrefixReuse;
use super::pages::Pages;
use crate::book::error::BookError;
use crate::book::{BlockId, CacheBook, PoolOp};
use crate::prefix::cache::PrefixCache;
use crate::prefix::{Key, Load, Match, Offload, Released};

impl PrefixReuse {
    /// What the tree has of a prompt, all blocks of it on the device, behind a state that is one.
    pub(super) fn find(&mut self, book: &mut CacheBook, prompt: Key<'_>) -> Result<Match, BookError> {
        let found = self.lookup(book, prompt, PrefixCache::lookup)?;
        let page = self.cache.tree().config().page;
        let pages = [found.hit.saturating_sub(found.resident), found.host_window].map(|tokens| tokens / page);
        if pages == [0, 0] {
            return Ok(found);
        }
        if self.bring_back(book, &found, pages)? {
            let found = self.lookup(book, prompt, PrefixCache::lookup)?;
            if found.hit <= found.resident && found.host_window == 0 {
                return Ok(found);
            }
        }
        self.lookup(book, prompt, PrefixCache::lookup_resident)
    }

    /// Looks a prompt up, and drops states on the way that could not be stored: what they stood for is computed again.
    pub(super) fn lookup(
        &mut self,
        book: &mut CacheBook,
        prompt: Key<'_>,
        look: impl Fn(&PrefixCache, Key<'_>) -> Match,
    ) -> Result<Match, BookError> {
        loop {
            let found = look(&self.cache, prompt);
            let spoiled = found.state.is_some_and(|slot| book.is_spoiled(slot))
                || found.host_state.is_some_and(|slot| self.spoiled.contains(&slot));
            if !spoiled {
                return Ok(found);
            }
            let mut out = Released::default();
            if !self.cache.discard_state(&found, &mut out)? {
                return Ok(Match::MISS);
            }
            self.give_back(book, out)?;
        }
    }

    /// Brings back what of a hit lies on the host, so many pages of whole contexts and of windows; `false` where there is
    /// no room for them. The hit is held while room is made.
    fn bring_back(&mut self, book: &mut CacheBook, found: &Match, pages: [usize; 2]) -> Result<bool, BookError> {
        let Ok(held) = self.cache.hold_to_load(found) else { return Ok(false) };
        let brought = self.bring_held_back(book, found, pages);
        self.cache.let_go(held)?;
        brought
    }

    fn bring_held_back(&mut self, book: &mut CacheBook, found: &Match, pages: [usize; 2]) -> Result<bool, BookError> {
        for (windowed, count) in [(false, pages[0]), (true, pages[1])] {
            while count > 0 && self.pages(windowed).room(book) < count {
                let mut out = Released::default();
                let evicted = self.evict(windowed, &mut out);
                self.give_back(book, out)?;
                if !evicted {
                    return Ok(false);
                }
            }
        }
        let full = self.full.fresh(book, pages[0]);
        let windows = self.windows.fresh(book, pages[1]);
        let mut loads = Vec::new();
        if self.cache.load(found, &full, &windows, &mut loads).is_err() {
            self.full.give_back(book, full)?;
            self.windows.give_back(book, windows)?;
            return Ok(false);
        }
        for load in loads {
            let (pages, from, to) = match load {
                Load::Block { from, to } => (&self.full, from, to),
                Load::Window { from, to } => (&self.windows, from, to),
            };
            let copies = pages.blocks_of(to).map(|(paged, to)| PoolOp::BlockFromHost { paged, from: from.0, to });
            book.ops.extend(copies);
        }
        Ok(true)
    }

    /// Queues the copies to the host of what the tree has moved there.
    pub(super) fn offload(&mut self, book: &mut CacheBook, copies: &[Offload]) {
        let blocks = |pages: &Pages, unit: BlockId, to: u32| {
            let copies = pages.blocks_of(unit).map(|(paged, from)| PoolOp::BlockToHost { paged, from, to });
            copies.collect::<Vec<_>>()
        };
        for copy in copies {
            match *copy {
                Offload::Block { from, to } => book.ops.extend(blocks(&self.full, from, to.0)),
                Offload::Window { from, to } => book.ops.extend(blocks(&self.windows, from, to.0)),
                Offload::State { from, to } => {
                    match book.is_spoiled(from) {
                        true => self.spoiled.insert(to),
                        false => self.spoiled.remove(&to),
                    };
                    book.ops.push(PoolOp::CheckpointToHost { from, to: to.0 });
                }
            }
        }
    }
}
