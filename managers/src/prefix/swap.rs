//! Moving to the host what the device has no room for, and back.

use super::error::PrefixError;
use super::host::{HostBlockId, Load, Offload};
use super::lookup::{Match, OnHost};
use super::node::{Component, NIL};
use super::tree::{Change, Recency, Released, Tree};
use crate::book::BlockId;

impl Tree {
    /// Brings the spans of a hit back that lie on the host, so that it can be locked.
    ///
    /// `blocks` are fresh ones, one per page from [`Match::resident`] to [`Match::hit`], and so are the window blocks
    /// `window`, one per page of [`Match::host_window`]. The copies go to `loads`; they must be made before any other
    /// operation, which may reuse the host's units.
    ///
    /// # Errors
    /// [`PrefixError::StaleMatch`] if the tree has changed since, [`PrefixError::BlockCount`] for another number of
    /// blocks. Nothing has changed then.
    pub fn load(
        &mut self,
        found: &Match,
        blocks: &[BlockId],
        window: &[BlockId],
        loads: &mut Vec<Load>,
    ) -> Result<(), PrefixError> {
        let Some(mut node) = self.locate(found)? else {
            return Ok(());
        };
        let page = self.config.page;
        let expected = [found.hit.saturating_sub(found.resident), found.host_window];
        for (what, given, tokens) in [("kv to load", blocks, expected[0]), ("window to load", window, expected[1])] {
            if given.len() != tokens / page {
                return Err(PrefixError::BlockCount { what, expected: tokens / page, found: given.len() });
            }
        }
        if self.to_load(node, found.hit).fold([0, 0], OnHost::and) != expected {
            return Err(PrefixError::StaleMatch { what: "host span" });
        }
        self.tick();
        if found.hit < self.nodes[node].end as usize {
            node = self.split(node, found.hit - self.nodes[node].start());
        }
        let path: Vec<OnHost> = self.to_load(node, found.hit).collect();
        let (mut rest, mut rest_of_window) = (blocks, window);
        for OnHost { node, kv, window, .. } in path.into_iter().rev() {
            let n = &self.nodes[node];
            if kv {
                let (own, others) = rest.split_at(n.host_kv.len());
                rest = others;
                loads.extend(n.host_kv.iter().zip(own).map(|(&from, &to)| Load::Block { from, to }));
                self.gain_kv(node, own.into());
            }
            let n = &self.nodes[node];
            if window {
                let (own, others) = rest_of_window.split_at(n.host_window.len());
                rest_of_window = others;
                loads.extend(n.host_window.iter().zip(own).map(|(&from, &to)| Load::Window { from, to }));
                self.gain_window(node, own.into());
            }
        }
        Ok(())
    }

    /// Appends the host's blocks and window blocks that a hit would have to load.
    pub(crate) fn units_to_load(&self, found: &Match, blocks: &mut Vec<HostBlockId>, windows: &mut Vec<HostBlockId>) {
        let Ok(Some(node)) = self.locate(found) else { return };
        for OnHost { node, tokens, kv, window } in self.to_load(node, found.hit) {
            let (n, pages) = (&self.nodes[node], tokens / self.config.page);
            blocks.extend(n.host_kv.iter().take(if kv { pages } else { 0 }));
            windows.extend(n.host_window.iter().take(if window { pages } else { 0 }));
        }
    }

    /// Drops what lies on the host until at least so many KV tokens and states of it are gone, oldest first.
    pub fn evict_host(&mut self, tokens: usize, states: usize) {
        let mut dropped = 0;
        while dropped < tokens
            && let Some(leaf) = self.oldest(Component::HostKv)
        {
            dropped += self.nodes[leaf].len();
            self.drop_host_leaf(leaf);
        }
        for _ in 0..states {
            let Some(node) = self.oldest(Component::HostState) else { break };
            self.forget_host_state(node);
        }
    }

    /// Gives a node its span on the device; a copy on the host is given up. A window stays there until one comes for it.
    pub(super) fn gain_kv(&mut self, node: u32, blocks: Box<[BlockId]>) {
        self.book(node, Component::HostKv, Change::Loss);
        self.host.blocks.extend(std::mem::take(&mut self.nodes[node].host_kv));
        self.nodes[node].kv = blocks;
        self.book(node, Component::Kv, Change::Gain);
        self.relist(node, Recency::Newest);
        let parent = self.nodes[node].parent;
        self.nodes[parent].device_children += 1;
        self.relist(parent, Recency::Newest);
    }

    /// Gives a node its window on the device; a copy on the host is given up.
    pub(super) fn gain_window(&mut self, node: u32, blocks: Box<[BlockId]>) {
        self.forget_host_window(node);
        self.nodes[node].window = blocks;
        self.book(node, Component::Window, Change::Gain);
        self.relist(node, Recency::Newest);
    }

    /// Forgets a window on the host.
    pub(super) fn forget_host_window(&mut self, node: u32) {
        self.host.windows.extend(std::mem::take(&mut self.nodes[node].host_window));
    }

    /// Takes the span of a node off the device. Its parent may have become evictable.
    pub(super) fn lose_kv(&mut self, node: u32, out: &mut Released) {
        self.book(node, Component::Kv, Change::Loss);
        out.blocks.append(&mut std::mem::take(&mut self.nodes[node].kv).into_vec());
        self.relist(node, Recency::Newest);
        let parent = self.nodes[node].parent;
        self.nodes[parent].device_children -= 1;
        self.relist(parent, self.recency_below(parent, self.nodes[node].stamp));
    }

    /// Moves the span of a device leaf to the host, with its state and its window if there is room for them. `false`
    /// without room for the span.
    pub(super) fn demote(&mut self, leaf: u32, out: &mut Released) -> bool {
        let pages = self.nodes[leaf].kv.len();
        if self.host.blocks.len() + self.usage.host_kv.evictable / self.config.page < pages {
            // Nothing is dropped for what would not fit all the same.
            return false;
        }
        while self.host.blocks.len() < pages {
            let Some(oldest) = self.oldest(Component::HostKv) else {
                return false;
            };
            self.drop_host_leaf(oldest);
        }
        if self.nodes[leaf].state.is_some() {
            self.demote_state(leaf, out);
        }
        if !self.nodes[leaf].window.is_empty() {
            if let Some(kept) = self.host.windows.len().checked_sub(pages) {
                let units = self.host.windows.split_off(kept);
                let copies = self.nodes[leaf].window.iter().zip(&units);
                out.offloads.extend(copies.map(|(&from, &to)| Offload::Window { from, to }));
                self.nodes[leaf].host_window = units.into();
            }
            self.take_window(leaf, out);
        }
        let units = self.host.blocks.split_off(self.host.blocks.len() - pages);
        let copies = self.nodes[leaf].kv.iter().zip(&units).map(|(&from, &to)| Offload::Block { from, to });
        out.offloads.extend(copies);
        self.lose_kv(leaf, out);
        self.nodes[leaf].host_kv = units.into();
        self.book(leaf, Component::HostKv, Change::Gain);
        self.relist(leaf, Recency::Newest);
        true
    }

    /// Takes the state of a node off the device, to the host if it has room or can make it.
    pub(super) fn demote_state(&mut self, node: u32, out: &mut Released) {
        if self.host.slots.is_empty()
            && let Some(oldest) = self.oldest(Component::HostState)
        {
            self.forget_host_state(oldest);
        }
        let (Some(state), Some(to)) = (self.nodes[node].state, self.host.slots.pop()) else {
            return self.take_state(node, out);
        };
        out.offloads.push(Offload::State { from: state.slot, to });
        self.take_state(node, out);
        self.nodes[node].host_state = Some(to);
        self.book(node, Component::HostState, Change::Gain);
        self.relist(node, Recency::Newest);
    }

    /// Forgets a state on the host, because it is superseded by one on the device or no longer wanted.
    pub(super) fn forget_host_state(&mut self, node: u32) {
        self.book(node, Component::HostState, Change::Loss);
        self.host.slots.extend(self.nodes[node].host_state.take());
        self.relist(node, Recency::Newest);
    }

    /// Removes everything below a node. All of it lies on the host and is unlocked.
    pub(super) fn drop_host_children(&mut self, node: u32) {
        while self.nodes[node].first_child != NIL {
            let mut leaf = self.nodes[node].first_child;
            while self.nodes[leaf].first_child != NIL {
                leaf = self.nodes[leaf].first_child;
            }
            self.drop_host_leaf(leaf);
        }
    }

    fn drop_host_leaf(&mut self, leaf: u32) {
        self.forget_host_state(leaf);
        self.book(leaf, Component::HostKv, Change::Loss);
        self.host.blocks.extend(std::mem::take(&mut self.nodes[leaf].host_kv));
        self.forget_host_window(leaf);
        self.relist(leaf, Recency::Newest);
        self.detach(leaf);
    }
}
