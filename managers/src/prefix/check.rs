//! The invariants of the tree, as one function that users can call too.

use std::collections::HashSet;
use std::fmt::Debug;
use std::hash::Hash;

use thiserror::Error;

use super::host::{HostBlockId, HostSlotId};
use super::node::{COMPONENTS, Component, NIL, NodeId};
use super::tree::{Tree, Usage};
use crate::book::{BlockId, SlotId};

/// An invariant that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("prefix tree: {rule} (node {node:?}: {detail})")]
pub struct Violation {
    /// What should be so.
    pub rule: &'static str,
    /// Where it is not, if it is a matter of one node.
    pub node: Option<NodeId>,
    /// What was found.
    pub detail: String,
}

/// Every unit that the tree holds, to be compared with the pools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// KV blocks.
    pub blocks: Vec<BlockId>,
    /// Blocks of the window pool.
    pub window: Vec<BlockId>,
    /// State slots.
    pub slots: Vec<SlotId>,
    /// KV blocks on the host.
    pub host_blocks: Vec<HostBlockId>,
    /// Window blocks on the host.
    pub host_windows: Vec<HostBlockId>,
    /// States on the host.
    pub host_slots: Vec<HostSlotId>,
}

impl Tree {
    /// Everything that the tree holds, in no particular order.
    #[must_use]
    pub fn census(&self) -> Census {
        let mut census = Census::default();
        let (mut shared, mut shared_window) = (HashSet::new(), HashSet::new());
        for node in self.live() {
            let node = &self.nodes[node];
            for (units, shared, found) in
                [(&node.kv, &mut shared, &mut census.blocks), (&node.window, &mut shared_window, &mut census.window)]
            {
                // Where pages are smaller than blocks, those of one block may be one unit; it counts once.
                let starts = (node.start()..).step_by(self.config.page);
                let first = |&(at, &unit): &(usize, &BlockId)| {
                    !self.config.renews || shared.insert((unit, at / self.config.chunk))
                };
                found.extend(starts.zip(units).filter(first).map(|(_, unit)| *unit));
            }
            census.slots.extend(node.state.map(|state| state.slot));
            census.host_blocks.extend(&node.host_kv);
            census.host_windows.extend(&node.host_window);
            census.host_slots.extend(node.host_state);
        }
        census
    }

    /// Recomputes every counter, list and pointer from the nodes and compares.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn check(&self) -> Result<(), Violation> {
        let live = self.reachable()?;
        live.iter().try_for_each(|&node| self.check_span(node))?;
        let mut usage = Usage::default();
        let mut tenants = vec![[0; COMPONENTS.len()]; self.tenants.len()];
        for &node in &live {
            self.check_structure(node)?;
            self.check_components(node)?;
            self.check_locks(node)?;
            self.check_membership(node)?;
            if self.nodes[node].parent == NIL {
                continue;
            }
            usage.nodes += 1;
            for component in COMPONENTS {
                let (units, protected) = self.units(node, component);
                let held = usage.of(component);
                *(if protected { &mut held.protected } else { &mut held.evictable }) += units;
                tenants[usize::from(self.nodes[node].tenant.0)][component as usize] += units;
            }
        }
        ensure(usage == self.usage, "usage equals its recomputation", None, || {
            format!("booked {:?}, found {usage:?}", self.usage)
        })?;
        ensure(tenants == self.tenants, "tenants equal their recomputation", None, || {
            format!("booked {:?}, found {tenants:?}", self.tenants)
        })?;
        ensure(self.edges.len() == usage.nodes, "one edge per node", None, || {
            format!("{} edges, {} nodes", self.edges.len(), usage.nodes)
        })?;
        ensure(live.len() == self.nodes.len(), "every node hangs below a root", None, || {
            format!("{} live, {} reachable", self.nodes.len(), live.len())
        })?;
        self.check_lists(&live)?;
        let census = self.census();
        unique("a KV block has one place", census.blocks)?;
        unique("a window block has one place", census.window)?;
        unique("a slot has one place", census.slots)?;
        let tier = self.config.host.unwrap_or_default();
        let blocks = [census.host_blocks, self.host.blocks.clone()].concat();
        let slots = [census.host_slots, self.host.slots.clone()].concat();
        let windows = [census.host_windows, self.host.windows.clone()].concat();
        let last =
            [blocks.iter().max().map(|b| b.0), slots.iter().max().map(|s| s.0), windows.iter().max().map(|w| w.0)];
        let sizes = [tier.blocks, tier.slots, tier.windows];
        let within = last.iter().zip(sizes).all(|(last, size)| last.is_none_or(|last| last < size));
        ensure(within, "no host unit lies beyond the tier", None, || format!("{last:?} of {tier:?}"))?;
        let found = [blocks.len(), slots.len(), windows.len()];
        ensure(found == sizes.map(|units| units as usize), "the host is all there", None, || {
            format!("{found:?} blocks, slots and window blocks of {tier:?}")
        })?;
        unique("a host window block has one place", windows)?;
        unique("a host block has one place", blocks)?;
        unique("a host slot has one place", slots)
    }

    /// All reachable nodes, roots included, parents before children.
    pub(super) fn live(&self) -> Vec<u32> {
        let mut live: Vec<u32> = self.roots.values().copied().collect();
        let mut next = 0;
        while let Some(&node) = live.get(next) {
            let mut child = self.nodes[node].first_child;
            while child != NIL {
                live.push(child);
                child = self.nodes[child].next_sibling;
            }
            next += 1;
        }
        live
    }

    /// As [`Tree::live`], but believes no pointer.
    fn reachable(&self) -> Result<Vec<u32>, Violation> {
        let mut live = Vec::with_capacity(self.nodes.len());
        for (namespace, &root) in &self.roots {
            let is_root = self.nodes.get(root).is_some_and(|node| node.parent == NIL);
            let named = is_root && self.namespaces.get(&root) == Some(namespace);
            ensure(named, "a namespace and its root name each other", None, || format!("{namespace:?}, node {root}"))?;
            live.push(root);
        }
        ensure(self.namespaces.len() == live.len(), "a namespace and its root name each other", None, || {
            format!("{} namespaces, {} roots", self.namespaces.len(), live.len())
        })?;
        let mut next = 0;
        while let Some(&node) = live.get(next) {
            let (mut prev, mut child) = (NIL, self.nodes[node].first_child);
            while child != NIL {
                let found = self.nodes.get(child).filter(|c| c.parent == node && c.prev_sibling == prev);
                let Some(found) = found else {
                    let node = Some(self.nodes.id(node));
                    return Err(Violation { rule: "parent and child agree", node, detail: format!("child {child}") });
                };
                live.push(child);
                (prev, child) = (child, found.next_sibling);
            }
            next += 1;
        }
        Ok(live)
    }

    /// What the other checks take for granted of a node.
    fn check_span(&self, node: u32) -> Result<(), Violation> {
        let n = &self.nodes[node];
        let id = Some(self.nodes.id(node));
        let is_root = n.parent == NIL;
        ensure(is_root == n.key.is_empty(), "only roots have no key", id, || format!("{} tokens", n.key.len()))?;
        ensure(n.len().is_multiple_of(self.config.page), "keys are whole pages", id, || n.len().to_string())?;
        let start = self.nodes.get(n.parent).map_or(0, |parent| parent.end as usize);
        ensure(n.end as usize == start + n.len(), "a child starts where its parent ends", id, || {
            format!("{start} + {} tokens, found {}", n.len(), n.end)
        })?;
        ensure(usize::from(n.tenant.0) < self.tenants.len(), "a tenant is configured", id, || {
            format!("{:?} of {}", n.tenant, self.tenants.len())
        })?;
        let used = n.state.map_or(0, |state| state.used).max(n.stamp);
        ensure(used <= self.clock, "nothing was used in the future", id, || format!("{used}, now {}", self.clock))
    }

    fn check_structure(&self, node: u32) -> Result<(), Violation> {
        let n = &self.nodes[node];
        let id = Some(self.nodes.id(node));
        let (mut children, mut on_device) = (0, 0);
        let mut firsts = HashSet::new();
        let mut child = n.first_child;
        while child != NIL {
            let c = &self.nodes[child];
            children += 1;
            on_device += u32::from(!c.kv.is_empty());
            ensure(firsts.insert(&c.key[..self.config.page]), "siblings differ in their first page", id, || {
                format!("child {child}")
            })?;
            ensure(self.edges.contains(&self.nodes, child), "a child is stored under its first page", id, || {
                format!("child {child}")
            })?;
            child = c.next_sibling;
        }
        ensure(children == n.children, "children are counted", id, || {
            format!("counted {}, found {children}", n.children)
        })?;
        ensure(on_device == n.device_children, "children on the device are counted", id, || {
            format!("counted {}, found {on_device}", n.device_children)
        })?;
        let is_root = n.parent == NIL;
        ensure(is_root || on_device == 0 || !n.kv.is_empty(), "device spans hang below device spans", id, String::new)?;
        ensure(!is_root || !n.is_leaf(), "no root without children", id, String::new)?;
        // A locked parent is brought up to date when it is unlocked.
        ensure(
            is_root || self.nodes[n.parent].parent == NIL || {
                let parent = &self.nodes[n.parent];
                parent.locked() || parent.stamp >= n.stamp
            },
            "no parent is older than its child",
            id,
            || format!("{} and {}", self.nodes[n.parent].stamp, n.stamp),
        )
    }

    fn check_components(&self, node: u32) -> Result<(), Violation> {
        let n = &self.nodes[node];
        let id = Some(self.nodes.id(node));
        let page = self.config.page;
        let (windowed, stated) = (self.config.window.is_some(), self.config.states);
        ensure(
            (windowed || n.window.is_empty() && n.host_window.is_empty())
                && (stated || n.state.is_none() && n.host_state.is_none()),
            "a node has no more than the tree is configured for",
            id,
            String::new,
        )?;
        ensure(
            (n.kv.len() + n.host_kv.len()) * page == n.len() && (n.kv.is_empty() || n.host_kv.is_empty()),
            "KV covers the key, on the device or on the host",
            id,
            || format!("{} and {} blocks", n.kv.len(), n.host_kv.len()),
        )?;
        ensure(
            n.state.is_none() || (n.host_state.is_none() && !n.kv.is_empty()),
            "a state on the device is there alone, and with its span",
            id,
            String::new,
        )?;
        ensure(
            [n.window.len(), n.host_window.len()].into_iter().all(|pages| pages == 0 || pages * page == n.len()),
            "a window covers the key or is a tombstone",
            id,
            || format!("{} and {} blocks", n.window.len(), n.host_window.len()),
        )?;
        ensure(
            n.window.is_empty() || (n.host_window.is_empty() && !n.kv.is_empty()),
            "a window on the device is there alone, and with its span",
            id,
            String::new,
        )
    }

    fn check_locks(&self, node: u32) -> Result<(), Violation> {
        let n = &self.nodes[node];
        let id = Some(self.nodes.id(node));
        let (mut locked, mut window_pins) = (0, u64::from(n.pins));
        let mut child = n.first_child;
        while child != NIL {
            locked += u32::from(self.nodes[child].locked());
            window_pins += u64::from(self.nodes[child].window_pins);
            child = self.nodes[child].next_sibling;
        }
        ensure(locked == n.locked_children, "locked children are counted", id, || {
            format!("counted {}, found {locked}", n.locked_children)
        })?;
        ensure(
            n.locked() || n.window_pins == 0 && n.state_pins == 0,
            "whatever holds a window or a state holds the path",
            id,
            || format!("{} window pins, {} state pins", n.window_pins, n.state_pins),
        )?;
        ensure(
            n.parent == NIL || u64::from(n.window_pins) <= window_pins,
            "a window is held by a receipt of its node or of a child's window",
            id,
            || format!("{} window pins, {window_pins} receipts", n.window_pins),
        )?;
        ensure(n.state_pins <= n.pins, "a state is held by a receipt of its node", id, || {
            format!("{} state pins, {} pins", n.state_pins, n.pins)
        })
    }

    fn check_membership(&self, node: u32) -> Result<(), Violation> {
        let n = &self.nodes[node];
        for component in COMPONENTS {
            let (units, protected) = self.units(node, component);
            let last = match component {
                Component::Kv => n.device_children == 0,
                Component::HostKv => n.is_leaf(),
                _ => true,
            };
            let evictable = units > 0 && !protected && last;
            let link = n.links[component as usize];
            let right = link.list == self.list_for(node, component);
            ensure(
                evictable == link.is_linked() && (right || !evictable),
                "exactly the evictable nodes are listed",
                Some(self.nodes.id(node)),
                || format!("{component:?}: evictable {evictable}, list {}", link.list),
            )?;
        }
        Ok(())
    }

    fn check_lists(&self, live: &[u32]) -> Result<(), Violation> {
        let live: HashSet<u32> = live.iter().copied().collect();
        for id in 0..self.nodes.lists() {
            let list = self.nodes.list(id);
            let component = Self::component_of(id);
            let (mut prev, mut node, mut len) = (NIL, list.head, 0);
            while node != NIL {
                let link = self.nodes[node].links[component as usize];
                ensure(
                    live.contains(&node) && link.prev == prev && link.list == id,
                    "a list is linked both ways through live nodes",
                    Some(self.nodes.id(node)),
                    || format!("list {id} of {component:?}"),
                )?;
                (prev, node, len) = (node, link.next, len + 1);
            }
            ensure(list.tail == prev && list.len == len, "a list knows its end", None, || {
                format!("list {id} of {component:?}: {list:?}, walked {len}")
            })?;
        }
        Ok(())
    }
}

impl Census {
    /// Checks that every unit of the pools is in exactly one place: the tree, a free list, or a request's hands.
    ///
    /// Each pool is given as its ids and the ids that are outside the tree.
    ///
    /// # Errors
    /// The first pool with a unit in two places or in none.
    pub fn audit(
        &self,
        blocks: (u32, &[BlockId]),
        window: (u32, &[BlockId]),
        slots: (u32, &[SlotId]),
    ) -> Result<(), Violation> {
        let one_place = |rule, size: u32, ids: Vec<u32>| {
            let found = ids.len();
            let distinct: HashSet<u32> = ids.into_iter().filter(|&id| id < size).collect();
            ensure(distinct.len() == found && found == size as usize, rule, None, || {
                format!("{size} units, {found} accounted for, {} distinct", distinct.len())
            })
        };
        let ids = |a: &[BlockId], b: &[BlockId]| a.iter().chain(b).map(|block| block.0).collect();
        one_place("every KV block is in one place", blocks.0, ids(&self.blocks, blocks.1))?;
        one_place("every window block is in one place", window.0, ids(&self.window, window.1))?;
        let slot_ids = self.slots.iter().chain(slots.1).map(|slot| slot.0);
        one_place("every slot is in one place", slots.0, slot_ids.collect())
    }
}

fn ensure(
    holds: bool,
    rule: &'static str,
    node: Option<NodeId>,
    detail: impl FnOnce() -> String,
) -> Result<(), Violation> {
    if holds {
        return Ok(());
    }
    Err(Violation { rule, node, detail: detail() })
}

fn unique<T: Copy + Eq + Hash + Debug>(rule: &'static str, ids: Vec<T>) -> Result<(), Violation> {
    let mut seen = HashSet::with_capacity(ids.len());
    for id in ids {
        ensure(seen.insert(id), rule, None, || format!("{id:?} twice"))?;
    }
    Ok(())
}
