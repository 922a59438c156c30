//! Holding what a request reads.
//!
//! A node is locked while a receipt is anchored at it or a child of it is locked. Counting locked *children*
//! instead of receipts lets a lock stop at the first ancestor that is locked already, and makes it survive splits
//! without being told: a receipt names the node at whose end it is anchored, and splits leave the end where it is.

use super::error::PrefixError;
use super::lookup::Match;
use super::node::{Component, NIL, Node, NodeId};
use super::tree::{Change, Recency, Tree};
use crate::book::BlockId;

/// Chooses what a lock holds besides the KV path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hold {
    /// The state too, until its copy has been made.
    #[default]
    PathAndState,
    /// The path alone: the state has been copied and may be evicted.
    Path,
}

/// Proof of a lock. It goes back through [`Tree::unlock`] once.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a lock without its receipt is never released"]
pub struct Receipt {
    tree: u64,
    /// `None` where nothing was hit: there is nothing to hold.
    anchor: Option<NodeId>,
    /// Nodes from here to the anchor hold their window.
    window_from: u32,
    hold: Hold,
}

impl Tree {
    /// Holds what `found` found and marks it as used, until the receipt is given back.
    ///
    /// # Errors
    /// [`PrefixError::StaleMatch`] if any of it has been evicted since.
    pub fn lock(&mut self, found: &Match, hold: Hold) -> Result<Receipt, PrefixError> {
        let Some(mut node) = self.locate(found)? else {
            return Ok(self.receipt(None, 0, hold));
        };
        let not_loaded = PrefixError::NotLoaded { resident: found.resident, hit: found.hit };
        if self.nodes[node].kv.is_empty() {
            return Err(not_loaded);
        }
        let window_from = self.window_start(node, found.hit);
        let window_from = window_from.map_err(|stale| if found.host_window > 0 { not_loaded } else { stale })?;
        self.tick();
        if found.hit < self.nodes[node].end as usize {
            node = self.split(node, found.hit - self.nodes[node].start());
        }
        self.use_state(node);
        self.pin(node, window_from, hold);
        Ok(self.receipt(Some(self.nodes.id(node)), window_from, hold))
    }

    /// Holds what `found` found wherever it lies, so that making room for its load does not cost a part of it.
    ///
    /// # Errors
    /// As [`Tree::lock`].
    pub fn hold_to_load(&mut self, found: &Match) -> Result<Receipt, PrefixError> {
        let Some(node) = self.locate(found)? else { return Ok(self.receipt(None, 0, Hold::Path)) };
        let (mut first, mut above) = (u32::MAX, node);
        while let Some(window) = self.config.window
            && self.nodes[above].parent != NIL
            && (first == u32::MAX || found.hit.saturating_sub(first as usize) < window)
        {
            first = self.nodes[above].start() as u32;
            above = self.nodes[above].parent;
        }
        self.tick();
        self.pin(node, first, Hold::PathAndState);
        Ok(self.receipt(Some(self.nodes.id(node)), first, Hold::PathAndState))
    }

    /// The node in whose span a match ends, if it is a hit and still there.
    pub(super) fn locate(&self, found: &Match) -> Result<Option<u32>, PrefixError> {
        let Some(id) = found.node else { return Ok(None) };
        if found.tree != self.id {
            return Err(PrefixError::StaleMatch { what: "tree" });
        }
        let mut node = self.nodes.resolve(id).ok_or(PrefixError::StaleMatch { what: "node" })?;
        let n = &self.nodes[node];
        if self.config.states && (found.state, found.host_state) != (n.state.map(|state| state.slot), n.host_state) {
            return Err(PrefixError::StaleMatch { what: "state" });
        }
        // The node may have been split since; then the position lies in one of the fronts.
        while self.nodes[node].start() >= found.hit {
            node = self.nodes[node].parent;
        }
        Ok(Some(node))
    }

    /// Holds the path to a node that an insert returned. A node without a state is held all the same, so that a state
    /// that comes later is held from the start.
    ///
    /// # Errors
    /// [`PrefixError::StaleMatch`] if the node is gone.
    pub fn lock_node(&mut self, id: NodeId, hold: Hold) -> Result<Receipt, PrefixError> {
        let node = self.nodes.resolve(id).ok_or(PrefixError::StaleMatch { what: "node" })?;
        let window_from = self.window_start(node, self.nodes[node].end as usize).unwrap_or(self.nodes[node].end);
        self.tick();
        self.pin(node, window_from, hold);
        Ok(self.receipt(Some(id), window_from, hold))
    }

    /// Holds of what a receipt holds the first `len` tokens only, and no state.
    pub(super) fn lock_front(&mut self, receipt: &Receipt, len: usize) -> Result<Receipt, PrefixError> {
        let Some(id) = receipt.anchor else { return Ok(self.receipt(None, 0, Hold::Path)) };
        let mut node = self.nodes.resolve(id).ok_or(PrefixError::ForeignReceipt)?;
        while self.nodes[node].parent != NIL && self.nodes[node].start() >= len {
            node = self.nodes[node].parent;
        }
        if self.nodes[node].parent == NIL {
            return Ok(self.receipt(None, 0, Hold::Path));
        }
        if self.nodes[node].end as usize > len {
            node = self.split(node, len - self.nodes[node].start());
        }
        self.lock_node(self.nodes.id(node), Hold::Path)
    }

    /// Marks what `found` found as used, without holding it.
    ///
    /// # Errors
    /// As [`Tree::lock`].
    pub fn commit(&mut self, found: &Match) -> Result<(), PrefixError> {
        let receipt = self.lock(found, Hold::PathAndState)?;
        self.unlock(receipt)
    }

    /// Releases a lock. What becomes evictable by it counts as just used.
    ///
    /// # Errors
    /// [`PrefixError::ForeignReceipt`] for a receipt of another tree.
    #[expect(clippy::needless_pass_by_value, reason = "a receipt is spent")]
    pub fn unlock(&mut self, receipt: Receipt) -> Result<(), PrefixError> {
        if receipt.tree != self.id {
            return Err(PrefixError::ForeignReceipt);
        }
        let Some(id) = receipt.anchor else {
            return Ok(());
        };
        let anchor = self.nodes.resolve(id).ok_or(PrefixError::ForeignReceipt)?;
        self.tick();
        if receipt.hold == Hold::PathAndState {
            self.repin_state(anchor, |pins| *pins -= 1);
        }
        self.unpin_window(anchor, receipt.window_from);
        let mut node = anchor;
        self.repin_span(node, |node| node.pins -= 1);
        while !self.nodes[node].locked() && self.nodes[node].parent != NIL {
            self.nodes[node].stamp = self.clock;
            node = self.nodes[node].parent;
            self.repin_span(node, |node| node.locked_children -= 1);
        }
        Ok(())
    }

    /// As [`Tree::unlock`], for a use that went on to `end`: what was added there was used with all before it, at one time.
    pub(super) fn unlock_path(&mut self, receipt: Receipt, end: Option<NodeId>) -> Result<(), PrefixError> {
        self.unlock(receipt)?;
        let mut node = end.and_then(|id| self.nodes.resolve(id)).unwrap_or(NIL);
        while node != NIL && self.nodes[node].parent != NIL && self.nodes[node].stamp != self.clock {
            self.nodes[node].stamp = self.clock;
            node = self.nodes[node].parent;
        }
        Ok(())
    }

    /// Gives up the state of a lock and keeps the path: once copied, the source need not stay.
    ///
    /// # Errors
    /// [`PrefixError::ForeignReceipt`] for a receipt of another tree.
    pub fn unlock_state(&mut self, receipt: &mut Receipt) -> Result<(), PrefixError> {
        if receipt.tree != self.id {
            return Err(PrefixError::ForeignReceipt);
        }
        if receipt.hold == Hold::Path {
            return Ok(());
        }
        receipt.hold = Hold::Path;
        if let Some(id) = receipt.anchor {
            let anchor = self.nodes.resolve(id).ok_or(PrefixError::ForeignReceipt)?;
            self.tick();
            self.repin_state(anchor, |pins| *pins -= 1);
        }
        Ok(())
    }

    /// Gives up the window of a lock and keeps the rest.
    pub(super) fn unlock_window(&mut self, receipt: &mut Receipt) -> Result<(), PrefixError> {
        if receipt.tree != self.id {
            return Err(PrefixError::ForeignReceipt);
        }
        let from = std::mem::replace(&mut receipt.window_from, u32::MAX);
        if let Some(id) = receipt.anchor {
            let anchor = self.nodes.resolve(id).ok_or(PrefixError::ForeignReceipt)?;
            self.tick();
            self.unpin_window(anchor, from);
        }
        Ok(())
    }

    /// Tokens from the root to the anchor of a receipt.
    #[must_use]
    pub fn held_tokens(&self, receipt: &Receipt) -> usize {
        let anchor = receipt.anchor.and_then(|id| self.nodes.resolve(id));
        anchor.map_or(0, |node| self.nodes[node].end as usize)
    }

    /// Appends the KV blocks that a receipt holds, in the order of the tokens.
    pub fn held_blocks(&self, receipt: &Receipt, out: &mut Vec<BlockId>) {
        let mut node = receipt.anchor.and_then(|id| self.nodes.resolve(id)).unwrap_or(NIL);
        let from = out.len();
        let pages = self.held_tokens(receipt) / self.config.page;
        out.resize(from + pages, BlockId(u32::MAX));
        let mut to = out.len();
        while node != NIL {
            let blocks = &self.nodes[node].kv;
            out[to - blocks.len()..to].copy_from_slice(blocks);
            to -= blocks.len();
            node = self.nodes[node].parent;
        }
    }

    /// Appends the window blocks that a receipt holds, in the order of the tokens, and returns the position of the first
    /// token that they cover.
    pub fn held_window(&self, receipt: &Receipt, out: &mut Vec<BlockId>) -> usize {
        let end = self.held_tokens(receipt);
        let start = (receipt.window_from as usize).min(end);
        let mut node = receipt.anchor.and_then(|id| self.nodes.resolve(id)).unwrap_or(NIL);
        let from = out.len();
        out.resize(from + (end - start) / self.config.page, BlockId(u32::MAX));
        let mut to = out.len();
        while to > from && node != NIL {
            let blocks = &self.nodes[node].window;
            out[to - blocks.len()..to].copy_from_slice(blocks);
            to -= blocks.len();
            node = self.nodes[node].parent;
        }
        start
    }

    fn receipt(&self, anchor: Option<NodeId>, window_from: u32, hold: Hold) -> Receipt {
        Receipt { tree: self.id, anchor, window_from, hold }
    }

    /// Where the window that ends at `position` begins, rounded down to the start of a node.
    fn window_start(&self, node: u32, position: usize) -> Result<u32, PrefixError> {
        let Some(window) = self.config.window else {
            return Ok(u32::MAX);
        };
        let mut node = node;
        loop {
            if self.nodes[node].parent == NIL {
                return Ok(0);
            }
            if self.nodes[node].window.is_empty() {
                return Err(PrefixError::StaleMatch { what: "window" });
            }
            let start = self.nodes[node].start();
            if position - start >= window {
                return Ok(start as u32);
            }
            node = self.nodes[node].parent;
        }
    }

    fn pin(&mut self, anchor: u32, window_from: u32, hold: Hold) {
        if hold == Hold::PathAndState {
            self.repin_state(anchor, |pins| *pins += 1);
        }
        let mut node = anchor;
        while self.nodes[node].parent != NIL && self.nodes[node].start() >= window_from as usize {
            self.repin(node, &[Component::Window], |node| node.window_pins += 1);
            node = self.nodes[node].parent;
        }
        let mut node = anchor;
        let mut was_locked = self.nodes[node].locked();
        self.repin_span(node, |node| node.pins += 1);
        while !was_locked && self.nodes[node].parent != NIL {
            node = self.nodes[node].parent;
            was_locked = self.nodes[node].locked();
            self.repin_span(node, |node| node.locked_children += 1);
        }
    }

    fn unpin_window(&mut self, anchor: u32, window_from: u32) {
        let mut node = anchor;
        while self.nodes[node].parent != NIL && self.nodes[node].start() >= window_from as usize {
            self.repin(node, &[Component::Window], |node| node.window_pins -= 1);
            node = self.nodes[node].parent;
        }
    }

    fn repin_state(&mut self, node: u32, change: impl FnOnce(&mut u32)) {
        self.repin(node, &[Component::State, Component::HostState], |node| change(&mut node.state_pins));
    }

    fn repin_span(&mut self, node: u32, change: impl FnOnce(&mut Node)) {
        self.repin(node, &[Component::Kv, Component::HostKv], change);
    }

    /// Changes a pin count of a node and carries the consequences to the counters of `components` and to the lists.
    fn repin(&mut self, node: u32, components: &[Component], change: impl FnOnce(&mut Node)) {
        for &component in components {
            self.book(node, component, Change::Loss);
        }
        change(&mut self.nodes[node]);
        for &component in components {
            self.book(node, component, Change::Gain);
        }
        self.nodes[node].stamp = self.clock;
        self.relist(node, Recency::Newest);
    }
}
