//! Blocks, windows and slots of the world: taken, given back, and what is in them.

use super::*;

impl World {
    /// Units that come back are free, forgotten by the dictionary, and poisoned.
    pub(super) fn release(&mut self, out: Released) {
        for offload in &out.offloads {
            match *offload {
                Offload::Block { from, to } => {
                    let moved = self.blocks[from.0 as usize];
                    self.host_blocks[to.0 as usize] = moved;
                    self.host_kv_of.retain(|_, block| *block != to);
                    self.host_kv_of.insert(moved.hash(), to);
                }
                Offload::Window { from, to } => {
                    let moved = self.window[from.0 as usize];
                    self.host_windows[to.0 as usize] = moved;
                    self.host_window_of.retain(|_, block| *block != to);
                    self.host_window_of.insert(moved.hash(), to);
                }
                Offload::State { from, to } => {
                    let moved = self.slots[from.0 as usize];
                    self.host_slots[to.0 as usize] = moved;
                    self.host_state_of.retain(|_, slot| *slot != to);
                    self.host_state_of.insert(moved.hash(), to);
                }
            }
        }
        for block in out.blocks {
            self.blocks[block.0 as usize] = Content::Poison;
            self.kv_of.retain(|_, b| *b != block);
            self.free_blocks.push(block);
        }
        for block in out.window {
            self.window[block.0 as usize] = Content::Poison;
            self.window_of.retain(|_, b| *b != block);
            self.free_window.push(block);
        }
        for slot in out.slots {
            self.state_of.retain(|_, s| *s != slot);
            self.free_slot(Some(slot));
        }
        self.forget_lost_host_units();
    }

    pub(super) fn free_slot(&mut self, slot: Option<SlotId>) {
        if let Some(slot) = slot {
            self.slots[slot.0 as usize] = Content::Poison;
            self.free_slots.push(slot);
        }
    }

    pub(super) fn take_slot(&mut self) -> Option<SlotId> {
        if self.free_slots.is_empty() {
            self.evict(|cache, out| cache.evict_state(1, out));
        }
        self.free_slots.pop()
    }

    pub(super) fn take_window(&mut self) -> Option<BlockId> {
        if self.free_window.is_empty() {
            let page = self.config.page;
            self.evict(|cache, out| cache.evict_window(page, out));
        }
        self.free_window.pop()
    }

    pub(super) fn take_block(&mut self) -> Option<BlockId> {
        if self.free_blocks.is_empty() {
            self.evict(|cache, out| cache.evict_kv(1, out));
        }
        self.free_blocks.pop()
    }

    /// Fresh window blocks for the last pages, as a sliding-window layer would hold them.
    pub(super) fn window_blocks(&mut self, request: &Request) -> Option<(usize, Vec<BlockId>)> {
        let page = self.config.page;
        let window = self.config.window?;
        let end = request.absorbed / page;
        let pages = window.div_ceil(page).min(end);
        let mut blocks = Vec::new();
        for _ in 0..pages {
            blocks.extend(self.take_window());
        }
        let from = end - blocks.len();
        for (i, block) in blocks.iter().enumerate() {
            let tokens = &request.tokens[..(from + i + 1) * page];
            self.window[block.0 as usize] = content(&self.namespaces[request.namespace], tokens);
        }
        Some((from * page, blocks))
    }

    /// Enters into the dictionary what the tree has taken: whatever was given and did not come back.
    pub(super) fn note(
        &mut self,
        request: &Request,
        state: Option<SlotId>,
        window: Option<&(usize, Vec<BlockId>)>,
        out: &Released,
    ) {
        let page = self.config.page;
        let namespace = &self.namespaces[request.namespace];
        let hash_at = |len: usize| hash(namespace, &request.tokens[..len]);
        for i in 0..request.absorbed / page {
            let block = request.blocks[i];
            if !out.blocks.contains(&block) {
                self.kv_of.insert(hash_at((i + 1) * page), block);
            }
        }
        if let Some((from, blocks)) = window {
            for (i, block) in blocks.iter().enumerate() {
                if !out.window.contains(block) {
                    self.window_of.insert(hash_at(from + (i + 1) * page), *block);
                }
            }
        }
        if let Some(slot) = state {
            assert_eq!(self.state_of.insert(hash_at(request.absorbed), slot), None);
        }
    }

    pub(super) fn evict<T>(&mut self, evict: impl FnOnce(&mut PrefixCache, &mut Released) -> T) {
        let mut out = Released::default();
        let _ = evict(&mut self.cache, &mut out);
        self.release(out);
    }
}
