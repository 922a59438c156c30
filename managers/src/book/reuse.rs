//! Prefix reuse for the sequences of a book: what an engine would otherwise write around [`PrefixCache`] itself.
//!
//! The tree knows one block per page; a plan may have several pools of blocks. Here the blocks of one page in all of
//! them are one *unit*, and a unit is what the tree holds. Tree and sequences each hold references of their own to a
//! block, so either may let go first. States in the tree are slots of the plan's checkpoints.
//!
//! No kernel needs to know of it: a forward ends where a state is to be kept ([`PrefixReuse::next_tokens`]), and the
//! state is copied from the sequence's slot.

use cacheplan_planner::CachePlan;
use thiserror::Error;

use super::layout::Windows;
use super::prefix::{
    CheckpointFormat, Extend, Key, Lease, Metrics, PrefixCache, PrefixError, Progress, Provision, Released, Reuse,
    Strategy, TenantId, TreeConfig, WindowSpan,
};
use super::{BlockId, CacheBook, Layout, Prefix, SequenceId, SlotId, SlotRole};
use crate::ManagerError;

/// Why the pools of a plan allow no reuse.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NoReuse {
    /// States, and no slots to keep any.
    #[error("{}", Reuse::NoCheckpointSlots)]
    NoCheckpoints,
    /// Checkpoints that no copy of a slot can fill.
    #[error("checkpoints in 8 bits are not slots; leave `workload.checkpoint_dtype` out of the budget")]
    Int8Checkpoints,
    /// A pool whose entries stand for several tokens.
    #[error("an entry of pool `{pool}` stands for {stride} tokens, and is not whole at every page")]
    Compressed {
        /// The pool.
        pool: String,
        /// Tokens per entry.
        stride: u32,
    },
    /// A pool whose blocks go round in rings.
    #[error("pool `{pool}` keeps its windows in rings, whose blocks are written over; use sliding windows")]
    Rings {
        /// The pool.
        pool: String,
    },
    /// Windows of several lengths.
    #[error("pool `{pool}` has a window of {found} tokens, another {expected}; prefixes are kept for one length")]
    Windows {
        /// The pool.
        pool: String,
        /// Its window in tokens.
        found: u32,
        /// That of the first pool with one.
        expected: u32,
    },
    /// Nothing of a sequence is cached.
    #[error("the plan caches nothing of a sequence")]
    NothingCached,
    /// Pools that cannot share an index.
    #[error(transparent)]
    Pools(#[from] PrefixError),
}

/// A prefix cache over the blocks and slots of a [`CacheBook`].
#[derive(Debug)]
pub struct PrefixReuse {
    cache: PrefixCache,
    /// The pools that keep whole contexts.
    full: Units,
    /// The pools that keep windows.
    windows: Units,
}

/// What a sequence has of the tree, from its admission to its end.
///
/// Dropping it gives up the hold on the tree; the sequence itself is the book's.
#[derive(Debug)]
#[must_use = "a dropped lease holds nothing in the tree"]
pub struct ReuseLease {
    lease: Lease,
    prompt: usize,
    cached: usize,
    computed: usize,
}

impl ReuseLease {
    /// Tokens at the front of the prompt that need not be computed.
    #[must_use]
    pub fn cached(&self) -> usize {
        self.cached
    }
}

impl PrefixReuse {
    /// An empty cache for the pools of a plan, as `layout` reads them.
    ///
    /// # Errors
    /// Why they allow no reuse.
    pub fn new(plan: &CachePlan, layout: &Layout, strategy: Strategy) -> Result<Self, NoReuse> {
        let Provision { tree, checkpoints, .. } = Provision::of_plan(plan, 1)?;
        if tree.states && tree.checkpoints == CheckpointFormat::Int8 {
            return Err(NoReuse::Int8Checkpoints);
        }
        if tree.states && checkpoints == 0 {
            return Err(NoReuse::NoCheckpoints);
        }
        if !tree.states && layout.paged.is_empty() {
            return Err(NoReuse::NothingCached);
        }
        let window = layout.paged.iter().find_map(|spec| spec.window);
        for spec in &layout.paged {
            let pool = spec.id.clone();
            match spec.window.zip(window) {
                _ if spec.stride != 1 => return Err(NoReuse::Compressed { pool, stride: spec.stride }),
                Some(_) if layout.windows == Windows::Cyclic => return Err(NoReuse::Rings { pool }),
                Some((found, expected)) if found != expected => {
                    return Err(NoReuse::Windows { pool, found, expected });
                }
                _ => {}
            }
        }
        // A token's window contains the token itself.
        let window = window.map(|window| (window as usize - 1).max(1));
        let config = TreeConfig { window, host: None, ..tree };
        let pools = |windowed: bool| {
            let specs = layout.paged.iter().enumerate();
            Units::new(specs.filter(|(_, spec)| spec.window.is_some() == windowed).map(|(paged, _)| paged).collect())
        };
        Ok(Self { cache: PrefixCache::new(config, strategy)?, full: pools(false), windows: pools(true) })
    }

    /// What it has achieved so far.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        self.cache.metrics()
    }

    /// The tree and its strategy, for inspection.
    #[must_use]
    pub fn cache(&self) -> &PrefixCache {
        &self.cache
    }

    /// Admits a sequence behind what the tree has of its prompt, and makes room for it where nobody uses what is there.
    ///
    /// # Errors
    /// As [`CacheBook::admit`]; nothing has changed then, but that cached prefixes may have made way.
    pub fn admit(
        &mut self,
        book: &mut CacheBook,
        prompt: Key<'_>,
        tenant: TenantId,
    ) -> Result<(SequenceId, ReuseLease), ManagerError> {
        // Live slots are the book's: the cache need not know them.
        const LIVE: SlotId = SlotId(0);
        self.cache.reclaim(&mut Vec::new())?;
        let tokens = u32::try_from(prompt.tokens.len()).unwrap_or(u32::MAX);
        let found = self.cache.lookup(prompt);
        let mut lease = self.cache.hold(&found, LIVE, tenant)?;
        let prefix = self.prefix(book, &lease, found.hit, found.state);
        let admitted = loop {
            match book.admit_prefix(tokens, &prefix) {
                Err(lack) if self.make_room(book, &lack)? => {}
                admitted => break admitted,
            }
        };
        // From here on the sequence has its own references and a copy of the state.
        self.cache.copied(&mut lease)?;
        let sequence = match admitted {
            Ok(sequence) => sequence,
            Err(error) => {
                self.cache.abort(lease)?;
                return Err(error);
            }
        };
        self.cache.admitted(prompt, &found);
        self.cache.release_window(&mut lease)?;
        let (prompt, cached) = (prompt.tokens.len(), found.hit);
        Ok((sequence, ReuseLease { lease, prompt, cached, computed: cached }))
    }

    /// How many of the next `budget` tokens a forward should compute at most, to end where a state is to be kept.
    /// It is 0 only where the budget is.
    #[must_use]
    pub fn next_tokens(&self, lease: &ReuseLease, budget: usize) -> usize {
        let config = self.cache.tree().config();
        let ReuseLease { computed: start, prompt, .. } = *lease;
        let mut end = start.saturating_add(budget);
        if !config.states || start >= prompt {
            return budget;
        }
        if end < prompt {
            // Only whole pages can be found again.
            let whole = end - end % config.page;
            end = if whole > start { whole } else { end };
        }
        let extend = Extend { start, end: end.min(prompt), prompt, branch: lease.lease.branch() };
        let first = self.cache.strategy().checkpoints(config, extend).first().map(|checkpoint| checkpoint.position);
        first.unwrap_or(extend.end) - start
    }

    /// Keeps what a forward has computed, where a later sequence can start from it. `computed` are all tokens of the
    /// sequence whose caches are there.
    ///
    /// # Errors
    /// A sequence or a lease of other books.
    pub fn computed(
        &mut self,
        book: &mut CacheBook,
        sequence: SequenceId,
        lease: &mut ReuseLease,
        computed: Key<'_>,
    ) -> Result<(), ManagerError> {
        let config = self.cache.tree().config();
        let (start, end) = (lease.computed, computed.tokens.len());
        let prompt = lease.prompt;
        lease.computed = end;
        let strategy = self.cache.strategy();
        if !config.states {
            return if end <= prompt { self.store(book, sequence, lease, computed, None) } else { Ok(()) };
        }
        let extend = Extend { start, end, prompt, branch: lease.lease.branch() };
        let wanted = if end <= prompt {
            strategy.checkpoints(config, extend).iter().any(|checkpoint| checkpoint.position == end)
        } else {
            strategy.keeps_decoded(config, end)
        };
        if wanted { self.store_with_state(book, sequence, lease, computed) } else { Ok(()) }
    }

    /// Ends a sequence, and keeps what it has computed.
    ///
    /// # Errors
    /// A sequence or a lease of other books.
    pub fn finish(
        &mut self,
        book: &mut CacheBook,
        sequence: SequenceId,
        mut lease: ReuseLease,
        computed: Key<'_>,
    ) -> Result<(), ManagerError> {
        let TreeConfig { states, page, .. } = *self.cache.tree().config();
        if !states {
            self.store(book, sequence, &mut lease, computed, None)?;
        } else if self.cache.strategy().finish && computed.tokens.len().is_multiple_of(page) {
            // Elsewhere the state has no key.
            self.store_with_state(book, sequence, &mut lease, computed)?;
        }
        self.abandon(lease)?;
        book.finish(sequence)
    }

    /// Gives up the hold of a sequence that leaves nothing; the sequence itself is the caller's to end.
    ///
    /// # Errors
    /// A lease of another cache.
    pub fn abandon(&mut self, lease: ReuseLease) -> Result<(), ManagerError> {
        self.cache.abort(lease.lease)?;
        Ok(())
    }

    /// Evicts something that helps against the lack that an operation reported; `false` where nothing does.
    ///
    /// # Errors
    /// Books that are not those of this cache.
    pub fn make_room(&mut self, book: &mut CacheBook, lack: &ManagerError) -> Result<bool, ManagerError> {
        let ManagerError::OutOfBlocks { pool, .. } = lack else { return Ok(false) };
        let windowed = book.layout().paged.iter().any(|spec| spec.id == *pool && spec.window.is_some());
        let mut out = Released::default();
        let evicted = if windowed { self.cache.evict_window(1, &mut out) } else { self.cache.evict_kv(1, &mut out) };
        self.give_back(book, out)?;
        Ok(evicted.tokens + evicted.window_tokens > 0)
    }

    /// Gives back everything that no running sequence holds.
    ///
    /// # Errors
    /// Books that are not those of this cache.
    pub fn clear(&mut self, book: &mut CacheBook) -> Result<(), ManagerError> {
        self.cache.reclaim(&mut Vec::new())?;
        let mut out = Released::default();
        self.cache.evict_kv(usize::MAX, &mut out);
        self.give_back(book, out)
    }

    /// What a sequence starts from, pool by pool.
    fn prefix(&self, book: &CacheBook, lease: &Lease, hit: usize, state: Option<SlotId>) -> Prefix {
        let page = self.cache.tree().config().page;
        let (mut full, mut window) = (Vec::new(), Vec::new());
        self.cache.held_blocks(lease, &mut full);
        let window_from = self.cache.held_window(lease, &mut window) / page;
        let paged = &book.layout().paged;
        let windowed = paged.iter().find(|spec| spec.window.is_some());
        let visible = windowed.map_or(0, |spec| spec.first_visible_block(hit as u32) as usize);
        let passed = visible.saturating_sub(window_from).min(window.len());
        let mut blocks = vec![Vec::new(); paged.len()];
        self.full.spread(&full, &mut blocks);
        self.windows.spread(&window[passed..], &mut blocks);
        Prefix { tokens: hit as u32, blocks, state }
    }

    /// As [`store`](Self::store) with a copy of the state, in the place of the least valuable one if no slot is free;
    /// without one where all are in use, or the tree has it already.
    fn store_with_state(
        &mut self,
        book: &mut CacheBook,
        sequence: SequenceId,
        lease: &mut ReuseLease,
        key: Key<'_>,
    ) -> Result<(), ManagerError> {
        if self.cache.tree().match_prefix(key).hit == key.tokens.len() {
            return self.store(book, sequence, lease, key, None);
        }
        if book.slots().available(SlotRole::Checkpoint) == 0 {
            let mut out = Released::default();
            self.cache.evict_state(1, &mut out);
            self.give_back(book, out)?;
        }
        match book.checkpoint(sequence) {
            Ok(slot) => self.store(book, sequence, lease, key, Some(slot)),
            Err(ManagerError::OutOfSlots { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Puts the whole pages of a key into the tree, with the state after the last of them.
    fn store(
        &mut self,
        book: &mut CacheBook,
        sequence: SequenceId,
        lease: &mut ReuseLease,
        key: Key<'_>,
        state: Option<SlotId>,
    ) -> Result<(), ManagerError> {
        let key = key.aligned(self.cache.tree().config().page);
        let pages = key.tokens.len() / self.cache.tree().config().page;
        let mut blocks = Vec::new();
        self.cache.held_blocks(&lease.lease, &mut blocks);
        let held = blocks.len();
        let from = self.windows.first_page(book, sequence)?.min(pages);
        let mut out = Released::default();
        blocks.extend(self.full.take(book, sequence, held.min(pages)..pages)?);
        let window = self.windows.take(book, sequence, from..pages)?;
        let span = WindowSpan { from: key.tokens.len() / pages.max(1) * from, blocks: &window };
        let window_span = (!self.windows.pools.is_empty()).then_some(span);
        let at = Progress { key, blocks: &blocks, window: window_span };
        if let Err(error) = self.cache.store(&mut lease.lease, at, state, &mut out) {
            out = Released { blocks: blocks.split_off(held), window, slots: state.into_iter().collect(), ..out };
            self.give_back(book, out)?;
            return Err(error.into());
        }
        // The sequence has references of its own; a hold would keep the window's blocks when it has passed them.
        self.cache.release_window(&mut lease.lease)?;
        self.give_back(book, out)
    }

    fn give_back(&mut self, book: &mut CacheBook, out: Released) -> Result<(), ManagerError> {
        self.full.give_back(book, out.blocks)?;
        self.windows.give_back(book, out.window)?;
        out.slots.into_iter().try_for_each(|slot| book.slots_mut().release(slot))
    }
}

/// The pools whose blocks of one page are one unit to the tree.
#[derive(Debug)]
struct Units {
    /// Which paged pools.
    pools: Vec<usize>,
    /// The blocks of each unit, one per pool.
    blocks: Vec<BlockId>,
    /// Units that hold nothing.
    free: Vec<BlockId>,
    made: u32,
}

impl Units {
    fn new(pools: Vec<usize>) -> Self {
        Self { pools, blocks: Vec::new(), free: Vec::new(), made: 0 }
    }

    fn of(&self, unit: BlockId) -> std::ops::Range<usize> {
        let start = unit.0 as usize * self.pools.len();
        start..start + self.pools.len()
    }

    /// The blocks of some units, by paged pool.
    fn spread(&self, units: &[BlockId], blocks: &mut [Vec<BlockId>]) {
        for (place, &paged) in self.pools.iter().enumerate() {
            blocks[paged] = units.iter().map(|&unit| self.blocks[self.of(unit)][place]).collect();
        }
    }

    /// The first page of which a sequence has a block in each of the pools.
    fn first_page(&self, book: &CacheBook, sequence: SequenceId) -> Result<usize, ManagerError> {
        let mut first = 0;
        for &paged in &self.pools {
            let table = book.block_table(sequence, paged)?;
            first = first.max(table.iter().take_while(|&&block| block < 0).count());
        }
        Ok(first)
    }

    /// Units of a sequence's pages, each with a reference of its own to the blocks.
    fn take(
        &mut self,
        book: &mut CacheBook,
        sequence: SequenceId,
        pages: std::ops::Range<usize>,
    ) -> Result<Vec<BlockId>, ManagerError> {
        let mut tables = Vec::with_capacity(self.pools.len());
        for &paged in &self.pools {
            let blocks = &book.block_table(sequence, paged)?[pages.clone()];
            tables.push(blocks.iter().map(|&block| BlockId(block as u32)).collect::<Vec<_>>());
        }
        for (&paged, blocks) in self.pools.iter().zip(&tables) {
            blocks.iter().try_for_each(|&block| book.blocks_mut(paged)?.retain(block))?;
        }
        let units = (0..pages.len()).map(|page| {
            let unit = self.free.pop().unwrap_or_else(|| {
                self.made += 1;
                self.blocks.resize(self.made as usize * self.pools.len(), BlockId(u32::MAX));
                BlockId(self.made - 1)
            });
            let place = self.of(unit);
            self.blocks[place].iter_mut().zip(&tables).for_each(|(block, blocks)| *block = blocks[page]);
            unit
        });
        Ok(units.collect())
    }

    fn give_back(&mut self, book: &mut CacheBook, units: Vec<BlockId>) -> Result<(), ManagerError> {
        for &unit in &units {
            for (&paged, &block) in self.pools.iter().zip(&self.blocks[self.of(unit)]) {
                book.blocks_mut(paged)?.release(block)?;
            }
        }
        self.free.extend(units);
        Ok(())
    }
}
