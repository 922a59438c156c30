//! The life of a request against the tree: looked up, admitted, extended, finished or aborted.
//!
//! Every state has one owner at any time. On a hit the request gets a *copy* in its own live slot. Of an unfinished
//! request a *copy* goes into the tree, or a buffer that it donates. A finished one *moves* its live slot. A state
//! that the tree has already is released. A lease that is dropped, for whatever reason, gives its slot back.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

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
#[cfg(feature = "prefix-tree")]
use super::{Restore, Saved, Shape, SnapshotError};
use crate::book::ids::{BlockId, SlotId};

/// A tree, the strategy by which requests leave checkpoints in it, and what it has achieved.
#[derive(Debug)]
pub struct PrefixCache {
    tree: Tree,
    strategy: Strategy,
    metrics: Metrics,
    dropped: Arc<Mutex<Vec<Grip>>>,
}

/// What a lease holds: the lock and the live slot.
#[derive(Debug)]
struct Grip {
    receipt: Receipt,
    live: SlotId,
}

/// A request's hold on the cache and on its live slot.
///
/// Dropping it is an abort: [`PrefixCache::reclaim`] hands the slot out again.
#[derive(Debug)]
#[must_use = "a dropped lease aborts its request"]
pub struct Lease {
    grip: Option<Grip>,
    source: Option<SlotId>,
    host_source: Option<HostSlotId>,
    owned: usize,
    branch: Option<usize>,
    tenant: TenantId,
    dropped: Arc<Mutex<Vec<Grip>>>,
}

impl Lease {
    /// The state to copy into the live slot before the first forward. `None`: start from a cleared slot.
    #[cfg(feature = "prefix-tree")]
    #[must_use]
    pub fn source(&self) -> Option<SlotId> {
        self.source
    }

    /// As [`Lease::source`], where the state lies on the host.
    #[cfg(feature = "prefix-tree")]
    #[must_use]
    pub fn host_source(&self) -> Option<HostSlotId> {
        self.host_source
    }

    /// Tokens at the front whose KV blocks are the tree's. The request must not free those.
    #[must_use]
    pub fn owned(&self) -> usize {
        self.owned
    }

    /// The branch position that the lookup reported.
    #[must_use]
    pub fn branch(&self) -> Option<usize> {
        self.branch
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(grip) = self.grip.take() {
            self.dropped.lock().unwrap_or_else(PoisonError::into_inner).push(grip);
        }
    }
}

/// What a request has computed: the tokens and the blocks that hold their KV.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// All tokens that the running state has absorbed.
    pub key: Key<'a>,
    /// One block per page of the key, the last one possibly partial. Below [`Lease::owned`] they are the tree's.
    pub blocks: &'a [BlockId],
    /// Window blocks of the rear, in a tree with windows. They cover whole pages of the key.
    pub window: Option<WindowSpan<'a>>,
}

/// What becomes of the state of a finished request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Final {
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
    pub fn new(config: TreeConfig, strategy: Strategy) -> Result<Self, PrefixError> {
        Ok(Self { tree: Tree::new(config)?, strategy, metrics: Metrics::default(), dropped: Arc::default() })
    }

    /// The tree, for inspection.
    #[must_use]
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The strategy that it was made with.
    #[must_use]
    pub fn strategy(&self) -> &Strategy {
        &self.strategy
    }

    /// What it has achieved so far.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Whether reuse can work at all with pools of so many checkpoint slots and typical prompts of so many tokens.
    #[must_use]
    pub fn reuse(&self, checkpoint_slots: usize, typical_prompt: usize) -> Reuse {
        Reuse::judge(self.tree.config(), checkpoint_slots, typical_prompt)
    }

    /// Looks up a prompt. At least its last token is left to compute. Nothing changes.
    #[must_use]
    pub fn lookup(&self, prompt: Key<'_>) -> Match {
        self.tree.match_prefix(prompt.head(prompt.tokens.len().saturating_sub(1)))
    }

    /// As [`PrefixCache::lookup`], as if nothing lay on the host.
    #[must_use]
    pub fn lookup_resident(&self, prompt: Key<'_>) -> Match {
        self.tree.match_resident(prompt.head(prompt.tokens.len().saturating_sub(1)))
    }

    /// As [`Tree::load`].
    ///
    /// # Errors
    /// As [`Tree::load`].
    pub fn load(
        &mut self,
        found: &Match,
        blocks: &[BlockId],
        window: &[BlockId],
        loads: &mut Vec<Load>,
    ) -> Result<(), PrefixError> {
        self.tree.load(found, blocks, window, loads)
    }

    /// As [`Tree::evict_host`].
    pub fn evict_host(&mut self, tokens: usize, states: usize) {
        self.tree.evict_host(tokens, states);
    }

    /// Admits a request whose prompt was looked up: holds what was found, and takes the live slot into care.
    ///
    /// The caller then copies [`Lease::source`] into the slot and calls [`PrefixCache::copied`].
    ///
    /// # Errors
    /// [`PrefixError::StaleMatch`] if the tree has lost what was found, [`PrefixError::NotLoaded`] if a part of it lies on
    /// the host; the slot remains the caller's.
    pub fn admit(
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
        let receipt = self.tree.lock(found, Hold::PathAndState)?;
        Ok(Lease {
            grip: Some(Grip { receipt, live }),
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
        self.metrics.admitted(&self.tree, prompt, found);
    }

    /// Gives up the hold on window blocks, for a request that has references of its own to them.
    pub(crate) fn release_window(&mut self, lease: &mut Lease) -> Result<(), PrefixError> {
        match &mut lease.grip {
            Some(grip) => self.tree.unlock_window(&mut grip.receipt),
            None => Err(PrefixError::ForeignReceipt),
        }
    }

    /// Says that the source has been copied: from now on it may be evicted.
    ///
    /// # Errors
    /// [`PrefixError::ForeignReceipt`] for a lease of another cache.
    pub fn copied(&mut self, lease: &mut Lease) -> Result<(), PrefixError> {
        (lease.source, lease.host_source) = (None, None);
        match &mut lease.grip {
            Some(grip) => self.tree.unlock_state(&mut grip.receipt),
            None => Err(PrefixError::ForeignReceipt),
        }
    }

    /// Appends the KV blocks of the held prefix: what the request's block table starts with.
    pub fn held_blocks(&self, lease: &Lease, out: &mut Vec<BlockId>) {
        if let Some(grip) = &lease.grip {
            self.tree.held_blocks(&grip.receipt, out);
        }
    }

    /// Appends the window blocks of the held prefix, and returns the position of the first token that they cover.
    pub fn held_window(&self, lease: &Lease, out: &mut Vec<BlockId>) -> usize {
        lease.grip.as_ref().map_or(0, |grip| self.tree.held_window(&grip.receipt, out))
    }

    /// Stores what an unfinished request has computed, with a state if `state` holds one after exactly these tokens.
    ///
    /// From then on the lease holds the stored path; the request must replace the front of its block table by
    /// [`PrefixCache::held_blocks`]. A length that is not a multiple of the page stores the pages below it and
    /// no state. Returns whether the state was kept.
    ///
    /// # Errors
    /// As [`Tree::insert`]. Nothing has changed then and the slot remains the caller's.
    pub fn store(
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
        self.metrics.stored(state.is_some(), kept, inserted.state_taken);
        if let (Some(node), Some(grip)) = (inserted.node, &mut lease.grip) {
            let receipt = self.tree.lock_node(node, Hold::Path)?;
            let old = std::mem::replace(&mut grip.receipt, receipt);
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
    pub fn finish(
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
        let live = lease.grip.as_ref().map(|grip| grip.live);
        let fits = aligned == at.key.tokens.len() && aligned > 0;
        let slot = match state {
            Final::Move => live,
            Final::Checkpoint(slot) => Some(slot),
            Final::Discard => None,
        };
        let inserted = self.tree.insert(&self.insertion(&lease, at, slot.filter(|_| fits)), out)?;
        self.metrics.stored(slot.is_some(), fits, inserted.state_taken);
        let kept = aligned.max(lease.owned) / page;
        out.blocks.extend(at.blocks.iter().skip(kept));
        let Some(grip) = lease.grip.take() else {
            return Err(PrefixError::ForeignReceipt);
        };
        self.tree.unlock(grip.receipt)?;
        match state {
            Final::Move if inserted.state_taken => Ok(None),
            Final::Move => {
                // The tree released the duplicate, but a live slot goes back to where live slots come from.
                out.slots.retain(|slot| *slot != grip.live);
                Ok(Some(grip.live))
            }
            Final::Checkpoint(slot) => {
                out.slots.extend(Some(slot).filter(|_| !fits));
                Ok(Some(grip.live))
            }
            Final::Discard => Ok(Some(grip.live)),
        }
    }

    /// Ends the lease of a request that leaves nothing. Returns its live slot.
    ///
    /// # Errors
    /// [`PrefixError::ForeignReceipt`] for a lease of another cache.
    pub fn abort(&mut self, mut lease: Lease) -> Result<SlotId, PrefixError> {
        let grip = lease.grip.take().ok_or(PrefixError::ForeignReceipt)?;
        self.tree.unlock(grip.receipt)?;
        Ok(grip.live)
    }

    /// Ends the leases that were dropped and appends their live slots.
    ///
    /// # Errors
    /// [`PrefixError::ForeignReceipt`] cannot occur for leases of this cache.
    pub fn reclaim(&mut self, live: &mut Vec<SlotId>) -> Result<(), PrefixError> {
        let dropped = std::mem::take(&mut *self.dropped.lock().unwrap_or_else(PoisonError::into_inner));
        for grip in dropped {
            live.push(grip.live);
            self.tree.unlock(grip.receipt)?;
        }
        Ok(())
    }

    /// As [`Tree::evict_kv`].
    pub fn evict_kv(&mut self, tokens: usize, out: &mut Released) -> Evicted {
        let evicted = self.tree.evict_kv(tokens, out);
        self.metrics.evicted(evicted);
        evicted
    }

    /// As [`Tree::evict_state`].
    pub fn evict_state(&mut self, states: usize, out: &mut Released) -> Evicted {
        let evicted = self.tree.evict_state(states, out);
        self.metrics.evicted(evicted);
        evicted
    }

    /// As [`Tree::evict_window`].
    pub fn evict_window(&mut self, tokens: usize, out: &mut Released) -> Evicted {
        let evicted = self.tree.evict_window(tokens, out);
        self.metrics.evicted(evicted);
        evicted
    }

    /// As [`Tree::save`].
    ///
    /// # Errors
    /// As [`Tree::save`].
    #[cfg(feature = "prefix-tree")]
    pub fn save(
        &self,
        path: &Path,
        shape: &Shape,
        read: impl FnMut(Saved, &mut Vec<u8>) -> io::Result<()>,
    ) -> Result<(), SnapshotError> {
        self.tree.save(path, shape, read)
    }

    /// As [`Tree::restore`].
    ///
    /// # Errors
    /// As [`Tree::restore`].
    #[cfg(feature = "prefix-tree")]
    pub fn restore(
        &mut self,
        path: &Path,
        shape: &Shape,
        pools: &mut impl Restore,
        out: &mut Released,
    ) -> Result<(), SnapshotError> {
        self.tree.restore(path, shape, pools, out)
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
