//! Reading a snapshot.
//!
//! A checksum says that a file is whole, not who wrote it, so nothing in it is believed without a look.

use std::path::Path;

use super::input::Input;
use super::{Restore, Shape, SnapshotError};
use crate::book::prefix::config::{LeafRule, TenantId};
use crate::book::prefix::evict::Evicted;
use crate::book::prefix::key::{Namespace, Token};
use crate::book::prefix::node::NIL;
use crate::book::prefix::node::{COMPONENTS, Checkpoint, Component};
use crate::book::prefix::tree::{Change, Recency, Released, Tree};

/// The latest time at which a node can have been used: the clock must be able to go on from there.
const LATEST: u64 = u64::MAX / 2;

/// What stands before the units of a node.
pub(super) struct Span {
    /// `NIL` if the parent was left out.
    parent: u32,
    key: Box<[Token]>,
    pages: usize,
    tenant: TenantId,
    stamp: u64,
    windowed: bool,
    stated: bool,
}

impl Tree {
    /// Restores a snapshot into this empty tree. What the pools cannot hold is left out, deepest first.
    ///
    /// # Errors
    /// [`SnapshotError::Damaged`] and [`SnapshotError::Foreign`] say why the file must not be used; the tree is
    /// empty then, and what `pools` gave is in `out`.
    pub fn restore(
        &mut self,
        path: &Path,
        shape: &Shape,
        pools: &mut impl Restore,
        out: &mut Released,
    ) -> Result<(), SnapshotError> {
        if self.usage.nodes > 0 {
            return Err(SnapshotError::NotEmpty { nodes: self.usage.nodes });
        }
        let mut input = Input::open(path)?;
        self.check_header(&mut input, shape)?;
        let (clock, experience) = (self.clock, self.experience);
        let result = self.restore_nodes(&mut input, shape, pools, out);
        if result.is_ok() {
            self.settle(out);
        } else {
            self.give_back(out);
            self.clock = clock;
        }
        // Coming back is no use from which anything could be learnt.
        self.experience = experience;
        result
    }

    fn check_header(&self, input: &mut Input, shape: &Shape) -> Result<(), SnapshotError> {
        let fingerprint = input.text()?;
        input.expect("the fingerprint", &fingerprint, &shape.fingerprint)?;
        let sizes = [
            ("tokens per block", self.config.page),
            ("bytes per KV block", shape.block_bytes),
            ("bytes per window block", shape.window_bytes),
            ("bytes per state", shape.state_bytes),
        ];
        for (what, expected) in sizes {
            let found = input.u64()?;
            input.expect(what, &found.to_string(), &expected.to_string())?;
        }
        Ok(())
    }

    fn restore_nodes(
        &mut self,
        input: &mut Input,
        shape: &Shape,
        pools: &mut impl Restore,
        out: &mut Released,
    ) -> Result<(), SnapshotError> {
        let count = input.u64()?;
        // The tree's node for every node of the file; NIL for those that were left out.
        let mut restored: Vec<u32> = Vec::new();
        for _ in 0..count {
            let parent = input.u32()?;
            let node = if parent == NIL {
                self.restore_root(input)?
            } else {
                let parent =
                    restored.get(parent as usize).copied().ok_or_else(|| input.damaged("a node has no parent"))?;
                let span = self.read_span(parent, input)?;
                self.restore_span(span, input, shape, pools, out)?
            };
            restored.push(node);
        }
        input.end()
    }

    fn restore_root(&mut self, input: &mut Input) -> Result<u32, SnapshotError> {
        let namespace = Namespace { salt: input.text()?, adapter: input.text()? };
        if self.roots.contains_key(&namespace) {
            return Err(input.damaged("a namespace stands twice"));
        }
        Ok(self.root_or_new(&namespace))
    }

    /// Reads what a node is, up to its units, and checks that this tree can have it.
    pub(super) fn read_span(&self, parent: u32, input: &mut Input) -> Result<Span, SnapshotError> {
        let key = input.tokens()?;
        let (tenant, stamp) = (input.u16()?, input.u64()?);
        let (windowed, stated) = (input.flag()?, input.flag()?);
        if key.is_empty() || !key.len().is_multiple_of(self.config.page) {
            return Err(input.damaged("a key is not whole pages"));
        }
        if stamp > LATEST {
            return Err(input.damaged("a node was used at a time that cannot be"));
        }
        if windowed && self.config.window.is_none() {
            return Err(input.damaged("a node has a window, and this cache has none"));
        }
        if stated && !self.config.states {
            return Err(input.damaged("a node has a state, and this cache has none"));
        }
        if let Some(above) = self.nodes.get(parent) {
            let end = u32::try_from(key.len()).ok().and_then(|len| above.end.checked_add(len));
            end.ok_or_else(|| input.damaged("a key is longer than positions can count"))?;
        }
        if self.edges.find(&self.nodes, parent, &key).is_some() {
            return Err(input.damaged("siblings start with the same page"));
        }
        // What a tenant had who is not configured any more is the first one's.
        let tenant = TenantId(if usize::from(tenant) < self.tenants.len() { tenant } else { 0 });
        let pages = key.len() / self.config.page;
        Ok(Span { parent, key, pages, tenant, stamp, windowed, stated })
    }

    /// Reads the units of a node and hangs it below its parent, if that is there and the pools have room.
    fn restore_span(
        &mut self,
        span: Span,
        input: &mut Input,
        shape: &Shape,
        pools: &mut impl Restore,
        out: &mut Released,
    ) -> Result<u32, SnapshotError> {
        let mut taken = Released::default();
        let read = take_units(&span, input, shape, pools, &mut taken);
        if read.is_err() || taken.blocks.len() < span.pages {
            out.blocks.append(&mut taken.blocks);
            out.window.append(&mut taken.window);
            out.slots.append(&mut taken.slots);
            return read.map(|()| NIL);
        }
        self.clock = self.clock.max(span.stamp);
        let node = self.attach(span.parent, span.key, span.tenant);
        self.nodes[node].stamp = span.stamp;
        self.gain_kv(node, taken.blocks.into());
        if taken.window.len() == span.pages {
            self.nodes[node].window = taken.window.into();
            self.book(node, Component::Window, Change::Gain);
        } else {
            out.window.append(&mut taken.window);
        }
        if let Some(slot) = taken.slots.pop() {
            self.file_state(node, slot);
            // Its age is the node's, not that of the snapshot's youngest node so far.
            self.nodes[node].state = self.nodes[node].state.map(|state| Checkpoint { used: span.stamp, ..state });
            self.book(node, Component::State, Change::Gain);
        }
        self.relist(node, Recency::Newest);
        Ok(node)
    }

    /// Puts restored nodes in the order of their use, and drops what was restored in part only.
    fn settle(&mut self, out: &mut Released) {
        if self.config.leaves == LeafRule::State {
            let incomplete = |&node: &u32| {
                let n = &self.nodes[node];
                n.parent != NIL && n.is_leaf() && n.state.is_none()
            };
            let leaves: Vec<u32> = self.live().into_iter().filter(incomplete).collect();
            // Dropping one takes the ancestors along that it leaves incomplete.
            for leaf in leaves {
                self.drop_leaf(leaf, out, &mut Evicted::default());
            }
        }
        self.drop_empty_roots();
        let mut live = self.live();
        for &node in live.iter().rev() {
            // A parent that was locked when it was saved can be older than what hangs below it.
            let (parent, stamp) = (self.nodes[node].parent, self.nodes[node].stamp);
            if parent != NIL {
                self.nodes[parent].stamp = self.nodes[parent].stamp.max(stamp);
            }
        }
        for component in COMPONENTS {
            live.sort_by_key(|&node| match self.nodes[node].state {
                Some(state) if component == Component::State => state.used,
                _ => self.nodes[node].stamp,
            });
            for &node in &live {
                let list = self.nodes[node].links[component as usize].list;
                if list != NIL {
                    self.nodes.unlink(component, node);
                    self.nodes.push_front(list, component, node);
                }
            }
        }
    }

    /// Empties a tree that nobody uses yet.
    fn give_back(&mut self, out: &mut Released) {
        for node in self.live().into_iter().rev().filter(|&node| self.nodes[node].parent != NIL).collect::<Vec<_>>() {
            self.take_window(node, out);
            self.take_state(node, out);
            self.lose_kv(node, out);
            self.detach(node);
        }
        self.drop_empty_roots();
    }

    fn drop_empty_roots(&mut self) {
        let empty: Vec<u32> = self.roots.values().copied().filter(|&root| self.nodes[root].is_leaf()).collect();
        empty.into_iter().for_each(|root| self.drop_root_if_empty(root));
    }
}

/// Reads the units of a node. The pools take them while there is room, the window and the state only with the KV.
fn take_units(
    span: &Span,
    input: &mut Input,
    shape: &Shape,
    pools: &mut impl Restore,
    taken: &mut Released,
) -> Result<(), SnapshotError> {
    let mut room = span.parent != NIL;
    for _ in 0..span.pages {
        let bytes = input.bytes(shape.block_bytes)?;
        room = room && pools.block(&bytes).map(|block| taken.blocks.push(block)).is_some();
    }
    let mut window_room = room;
    for _ in 0..if span.windowed { span.pages } else { 0 } {
        let bytes = input.bytes(shape.window_bytes)?;
        window_room = window_room && pools.window(&bytes).map(|block| taken.window.push(block)).is_some();
    }
    if span.stated {
        let bytes = input.bytes(shape.state_bytes)?;
        taken.slots.extend(room.then(|| pools.state(&bytes)).flatten());
    }
    Ok(())
}
