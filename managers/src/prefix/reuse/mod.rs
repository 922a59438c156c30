//! Prefix reuse for the sequences of a book, in four calls of an engine's loop: [`PrefixReuse::admit`],
//! [`PrefixReuse::next_tokens`], [`PrefixReuse::computed`], [`PrefixReuse::finish`].
//!
//! Tree and sequences each hold references of their own to a block, so either may let go first. States in the tree are
//! the plan's checkpoints, slots or units in 8 bits. What the device has no room for goes to the plan's host tier.
//!
//! No kernel needs to know of it: a forward ends where a state is to be kept, and every copy is one of the book's
//! [`PoolOp`](crate::book::PoolOp)s, which whoever owns the tensors executes in order.
//!
//! Nothing is believed of the caller: a lease knows its sequence and the tokens of it, and how many of them were
//! computed is read from the book.

mod host;
mod pages;

use std::collections::HashSet;
use std::sync::Arc;

use cacheplan_planner::CachePlan;

use super::cache::{Lease, PrefixCache, Progress};
use super::key::{common_prefix, floor};
use super::{
    BranchRule, Extend, HostSlotId, HostTier, Key, Match, Metrics, Namespace, Provision, Released, Strategy, TenantId,
    Token, Tree, TreeConfig, WindowSpan,
};
use crate::book::error::{BookError, Lack, NoReuse, Scarce};
use crate::book::{CacheBook, Layout, Prefix, SequenceGuard, SequenceId, SetAside, SlotId, SlotRole, StateAt, Windows};
use pages::Pages;

/// Live slots are the book's: the cache need not know them.
const LIVE: SlotId = SlotId(0);

/// A prefix cache over the blocks and slots of a [`CacheBook`].
#[derive(Debug)]
pub struct PrefixReuse {
    cache: PrefixCache,
    /// The pools that keep whole contexts.
    full: Pages,
    /// The pools that keep windows.
    windows: Pages,
    /// Tokens per block. Where a sequence goes on behind a state, it is kept at the end of one; the last may be anywhere.
    block: usize,
    /// What it may fill of the book's host tier.
    _host: Option<SetAside>,
    /// States on the host that hold nothing, since none could be stored in the checkpoints that they were moved from.
    spoiled: HashSet<HostSlotId>,
}

/// A sequence, what it has of the tree, and the tokens that it is made of, from its admission to its end.
///
/// Dropping it ends the sequence: blocks, slot and the hold on the tree are given back before the book is next asked
/// for room. [`PrefixReuse::abandon`] leaves the sequence to the caller instead.
#[derive(Debug)]
#[must_use = "dropping a lease ends its sequence"]
pub struct ReuseLease {
    lease: Lease,
    sequence: SequenceGuard,
    namespace: Namespace,
    /// The prompt, and what was told since.
    tokens: Vec<Token>,
    prompt: usize,
    cached: usize,
    computed: usize,
    /// Where other prompts turn off, beside the position that the lookup found; in order.
    branches: Vec<usize>,
}

impl ReuseLease {
    /// The sequence.
    #[must_use]
    pub fn sequence(&self) -> SequenceId {
        self.sequence.id()
    }

    /// What its tokens are told apart by from the same tokens elsewhere.
    #[must_use]
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Its tokens: the prompt, and what was told since.
    #[must_use]
    pub fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// Tokens at the front of the prompt that need not be computed.
    #[must_use]
    pub fn cached(&self) -> usize {
        self.cached
    }
}

impl PrefixReuse {
    /// Makes an empty cache for the pools of a plan, whose books are `book`; it takes the plan's host tier, if there is one.
    ///
    /// # Errors
    /// [`BookError::NoReuse`] says why they allow none; a host tier that is in use.
    pub fn new(plan: &CachePlan, book: &mut CacheBook, strategy: Strategy) -> Result<Self, BookError> {
        Self::for_tenants(plan, book, strategy, vec![1])
    }

    /// As [`PrefixReuse::new`] with the relative shares of several tenants, see `TreeConfig::tenants`.
    ///
    /// # Errors
    /// As [`PrefixReuse::new`]; no tenant, or a share of 0.
    pub fn for_tenants(
        plan: &CachePlan,
        book: &mut CacheBook,
        strategy: Strategy,
        tenants: Vec<u32>,
    ) -> Result<Self, BookError> {
        let Provision { tree, checkpoints, shape, .. } = Provision::of_plan(plan, 1).map_err(NoReuse::from)?;
        let layout = book.layout();
        let window = window_of(layout, &tree, checkpoints)?;
        let block = tree.page;
        // A state names the token that it lies behind, so that pages are tokens. The host holds whole blocks only.
        let exact = tree.states && tree.host.is_none();
        let tree = if exact { TreeConfig { page: 1, chunk: block, renews: true, ..tree } } else { tree };
        let pools = |windowed: bool| {
            let specs = layout.paged.iter().filter(|spec| spec.window.is_some() == windowed);
            Pages::new(specs.map(|spec| spec.paged).collect(), block / tree.page)
        };
        let (full, windows) = (pools(false), pools(true));
        let host = tree.host.map(|tier| book.set_host_aside(shape.tier_bytes(tier))).transpose()?;
        // A token's window contains the token itself.
        let window = window.map(|window| (window as usize - 1).max(1));
        let cache = PrefixCache::new(TreeConfig { window, tenants, ..tree }, strategy).map_err(NoReuse::from)?;
        book.prefixes = Arc::downgrade(cache.shared_metrics());
        Ok(Self { cache, full, windows, block, _host: host, spoiled: HashSet::new() })
    }

    /// Gives tenants other shares; there may be more of them than before, and not fewer. What is cached stays.
    ///
    /// # Errors
    /// Fewer tenants than before, or a share of 0.
    pub fn set_tenants(&mut self, shares: Vec<u32>) -> Result<(), BookError> {
        Ok(self.cache.set_tenants(shares)?)
    }

    /// Returns the units of host memory that each pool needs for what moves there; `None` in plans without a host tier.
    #[must_use]
    pub fn host(&self) -> Option<HostTier> {
        self.tree().config().host
    }

    /// Returns how many tokens a block has.
    #[must_use]
    pub fn tokens_per_block(&self) -> usize {
        self.block
    }

    /// Returns the counters of what reuse has achieved so far, which the book's [`Stats`](crate::book::Stats) have too.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        self.cache.metrics()
    }

    /// Returns the tree, for inspection.
    #[must_use]
    pub fn tree(&self) -> &Tree {
        self.cache.tree()
    }

    /// Admits a sequence behind what the tree has of its prompt, and makes room for it where nobody uses what is there.
    ///
    /// It shares what was computed by then, so that prompts admitted together share nothing; what one that waits would find
    /// [`PrefixReuse::coming`] says.
    ///
    /// A prefix takes room of its own: a window's blocks reach down to where a node starts. Where there is too little
    /// for both, and no other sequence is there that could give any back, the sequence goes on without its prefix.
    ///
    /// # Errors
    /// As [`CacheBook::admit`], or a tenant without a share; nothing has changed then, but that cached prefixes may have
    /// made way.
    pub fn admit(&mut self, book: &mut CacheBook, prompt: Key<'_>, tenant: TenantId) -> Result<ReuseLease, BookError> {
        self.reclaim(book)?;
        let found = self.find(book, prompt)?;
        match self.admit_behind(book, prompt, tenant, &found) {
            Err(BookError::Lack(_)) if found.hit > 0 && !book.has_residents() => {
                self.admit_behind(book, prompt, tenant, &Match::MISS)
            }
            admitted => admitted,
        }
    }

    /// Admits a sequence behind `found`, and evicts what nobody holds while there is too little room.
    fn admit_behind(
        &mut self,
        book: &mut CacheBook,
        prompt: Key<'_>,
        tenant: TenantId,
        found: &Match,
    ) -> Result<ReuseLease, BookError> {
        let tokens = u32::try_from(prompt.tokens.len()).unwrap_or(u32::MAX);
        let mut lease = self.cache.hold(found, LIVE, tenant)?;
        let on_host = lease.host_source().map(|state| StateAt::Host(state.0));
        let state = lease.source().map(StateAt::Checkpoint).or(on_host);
        let prefix = self.prefix(book, &lease, found.hit);
        let admitted = loop {
            match book.admit_from(tokens, &prefix, state) {
                Err(BookError::Lack(lack)) if self.make_room(book, &lack)? => {}
                admitted => break admitted,
            }
        };
        // From here on the sequence has its own references and a copy of the state.
        self.cache.copied(&mut lease)?;
        // So is the block in which the prefix ends, if it does not end with it.
        let whole = floor(found.hit, self.block);
        if whole < found.hit {
            self.cache.hold_front(&mut lease, whole)?;
        }
        let sequence = match admitted {
            Ok(sequence) => book.guard(sequence),
            Err(error) => {
                self.cache.abort(lease)?;
                return Err(error);
            }
        };
        self.cache.admitted(prompt, found);
        self.cache.release_window(&mut lease)?;
        let (namespace, tokens) = (prompt.namespace.clone(), prompt.tokens.to_vec());
        let (prompt, cached) = (tokens.len(), found.hit);
        Ok(ReuseLease { lease, sequence, namespace, tokens, prompt, cached, computed: cached, branches: Vec::new() })
    }

    /// Takes in a sequence that goes on with all that was computed of it, as after its return from host memory: what it
    /// computes is kept from here on as that of others. `tokens` are all that are known of it.
    ///
    /// # Errors
    /// [`BookError::OtherTokens`] if the book has more of them; a sequence that is not in the pools.
    pub fn rejoin(
        &mut self,
        book: &CacheBook,
        sequence: SequenceId,
        tokens: Key<'_>,
        tenant: TenantId,
    ) -> Result<ReuseLease, BookError> {
        self.tend()?;
        // It has blocks and a state of its own, so that nothing of the tree is held for it.
        let nothing = self.cache.lookup_resident(Key { tokens: &[], ..tokens });
        let mut lease = self.cache.hold(&nothing, LIVE, tenant)?;
        self.cache.copied(&mut lease)?;
        self.cache.release_window(&mut lease)?;
        let (namespace, tokens) = (tokens.namespace.clone(), tokens.tokens.to_vec());
        let prompt = tokens.len();
        let sequence = book.guard(sequence);
        let mut lease =
            ReuseLease { lease, sequence, namespace, tokens, prompt, cached: 0, computed: 0, branches: Vec::new() };
        match lease.check(book, &[]) {
            Ok(computed) => lease.computed = computed,
            Err(error) => {
                self.abandon(lease)?;
                return Err(error);
            }
        }
        Ok(lease)
    }

    /// Learns of a prompt that is still to come: where it turns off from this sequence's, a state is kept, so that it
    /// finds one there. Returns how many tokens they share, as far as a prefix can be shared; states that the sequence
    /// has passed are not to be had any more.
    pub fn expect(&self, lease: &mut ReuseLease, prompt: Key<'_>) -> usize {
        let shared = self.shared(lease, prompt);
        if let (true, Err(at)) = (shared > lease.computed, lease.branches.binary_search(&shared)) {
            lease.branches.insert(at, shared);
        }
        shared
    }

    /// Returns how many tokens more a prompt will find, once this sequence has computed what they share, than it finds now.
    ///
    /// Where that is much, the prompt had better wait: admitted now it computes them a second time, since a sequence
    /// starts behind what is there at its admission. In a plan with states it is what [`PrefixReuse::expect`] has told the
    /// lease of, and what the strategy leaves there without that.
    #[must_use]
    pub fn coming(&self, lease: &ReuseLease, prompt: Key<'_>) -> usize {
        let shared = self.shared(lease, prompt);
        let ahead = |&position: &usize| lease.computed < position && position <= shared;
        let reached = if self.tree().config().states {
            let told = self.cache.strategy().branch != BranchRule::Ignore;
            let told = lease.branches.iter().copied().filter(|_| told);
            self.kept(lease, lease.computed, lease.prompt).chain(told).filter(ahead).max()
        } else {
            Some(shared).filter(ahead)
        };
        reached.map_or(0, |reached| reached.saturating_sub(self.tree().match_prefix(prompt).hit))
    }

    /// Tokens that a prompt has in common with a sequence, as far as a prefix of it can be reused.
    fn shared(&self, lease: &ReuseLease, prompt: Key<'_>) -> usize {
        if *prompt.namespace != lease.namespace {
            return 0;
        }
        // At least the last token of a prompt is computed.
        let usable = &prompt.tokens[..prompt.tokens.len().saturating_sub(1)];
        floor(common_prefix(&lease.tokens, usable), self.tree().config().grid())
    }

    /// Limits a forward to the first of the next `budget` tokens, so that it ends where a state is to be kept.
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
            // Only there a state is kept.
            let whole = floor(end, self.block);
            end = if whole > start { whole } else { end };
        }
        let end = end.min(prompt);
        self.kept(lease, start, end).next().unwrap_or(end) - start
    }

    /// Where states are kept of a sequence that goes on, behind `start` and up to `end` of its prompt: at ends of blocks,
    /// so that it writes into no block that the tree has.
    fn kept(&self, lease: &ReuseLease, start: usize, end: usize) -> impl Iterator<Item = usize> {
        let ReuseLease { prompt, .. } = *lease;
        let extend = Extend { start: floor(start, self.block), end, prompt, branch: lease.branch_behind(start) };
        let checkpoints = self.cache.strategy().checkpoints(self.cache.tree().config(), extend);
        let block = self.block;
        let positions = checkpoints.into_iter().map(|checkpoint| checkpoint.position);
        positions.filter(move |&position| position > start && position.is_multiple_of(block))
    }

    /// Keeps what a forward has computed, where a later sequence can start from it. `decoded` are the tokens behind the
    /// prompt that it computed; how far it came is read from the book.
    ///
    /// # Errors
    /// [`BookError::OtherTokens`] if the book has others than those that were told, and nothing has changed then; a
    /// sequence of other books, or one that is not in the pools.
    pub fn computed(
        &mut self,
        book: &mut CacheBook,
        lease: &mut ReuseLease,
        decoded: &[Token],
    ) -> Result<(), BookError> {
        let end = lease.check(book, decoded)?;
        lease.tokens.extend_from_slice(decoded);
        let start = std::mem::replace(&mut lease.computed, end);
        let (config, strategy, prompt) = (self.cache.tree().config(), self.cache.strategy(), lease.prompt);
        if !config.states {
            return if end <= prompt { self.store(book, lease, None) } else { Ok(()) };
        }
        let wanted = if end <= prompt {
            self.kept(lease, start, end).any(|position| position == end)
        } else {
            strategy.keeps_decoded(config, end) && end.is_multiple_of(self.block)
        };
        if wanted { self.store_with_state(book, lease) } else { Ok(()) }
    }

    /// Ends a sequence, and keeps what it has computed: also of one that makes way for others, and comes back by
    /// [`PrefixReuse::admit`] with all its tokens.
    ///
    /// # Errors
    /// As [`PrefixReuse::computed`]; the sequence is then still the book's, and the caller's to end, and the tree keeps
    /// nothing more of it.
    pub fn finish(&mut self, book: &mut CacheBook, mut lease: ReuseLease) -> Result<(), BookError> {
        let kept = self.keep_all(book, &mut lease);
        let sequence = lease.sequence();
        self.abandon(lease)?;
        kept?;
        book.finish(sequence)
    }

    /// Keeps what a sequence has computed until its end.
    fn keep_all(&mut self, book: &mut CacheBook, lease: &mut ReuseLease) -> Result<(), BookError> {
        lease.computed = lease.check(book, &[])?;
        let TreeConfig { states, page, .. } = *self.cache.tree().config();
        if !states {
            return self.store(book, lease, None);
        }
        // Elsewhere the state has no key.
        let named = lease.computed.is_multiple_of(page);
        if self.cache.strategy().finish && named { self.store_with_state(book, lease) } else { Ok(()) }
    }

    /// Gives up the hold of a sequence that leaves nothing more; the sequence itself is the caller's to end.
    ///
    /// # Errors
    /// A lease of another cache.
    pub fn abandon(&mut self, lease: ReuseLease) -> Result<(), BookError> {
        let ReuseLease { lease, sequence, .. } = lease;
        self.cache.abort(lease)?;
        sequence.release();
        Ok(())
    }

    /// Evicts something that helps against what an operation lacked; `false` where nothing does.
    ///
    /// # Errors
    /// Books that are not those of this cache.
    pub fn make_room(&mut self, book: &mut CacheBook, lack: &Lack) -> Result<bool, BookError> {
        if self.reclaim(book)? {
            return Ok(true);
        }
        let Scarce::Blocks { paged, .. } = lack.of else { return Ok(false) };
        let mut out = Released::default();
        let evicted = self.evict(self.windows.pools.contains(&paged), &mut out);
        self.give_back(book, out)?;
        Ok(evicted)
    }

    /// Gives back everything that no running sequence holds.
    ///
    /// # Errors
    /// Books that are not those of this cache.
    pub fn clear(&mut self, book: &mut CacheBook) -> Result<(), BookError> {
        self.reclaim(book)?;
        // What moves to the host now is forgotten next.
        let mut out = Released::default();
        self.cache.evict_kv(usize::MAX, &mut out);
        out.offloads.clear();
        self.cache.evict_host(usize::MAX, usize::MAX);
        self.give_back(book, out)
    }

    /// Ends the sequences of leases that were dropped, and their holds; whether there were any.
    fn reclaim(&mut self, book: &mut CacheBook) -> Result<bool, BookError> {
        let any = book.has_dropped();
        book.reclaim()?;
        self.tend()?;
        Ok(any)
    }

    /// Ends the holds of leases that were dropped.
    fn tend(&mut self) -> Result<(), BookError> {
        Ok(self.cache.reclaim(&mut Vec::new())?)
    }

    fn pages(&self, windowed: bool) -> &Pages {
        if windowed { &self.windows } else { &self.full }
    }

    /// Evicts what is used least, of the windows or of whole contexts; `false` where nothing is left.
    fn evict(&mut self, windowed: bool, out: &mut Released) -> bool {
        let evicted = if windowed { self.cache.evict_window(1, out) } else { self.cache.evict_kv(1, out) };
        evicted.tokens + evicted.window_tokens > 0
    }

    /// What a sequence starts from, pool by pool.
    fn prefix(&self, book: &CacheBook, lease: &Lease, hit: usize) -> Prefix {
        let page = self.cache.tree().config().page;
        let (mut full, mut window) = (Vec::new(), Vec::new());
        self.cache.held_blocks(lease, &mut full);
        let window_from = self.cache.held_window(lease, &mut window) / page;
        let paged = &book.layout().paged;
        let windowed = paged.iter().find(|spec| spec.window.is_some());
        let visible = windowed.map_or(0, |spec| spec.first_visible_block(hit as u32) as usize);
        let passed = (visible * (self.block / page)).saturating_sub(window_from).min(window.len());
        let mut blocks = vec![Vec::new(); paged.len()];
        self.full.spread(0, &full, &mut blocks);
        self.windows.spread(window_from + passed, &window[passed..], &mut blocks);
        Prefix { tokens: hit as u32, blocks, state: None }
    }

    /// As [`store`](Self::store) with a copy of the state, in the place of the least valuable one if no checkpoint is
    /// free; without one where all are in use, or the tree has it already.
    fn store_with_state(&mut self, book: &mut CacheBook, lease: &mut ReuseLease) -> Result<(), BookError> {
        let key = lease.key();
        let found = self.lookup(book, key, |cache, key| cache.tree().match_prefix(key))?;
        if key.tokens.is_empty() || (found.hit == key.tokens.len() && found.state.is_some()) {
            return self.store(book, lease, None);
        }
        if book.checkpoints().available(SlotRole::Checkpoint) == 0 {
            let mut out = Released::default();
            self.cache.evict_state(1, &mut out);
            self.give_back(book, out)?;
        }
        match book.checkpoint(lease.sequence()) {
            Ok(slot) => self.store(book, lease, Some(slot)),
            Err(BookError::Lack(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Puts the whole pages of what was computed into the tree, with the state after the last token of them.
    fn store(&mut self, book: &mut CacheBook, lease: &mut ReuseLease, state: Option<SlotId>) -> Result<(), BookError> {
        let sequence = lease.sequence();
        let page = self.cache.tree().config().page;
        let key = Key { namespace: &lease.namespace, tokens: &lease.tokens[..lease.computed] }.aligned(page);
        let pages = key.tokens.len() / page;
        let mut blocks = Vec::new();
        self.cache.held_blocks(&lease.lease, &mut blocks);
        let held = blocks.len();
        let from = self.windows.first_page(book, sequence)?.min(pages);
        let mut out = Released::default();
        blocks.extend(self.full.take(book, sequence, held.min(pages)..pages)?);
        let window = self.windows.take(book, sequence, from..pages)?;
        let span = WindowSpan { from: from * page, blocks: &window };
        let window_span = (!self.windows.pools.is_empty()).then_some(span);
        let at = Progress { key, blocks: &blocks, window: window_span };
        if let Err(error) = self.cache.store(&mut lease.lease, at, state, &mut out) {
            out = Released { blocks: blocks.split_off(held), window, slots: state.into_iter().collect(), ..out };
            self.give_back(book, out)?;
            return Err(error.into());
        }
        // The sequence has references of its own; a hold would keep the window's blocks when it has passed them.
        self.cache.release_window(&mut lease.lease)?;
        // What the tree has from another sequence takes room beside this one's, so that only what is one is held.
        let mut stored = Vec::new();
        self.cache.held_blocks(&lease.lease, &mut stored);
        let shared = self.full.shared(book, sequence, held.min(pages), &stored)?;
        if shared < pages {
            self.cache.hold_front(&mut lease.lease, shared * page)?;
        }
        self.give_back(book, out)
    }

    /// Queues the copies of what went to the host, and gives back what the tree holds no more.
    fn give_back(&mut self, book: &mut CacheBook, out: Released) -> Result<(), BookError> {
        self.offload(book, &out.offloads);
        self.full.give_back(book, out.blocks)?;
        self.windows.give_back(book, out.window)?;
        out.slots.into_iter().try_for_each(|slot| book.release_checkpoint(slot))
    }
}

impl ReuseLease {
    /// What was computed of the sequence.
    fn key(&self) -> Key<'_> {
        Key { namespace: &self.namespace, tokens: &self.tokens[..self.computed] }
    }

    /// The next position at which another prompt turns off.
    fn branch_behind(&self, start: usize) -> Option<usize> {
        let known = self.branches.iter().copied().chain(self.lease.branch());
        known.filter(|&position| position > start).min()
    }

    /// How many tokens of the sequence the book has, if `decoded` are the last of them that it did not know.
    fn check(&self, book: &CacheBook, decoded: &[Token]) -> Result<usize, BookError> {
        let (sequence, computed) = (self.sequence(), self.computed);
        let found = book.settled(sequence)?.tokens as usize;
        let known = self.tokens.len() + decoded.len();
        let told = if decoded.is_empty() { found <= known } else { found == known };
        if told && found >= computed {
            return Ok(found);
        }
        Err(BookError::OtherTokens { sequence, known, computed, found })
    }
}

/// The window that prefixes are kept for, if the pools have one.
fn window_of(layout: &Layout, tree: &TreeConfig, checkpoints: u32) -> Result<Option<u32>, NoReuse> {
    if tree.states && checkpoints == 0 {
        return Err(NoReuse::NoCheckpoints);
    }
    if !tree.states && layout.paged.is_empty() {
        return Err(NoReuse::NothingCached);
    }
    let window = layout.paged.iter().find_map(|spec| spec.window);
    for spec in &layout.paged {
        let pool = spec.id.clone();
        let (found, expected) = (u64::from(spec.entries_per_block) * u64::from(spec.stride), tree.page as u64);
        match spec.window.zip(window) {
            _ if found != expected => return Err(NoReuse::Compressed { pool, found, expected }),
            Some(_) if layout.windows == Windows::Cyclic => return Err(NoReuse::Rings { pool }),
            Some((found, expected)) if found != expected => return Err(NoReuse::Windows { pool, found, expected }),
            _ => {}
        }
    }
    Ok(window)
}
