//! Putting a computed prefix into the tree.

use super::config::TenantId;
use super::edges::{AHEAD, Edge};
use super::error::PrefixError;
use super::key::{Key, common_prefix, floor};
use super::node::{Component, NIL, NodeId};
use super::tree::{Change, Recency, Released, Tree};
use crate::book::{BlockId, SlotId};

/// Window blocks of the rear of a key: sequences give up their windows' front while they grow.
#[derive(Clone, Copy, Debug)]
pub struct WindowSpan<'a> {
    /// Position of the first token that the blocks cover, a multiple of the page.
    pub from: usize,
    /// One block per page from `from` to the end of the key.
    pub blocks: &'a [BlockId],
}

/// A computed prefix. Every unit in it changes hands: it becomes the tree's, or comes back as released.
#[derive(Clone, Copy, Debug)]
pub struct Insert<'a> {
    /// The prefix. Its length is a multiple of the page.
    pub key: Key<'a>,
    /// One KV block per page of the key.
    pub blocks: &'a [BlockId],
    /// Tokens at the front whose blocks were the tree's before: they are passed over, not released as duplicates.
    pub owned: usize,
    /// The slot that holds the state after exactly `key.tokens.len()` tokens.
    pub state: Option<SlotId>,
    /// The window blocks, in a tree with windows.
    pub window: Option<WindowSpan<'a>>,
    /// Who pays for what is new.
    pub tenant: TenantId,
}

/// Reports what became of an [`Insert`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inserted {
    /// Tokens that were in the tree before.
    pub prefix: usize,
    /// Whether the tree kept the state. If not, it had one there and the incoming slot was released.
    pub state_taken: bool,
    /// The node that ends where the key ends. `None` for an empty key.
    pub node: Option<NodeId>,
}

impl Tree {
    /// Inserts a prefix. Blocks and slots that the tree has already, or cannot keep, go to `out`.
    ///
    /// # Errors
    /// Lengths that do not fit each other, or components that the tree does not have. Nothing has changed then.
    pub fn insert(&mut self, insert: &Insert<'_>, out: &mut Released) -> Result<Inserted, PrefixError> {
        self.validate(insert)?;
        let tokens = insert.key.tokens;
        if tokens.is_empty() {
            out.slots.extend(insert.state);
            return Ok(Inserted { prefix: 0, state_taken: false, node: None });
        }
        self.tick();
        let mut current = self.root_or_new(insert.key.namespace);
        let mut position = 0;
        let mut path = [Edge::default(); AHEAD];
        'walk: loop {
            let ahead = self.edges.read_ahead(&self.nodes, current, &tokens[position..], &mut path);
            if ahead == 0 {
                break;
            }
            for &Edge { child, .. } in &path[..ahead] {
                let shared = common_prefix(&self.nodes[child].key, &tokens[position..]);
                let shared = floor(shared, self.config.page);
                // Sharing a part of an edge is a use of all of it.
                self.touch(child);
                let whole = shared == self.nodes[child].len();
                current = if whole { child } else { self.split(child, shared) };
                position += shared;
                self.reconcile(current, insert, out);
                if let Some(span) = insert.window {
                    self.restore_window(current, span, out);
                }
                if !whole {
                    break 'walk;
                }
            }
        }
        let prefix = position;
        if position < tokens.len() {
            current = self.grow(current, position, insert, out);
        }
        let state_taken = match insert.state {
            Some(slot) => self.attach_state(current, slot, out),
            None => false,
        };
        if let (Some(cap), true) = (self.config.states_per_path, state_taken) {
            self.thin_path(current, cap, out);
        }
        Ok(Inserted { prefix, state_taken, node: Some(self.nodes.id(current)) })
    }

    fn validate(&self, insert: &Insert<'_>) -> Result<(), PrefixError> {
        let page = self.config.page;
        let len = insert.key.tokens.len();
        let aligned = |what, len: usize| match len % page {
            0 => Ok(()),
            _ => Err(PrefixError::Unaligned { what, len, page }),
        };
        let covered = |what, span: usize, found: usize| match span / page == found {
            true => Ok(()),
            false => Err(PrefixError::BlockCount { what, expected: span / page, found }),
        };
        if u32::try_from(len).is_err() {
            return Err(PrefixError::TooLong { len });
        }
        aligned("a key", len)?;
        covered("kv", len, insert.blocks.len())?;
        self.check_tenant(insert.tenant)?;
        if let Some(span) = insert.window {
            if self.config.window.is_none() {
                return Err(PrefixError::NoComponent { component: "window" });
            }
            aligned("the start of a window span", span.from)?;
            covered("window", len.saturating_sub(span.from), span.blocks.len())?;
        }
        if insert.state.is_some() && !self.config.states {
            return Err(PrefixError::NoComponent { component: "states" });
        }
        Ok(())
    }

    /// The tree has this node's span already: what came with the insert is surplus, unless the span lies on the host.
    fn reconcile(&mut self, node: u32, insert: &Insert<'_>, out: &mut Released) {
        let page = self.config.page;
        let (start, end) = (self.nodes[node].start() / page, self.nodes[node].end as usize / page);
        if self.nodes[node].kv.is_empty() {
            return self.gain_kv(node, insert.blocks[start..end].into());
        }
        let from = start.max(insert.owned.div_ceil(page));
        // Who holds a node has its blocks; others in their place would lie beside those for as long.
        if self.config.renews && !self.nodes[node].locked() {
            let resident = self.nodes[node].kv.iter_mut().skip(from - start);
            let renewed = resident.zip(&insert.blocks[from.min(end)..end]).filter(|(old, new)| old != new);
            out.blocks.extend(renewed.map(|(old, new)| std::mem::replace(old, *new)));
            return;
        }
        let node = &self.nodes[node];
        let incoming = insert.blocks[..node.end as usize / page].iter();
        let resident = &node.kv[..];
        out.blocks.extend(
            incoming
                .enumerate()
                .skip(from)
                // The caller may have read the tree's own block here; that one is not a duplicate of itself.
                .filter(|&(i, block)| resident[i - start] != *block)
                .map(|(_, block)| *block),
        );
    }

    /// Gives fresh window blocks to the part of a tombstone that they cover; releases those it does not need.
    fn restore_window(&mut self, node: u32, span: WindowSpan<'_>, out: &mut Released) {
        let page = self.config.page;
        let (start, end) = (self.nodes[node].start(), self.nodes[node].end as usize);
        if span.from >= end {
            return;
        }
        let covered = |from: usize| &span.blocks[(from - span.from) / page..(end - span.from) / page];
        if !self.nodes[node].window.is_empty() {
            let from = start.max(span.from);
            let resident = &self.nodes[node].window[(from - start) / page..];
            let surplus = covered(from).iter().zip(resident);
            out.window.extend(surplus.filter(|(new, old)| new != old).map(|(new, _)| *new));
            return;
        }
        if span.from > start {
            self.split(node, span.from - start);
        }
        self.gain_window(node, covered(start.max(span.from)).into());
    }

    /// Hangs the rest of the key below `parent`: one node, or two where the window begins inside the rest.
    fn grow(&mut self, parent: u32, position: usize, insert: &Insert<'_>, out: &mut Released) -> u32 {
        let page = self.config.page;
        let len = insert.key.tokens.len();
        let window_from = insert.window.map_or(len, |span| span.from.clamp(position, len));
        let mut node = parent;
        for (from, to) in [(position, window_from), (window_from, len)] {
            if from == to {
                continue;
            }
            node = self.attach(node, insert.key.tokens[from..to].into(), insert.tenant);
            self.gain_kv(node, insert.blocks[from / page..to / page].into());
            if let Some(span) = insert.window.filter(|_| from >= window_from) {
                self.restore_window(node, span, out);
            }
        }
        node
    }

    fn attach_state(&mut self, node: u32, slot: SlotId, out: &mut Released) -> bool {
        if self.nodes[node].state.is_some() {
            out.slots.push(slot);
            return false;
        }
        self.forget_host_state(node);
        self.file_state(node, slot);
        self.book(node, Component::State, Change::Gain);
        self.relist(node, Recency::Newest);
        true
    }

    /// Drops the shallowest states beyond `cap` on the path that ends at `tail`.
    ///
    /// The tail, forks, locked nodes and leaves keep theirs, so the cap is soft.
    fn thin_path(&mut self, tail: u32, cap: usize, out: &mut Released) {
        let mut with_state = Vec::new();
        let mut node = tail;
        while self.nodes[node].parent != NIL {
            if self.nodes[node].state.is_some() {
                with_state.push(node);
            }
            node = self.nodes[node].parent;
        }
        let surplus = with_state.len().saturating_sub(cap);
        let candidates = with_state.iter().skip(1).rev();
        let spare: Vec<u32> = candidates
            .copied()
            .filter(|&n| self.nodes[n].children == 1 && self.nodes[n].state_pins == 0)
            .take(surplus)
            .collect();
        for node in spare {
            self.demote_state(node, out);
        }
    }
}
