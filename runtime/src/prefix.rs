//! Prefix reuse: a prompt that starts like an earlier one takes over its blocks, and a copy of its state.
//!
//! The tree holds a reference to each block that it knows and checkpoint slots of the plan's quota. A running sequence
//! holds references of its own, and a lock on the path that it shares.

use cacheplan_managers::ManagerError;
use cacheplan_managers::book::prefix::{Hold, Insert, Key, Namespace, Receipt, Released, TenantId, Tree, TreeConfig};
use cacheplan_managers::book::{BlockId, Layout, Prefix, SequenceId, SlotId, SlotRole};
use cacheplan_managers::device::MambaHybridCacheManager;

use crate::error::RuntimeError;

/// The prefixes that a session's caches hold.
#[derive(Debug)]
pub(crate) struct Prefixes {
    tree: Tree,
    namespace: Namespace,
    /// Tokens in a block: what keys are multiples of.
    page: usize,
    /// Whether a hit needs a state.
    states: bool,
}

/// A running sequence's part of the tree.
#[derive(Debug)]
pub(crate) struct Lease {
    receipt: Receipt,
    /// Tokens at the front that the tree has.
    owned: usize,
    /// Tokens that were found at admission.
    pub(crate) cached: usize,
    /// Where its steps must end to leave states, ascending.
    cuts: Vec<usize>,
    /// Tokens of the prompt.
    prompt: usize,
}

impl Lease {
    /// The next position at which a step must end, after `computed` tokens.
    pub(crate) fn next_cut(&self, computed: usize) -> Option<usize> {
        self.cuts.iter().copied().find(|&cut| cut > computed)
    }
}

impl Prefixes {
    /// An empty tree, if the pools allow reuse: keys and values in one pool that keeps whole contexts, and checkpoint
    /// slots where there are states.
    pub(crate) fn new(layout: &Layout) -> Result<Option<Self>, RuntimeError> {
        let states = layout.has_slots();
        let [paged] = &layout.paged[..] else { return Ok(None) };
        if paged.window.is_some() || paged.stride != 1 || (states && layout.slots.checkpoints == 0) {
            return Ok(None);
        }
        let page = paged.entries_per_block as usize;
        let tree = Tree::new(TreeConfig { page, states, ..TreeConfig::default() })?;
        Ok(Some(Self { tree, namespace: Namespace::default(), page, states }))
    }

    /// Admits a sequence behind what the tree has of its tokens; makes room for it where nobody uses what is there.
    pub(crate) fn admit(
        &mut self,
        caches: &mut MambaHybridCacheManager,
        tokens: &[u32],
    ) -> Result<(SequenceId, Lease), RuntimeError> {
        // At least the last token is computed, to have logits.
        let last = tokens.len().saturating_sub(1);
        let found = self.tree.match_prefix(Key { namespace: &self.namespace, tokens: &tokens[..last] });
        let mut receipt = self.tree.lock(&found, Hold::PathAndState)?;
        let mut blocks = Vec::new();
        self.tree.held_blocks(&receipt, &mut blocks);
        let prefix = Prefix { tokens: found.hit as u32, blocks: vec![blocks], state: found.state };
        let admitted = self.retry(caches, |caches| caches.admit_prefix(tokens.len() as u32, &prefix));
        let sequence = match admitted {
            Ok(sequence) => sequence,
            Err(error) => {
                self.tree.unlock(receipt)?;
                return Err(error);
            }
        };
        self.tree.unlock_state(&mut receipt)?;
        let mut cuts = Vec::new();
        if self.states {
            cuts.extend(found.branch);
            cuts.push(last / self.page * self.page);
            cuts.sort_unstable();
        }
        Ok((sequence, Lease { receipt, owned: found.hit, cached: found.hit, cuts, prompt: tokens.len() }))
    }

    /// Runs `change` again as long as it lacks blocks and evicting some gives any.
    pub(crate) fn retry<R>(
        &mut self,
        caches: &mut MambaHybridCacheManager,
        mut change: impl FnMut(&mut MambaHybridCacheManager) -> Result<R, ManagerError>,
    ) -> Result<R, RuntimeError> {
        loop {
            match change(caches) {
                Err(ManagerError::OutOfBlocks { .. }) if self.evict(caches, self.page)? => {}
                result => return Ok(result?),
            }
        }
    }

    /// Keeps what a sequence has computed of its prompt, where a later one can start from it.
    pub(crate) fn computed(
        &mut self,
        caches: &mut MambaHybridCacheManager,
        sequence: SequenceId,
        lease: &mut Lease,
        tokens: &[u32],
    ) -> Result<(), RuntimeError> {
        if !self.states && tokens.len() == lease.prompt {
            self.store(caches, sequence, lease, tokens, None)?;
        }
        if self.states && lease.cuts.contains(&tokens.len()) {
            self.store_with_state(caches, sequence, lease, tokens)?;
        }
        Ok(())
    }

    /// Ends a sequence, and keeps what it has computed.
    pub(crate) fn finish(
        &mut self,
        caches: &mut MambaHybridCacheManager,
        sequence: SequenceId,
        mut lease: Lease,
        tokens: &[u32],
    ) -> Result<(), RuntimeError> {
        if !self.states {
            self.store(caches, sequence, &mut lease, tokens, None)?;
        } else if tokens.len().is_multiple_of(self.page) {
            // Elsewhere the state has no key.
            self.store_with_state(caches, sequence, &mut lease, tokens)?;
        }
        self.abandon(lease)?;
        Ok(caches.finish(sequence)?)
    }

    /// Gives up the lock of a sequence that leaves nothing.
    pub(crate) fn abandon(&mut self, lease: Lease) -> Result<(), RuntimeError> {
        Ok(self.tree.unlock(lease.receipt)?)
    }

    /// Gives back everything that no running sequence holds.
    pub(crate) fn clear(&mut self, caches: &mut MambaHybridCacheManager) -> Result<(), RuntimeError> {
        self.evict(caches, usize::MAX)?;
        Ok(())
    }

    /// As [`store`](Self::store) with a copy of the state, in the place of the least valuable one if no slot is free;
    /// nothing if all are in use.
    fn store_with_state(
        &mut self,
        caches: &mut MambaHybridCacheManager,
        sequence: SequenceId,
        lease: &mut Lease,
        tokens: &[u32],
    ) -> Result<(), RuntimeError> {
        if caches.book().slots().available(SlotRole::Checkpoint) == 0 {
            let mut released = Released::default();
            self.tree.evict_state(1, &mut released);
            self.give_back(caches, released)?;
        }
        match caches.with_book(|book| book.checkpoint(sequence)) {
            Ok(slot) => self.store(caches, sequence, lease, tokens, Some(slot)),
            Err(ManagerError::OutOfSlots { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Puts the whole blocks of `tokens` into the tree, with the state after the last of them.
    fn store(
        &mut self,
        caches: &mut MambaHybridCacheManager,
        sequence: SequenceId,
        lease: &mut Lease,
        tokens: &[u32],
        state: Option<SlotId>,
    ) -> Result<(), RuntimeError> {
        let pages = tokens.len() / self.page;
        let table = caches.book().block_table(sequence, 0)?;
        let blocks: Vec<BlockId> = table[..pages].iter().map(|&block| BlockId(block as u32)).collect();
        let new = blocks[(lease.owned / self.page).min(pages)..].to_vec();
        let key = Key { namespace: &self.namespace, tokens: &tokens[..pages * self.page] };
        let insert = Insert { key, blocks: &blocks, owned: lease.owned, state, window: None, tenant: TenantId(0) };
        let mut released = Released::default();
        caches.with_book(|book| new.iter().try_for_each(|&block| book.blocks_mut(0)?.retain(block)))?;
        let inserted = match self.tree.insert(&insert, &mut released) {
            Ok(inserted) => inserted,
            Err(error) => {
                (released.blocks, released.slots) = (new, state.into_iter().collect());
                self.give_back(caches, released)?;
                return Err(error.into());
            }
        };
        if let Some(node) = inserted.node {
            let receipt = self.tree.lock_node(node, Hold::Path)?;
            self.tree.unlock(std::mem::replace(&mut lease.receipt, receipt))?;
            lease.owned = pages * self.page;
        }
        self.give_back(caches, released)
    }

    /// Evicts blocks of about `tokens` tokens; whether there were any.
    fn evict(&mut self, caches: &mut MambaHybridCacheManager, tokens: usize) -> Result<bool, RuntimeError> {
        let mut released = Released::default();
        let evicted = self.tree.evict_kv(tokens, &mut released);
        self.give_back(caches, released)?;
        Ok(evicted.tokens > 0)
    }

    fn give_back(&self, caches: &mut MambaHybridCacheManager, released: Released) -> Result<(), RuntimeError> {
        let returned = caches.with_book(|book| {
            for block in released.blocks {
                book.blocks_mut(0)?.release(block)?;
            }
            released.slots.into_iter().try_for_each(|slot| book.slots_mut().release(slot))
        });
        Ok(returned?)
    }
}
