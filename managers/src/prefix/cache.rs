//! The life of a request against the tree: looked up, admitted, extended, finished or aborted.
//!
//! Every state has one owner at any time. On a hit the request gets a *copy* in its own live slot. Of an unfinished
//! request a *copy* goes into the tree, or a buffer that it donates. A finished one *moves* its live slot. A state
//! that the tree has already is released. A lease that is dropped, for whatever reason, gives its slot back.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::config::{CheckpointFormat, TenantId, TreeConfig};
use super::error::PrefixError;
use super::evict::Evicted;
use super::host::{HostSlotId, Load};
use super::insert::{Insert, WindowSpan};
use super::key::{Key, floor};
use super::lock::{Hold, Receipt};
use super::lookup::Match;
use super::metrics::{Metrics, Reuse};
use super::strategy::Strategy;
use super::tree::{Released, Tree};
use crate::book::{BlockId, SlotId};

/// A tree, the strategy by which requests leave checkpoints in it, and what it has achieved.
#[derive(Debug)]
pub(crate) struct PrefixCache {
    tree: Tree,
    strategy: Strategy,
    metrics: Arc<Mutex<Metrics>>,
    dropped: Arc<Mutex<Vec<PinnedPrefix>>>,
}

/// What a lease holds: the lock and the live slot.
#[derive(Debug)]
struct PinnedPrefix {
    receipt: Receipt,
    live: SlotId,
}

/// A request's hold on the cache and on its live slot.
///
/// Dropping it is an abort: [`PrefixCache::reclaim`] hands the slot out again.
#[derive(Debug)]
#[must_use = "a dropped lease aborts its request"]
pub(crate) struct Lease {
    pinned: Option<PinnedPrefix>,
    source: Option<SlotId>,
    host_source: Option<HostSlotId>,
    owned: usize,
    branch: Option<usize>,
    tenant: TenantId,
    dropped: Arc<Mutex<Vec<PinnedPrefix>>>,
}

impl Lease {
    /// The state to copy into the live slot before the first forward. `None`: start from a cleared slot.
    pub(crate) fn source(&self) -> Option<SlotId> {
        self.source
    }

    /// As [`Lease::source`], where the state lies on the host.
    pub(crate) fn host_source(&self) -> Option<HostSlotId> {
        self.host_source
    }

    /// Tokens at the front whose KV blocks are the tree's. The request must not free those.
    pub(crate) fn owned(&self) -> usize {
        self.owned
    }

    /// The branch position that the lookup reported.
    pub(crate) fn branch(&self) -> Option<usize> {
        self.branch
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(pinned) = self.pinned.take() {
            self.dropped.lock().unwrap_or_else(PoisonError::into_inner).push(pinned);
        }
    }
}

/// What a request has computed: the tokens and the blocks that hold their KV.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress<'a> {
    /// All tokens that the running state has absorbed.
    pub(crate) key: Key<'a>,
    /// One block per page of the key, the last one possibly partial. Below [`Lease::owned`] they are the tree's.
    pub(crate) blocks: &'a [BlockId],
    /// Window blocks of the rear, in a tree with windows. They cover whole pages of the key.
    pub(crate) window: Option<WindowSpan<'a>>,
}

/// What becomes of the state of a finished request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Final {
    /// The live slot holds the state after all tokens of the key and becomes the tree's.
    Move,
    /// The caller has copied that state into this slot, because checkpoints live in a pool of their own.
    Checkpoint(SlotId),
    /// No state is kept.
    Discard,
}

impl PrefixCache {
    /// An empty cache.
    ///
    /// # Errors
    /// As [`Tree::new`].
    pub(crate) fn new(config: TreeConfig, strategy: Strategy) -> Result<Self, PrefixError> {
        Ok(Self { tree: Tree::new(config)?, strategy, metrics: Arc::default(), dropped: Arc::default() })
    }

    /// The tree, for inspection.
    pub(crate) fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The strategy that it was made with.
    pub(crate) fn strategy(&self) -> &Strategy {
        &self.strategy
    }

    /// What it has achieved so far.
    pub(crate) fn metrics(&self) -> Metrics {
        *self.counters()
    }

    /// The same for whoever reads it as long as the cache is there.
    pub(crate) fn shared_metrics(&self) -> &Arc<Mutex<Metrics>> {
        &self.metrics
    }

    fn counters(&self) -> MutexGuard<'_, Metrics> {
        self.metrics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether reuse can work at all with pools of so many checkpoint slots and typical prompts of so many tokens.
    pub(crate) fn reuse(&self, checkpoint_slots: usize, typical_prompt: usize) -> Reuse {
        Reuse::judge(self.tree.config(), checkpoint_slots, typical_prompt)
    }

    /// Looks up a prompt. At least its last token is left to compute. Nothing changes.
    pub(crate) fn lookup(&self, prompt: Key<'_>) -> Match {
        self.tree.match_prefix(prompt.head(prompt.tokens.len().saturating_sub(1)))
    }

    /// As [`PrefixCache::lookup`], as if nothing lay on the host.
    pub(crate) fn lookup_resident(&self, prompt: Key<'_>) -> Match {
        self.tree.match_resident(prompt.head(prompt.tokens.len().saturating_sub(1)))
    }

    /// As [`Tree::hold_to_load`].
    ///
    /// # Errors
    /// As [`Tree::hold_to_load`].
    pub(crate) fn hold_to_load(&mut self, found: &Match) -> Result<Receipt, PrefixError> {
        self.tree.hold_to_load(found)
    }

    /// As [`Tree::unlock`].
    ///
    /// # Errors
    /// As [`Tree::unlock`].
    pub(crate) fn let_go(&mut self, held: Receipt) -> Result<(), PrefixError> {
        self.tree.unlock(held)
    }

    /// As [`Tree::load`].
    ///
    /// # Errors
    /// As [`Tree::load`].
    pub(crate) fn load(
        &mut self,
        found: &Match,
        blocks: &[BlockId],
        window: &[BlockId],
        loads: &mut Vec<Load>,
    ) -> Result<(), PrefixError> {
        self.tree.load(found, blocks, window, loads)
    }

    /// As [`Tree::evict_host`].
    pub(crate) fn evict_host(&mut self, tokens: usize, states: usize) {
        self.tree.evict_host(tokens, states);
    }

    /// Admits a request whose prompt was looked up: holds what was found, and takes the live slot into care.
    ///
    /// The caller then copies [`Lease::source`] into the slot and calls [`PrefixCache::copied`].
    ///
    /// # Errors
    /// [`PrefixError::StaleMatch`] if the tree has lost what was found, [`PrefixError::NotLoaded`] if a part of it lies on
    /// the host; the slot remains the caller's.
    pub(crate) fn admit(
        &mut self,
        prompt: Key<'_>,
        found: &Match,
        live: SlotId,
        tenant: TenantId,
    ) -> Result<Lease, PrefixError> {
        let lease = self.hold(found, live, tenant)?;
        self.admitted(prompt, found);
        Ok(lease)
    }

    /// Holds what was found for a request that is not admitted yet.
    pub(crate) fn hold(&mut self, found: &Match, live: SlotId, tenant: TenantId) -> Result<Lease, PrefixError> {
        self.tree.check_tenant(tenant)?;
        let receipt = self.tree.lock(found, Hold::PathAndState)?;
        Ok(Lease {
            pinned: Some(PinnedPrefix { receipt, live }),
            source: found.state,
            host_source: found.host_state,
            owned: found.hit,
            branch: found.branch,
            tenant,
            dropped: Arc::clone(&self.dropped),
        })
    }

    /// Counts a request that was admitted.
    pub(crate) fn admitted(&mut self, prompt: Key<'_>, found: &Match) {
        self.counters().admitted(&self.tree, prompt, found);
    }

    /// Gives up the hold on window blocks, for a request that has references of its own to them.
    pub(crate) fn release_window(&mut self, lease: &mut Lease) -> Result<(), PrefixError> {
        match &mut lease.pinned {
            Some(pinned) => self.tree.unlock_window(&mut pinned.receipt),
            None => Err(PrefixError::ForeignReceipt),
        }
    }

    /// Says that the source has been copied: from now on it may be evicted.
    ///
    /// # Errors
    /// [`PrefixError::ForeignReceipt`] for a lease of another cache.
    pub(crate) fn copied(&mut self, lease: &mut Lease) -> Result<(), PrefixError> {
        (lease.source, lease.host_source) = (None, None);
        match &mut lease.pinned {
            Some(pinned) => self.tree.unlock_state(&mut pinned.receipt),
            None => Err(PrefixError::ForeignReceipt),
        }
    }

    /// Holds the first `len` tokens of what was found only; the request has its own copy of what lies behind them.
    pub(crate) fn hold_front(&mut self, lease: &mut Lease, len: usize) -> Result<(), PrefixError> {
        let Some(pinned) = &mut lease.pinned else { return Err(PrefixError::ForeignReceipt) };
        let front = self.tree.lock_front(&pinned.receipt, len)?;
        lease.owned = lease.owned.min(len);
        self.tree.unlock(std::mem::replace(&mut pinned.receipt, front))
    }

    /// Appends the KV blocks of the held prefix: what the request's block table starts with.
    pub(crate) fn held_blocks(&self, lease: &Lease, out: &mut Vec<BlockId>) {
        if let Some(pinned) = &lease.pinned {
            self.tree.held_blocks(&pinned.receipt, out);
        }
    }

    /// Appends the window blocks of the held prefix, and returns the position of the first token that they cover.
    pub(crate) fn held_window(&self, lease: &Lease, out: &mut Vec<BlockId>) -> usize {
        lease.pinned.as_ref().map_or(0, |pinned| self.tree.held_window(&pinned.receipt, out))
    }

    /// Stores what an unfinished request has computed, with a state if `state` holds one after exactly these tokens.
    ///
    /// From then on the lease holds the stored path; the request must replace the front of its block table by
    /// [`PrefixCache::held_blocks`]. A length that is not a multiple of the page stores the pages below it and
    /// no state. Returns whether the state was kept.
    ///
    /// # Errors
    /// As [`Tree::insert`]. Nothing has changed then and the slot remains the caller's.
    pub(crate) fn store(
        &mut self,
        lease: &mut Lease,
        at: Progress<'_>,
        state: Option<SlotId>,
        out: &mut Released,
    ) -> Result<bool, PrefixError> {
        let aligned = floor(at.key.tokens.len(), self.tree.config().page);
        let kept = aligned == at.key.tokens.len();
        let inserted = self.tree.insert(&self.insertion(lease, at, state.filter(|_| kept)), out)?;
        out.slots.extend(state.filter(|_| !kept));
        self.counters().stored(state.is_some(), kept, inserted.state_taken);
        if let (Some(node), Some(pinned)) = (inserted.node, &mut lease.pinned) {
            let receipt = self.tree.lock_node(node, Hold::Path)?;
            let old = std::mem::replace(&mut pinned.receipt, receipt);
            self.tree.unlock(old)?;
            lease.owned = aligned;
        }
        Ok(inserted.state_taken)
    }

    /// Stores what a finished request has computed and ends its lease.
    ///
    /// All blocks of `at` and the slot of [`Final::Checkpoint`] change hands. Returns the live slot unless it moved.
    ///
    /// # Errors
    /// As [`Tree::insert`], and [`PrefixError::NotMovable`] for a move into int8 checkpoints; the lease is then aborted.
    pub(crate) fn finish(
        &mut self,
        mut lease: Lease,
        at: Progress<'_>,
        state: Final,
        out: &mut Released,
    ) -> Result<Option<SlotId>, PrefixError> {
        if state == Final::Move && self.tree.config().checkpoints == CheckpointFormat::Int8 {
            return Err(PrefixError::NotMovable);
        }
        let page = self.tree.config().page;
        let aligned = floor(at.key.tokens.len(), page);
        let live = lease.pinned.as_ref().map(|pinned| pinned.live);
        let fits = aligned == at.key.tokens.len() && aligned > 0;
        let slot = match state {
            Final::Move => live,
            Final::Checkpoint(slot) => Some(slot),
            Final::Discard => None,
        };
        let inserted = self.tree.insert(&self.insertion(&lease, at, slot.filter(|_| fits)), out)?;
        self.counters().stored(slot.is_some(), fits, inserted.state_taken);
        let kept = aligned.max(lease.owned) / page;
        out.blocks.extend(at.blocks.iter().skip(kept));
        let Some(pinned) = lease.pinned.take() else {
            return Err(PrefixError::ForeignReceipt);
        };
        self.tree.unlock_path(pinned.receipt, inserted.node)?;
        match state {
            Final::Move if inserted.state_taken => Ok(None),
            Final::Move => {
                // The tree released the duplicate, but a live slot goes back to where live slots come from.
                out.slots.retain(|slot| *slot != pinned.live);
                Ok(Some(pinned.live))
            }
            Final::Checkpoint(slot) => {
                out.slots.extend(Some(slot).filter(|_| !fits));
                Ok(Some(pinned.live))
            }
            Final::Discard => Ok(Some(pinned.live)),
        }
    }

    /// Ends the lease of a request that leaves nothing. Returns its live slot.
    ///
    /// # Errors
    /// [`PrefixError::ForeignReceipt`] for a lease of another cache.
    pub(crate) fn abort(&mut self, mut lease: Lease) -> Result<SlotId, PrefixError> {
        let pinned = lease.pinned.take().ok_or(PrefixError::ForeignReceipt)?;
        self.tree.unlock(pinned.receipt)?;
        Ok(pinned.live)
    }

    /// Ends the leases that were dropped and appends their live slots.
    ///
    /// # Errors
    /// [`PrefixError::ForeignReceipt`] cannot occur for leases of this cache.
    pub(crate) fn reclaim(&mut self, live: &mut Vec<SlotId>) -> Result<(), PrefixError> {
        let dropped = std::mem::take(&mut *self.dropped.lock().unwrap_or_else(PoisonError::into_inner));
        for pinned in dropped {
            live.push(pinned.live);
            self.tree.unlock(pinned.receipt)?;
        }
        Ok(())
    }

    /// As [`Tree::set_tenants`].
    pub(crate) fn set_tenants(&mut self, shares: Vec<u32>) -> Result<(), PrefixError> {
        self.tree.set_tenants(shares)
    }

    /// As [`Tree::discard_state`].
    pub(crate) fn discard_state(&mut self, found: &Match, out: &mut Released) -> Result<bool, PrefixError> {
        self.tree.discard_state(found, out)
    }

    /// As [`Tree::evict_kv`].
    pub(crate) fn evict_kv(&mut self, tokens: usize, out: &mut Released) -> Evicted {
        let evicted = self.tree.evict_kv(tokens, out);
        self.counters().evicted(evicted);
        evicted
    }

    /// As [`Tree::evict_state`].
    pub(crate) fn evict_state(&mut self, states: usize, out: &mut Released) -> Evicted {
        let evicted = self.tree.evict_state(states, out);
        self.counters().evicted(evicted);
        evicted
    }

    /// As [`Tree::evict_window`].
    pub(crate) fn evict_window(&mut self, tokens: usize, out: &mut Released) -> Evicted {
        let evicted = self.tree.evict_window(tokens, out);
        self.counters().evicted(evicted);
        evicted
    }

    fn insertion<'a>(&self, lease: &Lease, at: Progress<'a>, state: Option<SlotId>) -> Insert<'a> {
        let page = self.tree.config().page;
        let key = at.key.aligned(page);
        Insert {
            key,
            blocks: &at.blocks[..(key.tokens.len() / page).min(at.blocks.len())],
            owned: lease.owned,
            state,
            window: at.window,
            tenant: lease.tenant,
        }
    }
}
