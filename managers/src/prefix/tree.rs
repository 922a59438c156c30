//! The tree itself: structure, recency and counters. The operations live beside it, one per file.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

use super::arena::Arena;
use super::config::{TenantId, TreeConfig};
use super::edges::Edges;
use super::error::PrefixError;
use super::experience::{Experience, RANKS};
use super::host::{HostPool, Offload};
use super::key::{Namespace, Token};
use super::node::{COMPONENTS, Component, NIL, Node, NodeId};
use crate::book::{BlockId, SlotId};

/// Units that the tree no longer owns: the caller returns them to their pools.
///
/// It is filled, never cleared, so that one buffer serves many operations without allocating.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "units in here leak unless they go back to their pools"]
pub struct Released {
    /// KV blocks.
    pub blocks: Vec<BlockId>,
    /// Blocks of the window pool.
    pub window: Vec<BlockId>,
    /// State slots.
    pub slots: Vec<SlotId>,
    /// Copies to make, in order, before any of these units is used again.
    pub offloads: Vec<Offload>,
}

/// Counts how much of a component could be evicted now, and how much is held by locks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct UnitCount {
    /// Could be evicted, at once or after what hangs below it.
    pub evictable: usize,
    /// Locked.
    pub protected: usize,
}

/// Counts what the tree holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// KV, in tokens.
    pub kv: UnitCount,
    /// Window KV, in tokens.
    pub window: UnitCount,
    /// State checkpoints.
    pub states: UnitCount,
    /// KV on the host, in tokens.
    pub host_kv: UnitCount,
    /// States on the host.
    pub host_states: UnitCount,
    /// Nodes, without the roots of namespaces.
    pub nodes: usize,
}

impl Usage {
    pub(super) fn of(&mut self, component: Component) -> &mut UnitCount {
        match component {
            Component::Kv => &mut self.kv,
            Component::Window => &mut self.window,
            Component::State => &mut self.states,
            Component::HostKv => &mut self.host_kv,
            Component::HostState => &mut self.host_states,
        }
    }
}

/// Where a node enters a list of evictable nodes.
#[derive(Clone, Copy)]
pub(super) enum Recency {
    Newest,
    Oldest,
}

/// A radix tree over token prefixes with KV, window and state components.
#[derive(Debug)]
pub struct Tree {
    pub(super) config: TreeConfig,
    pub(super) grid: usize,
    /// Tells receipts of this tree from those of another.
    pub(super) id: u64,
    pub(super) nodes: Arena,
    pub(super) edges: Edges,
    pub(super) roots: HashMap<Arc<Namespace>, u32>,
    /// The reverse of `roots`.
    pub(super) namespaces: HashMap<u32, Arc<Namespace>>,
    pub(super) usage: Usage,
    pub(super) host: HostPool,
    /// What each tenant holds, by component.
    pub(super) tenants: Vec<[usize; COMPONENTS.len()]>,
    pub(super) clock: u64,
    pub(super) experience: Experience,
}

/// Lists of evictable nodes per tenant: one for each component, and for states one per rank.
const LISTS: usize = COMPONENTS.len() - 1 + RANKS;

impl Tree {
    /// An empty tree.
    ///
    /// # Errors
    /// [`PrefixError::Config`] names a field that cannot be used.
    pub fn new(config: TreeConfig) -> Result<Self, PrefixError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        config.validate()?;
        Ok(Self {
            grid: config.grid(),
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            nodes: Arena::new(config.tenants.len() * LISTS),
            edges: Edges::new(config.page),
            roots: HashMap::new(),
            namespaces: HashMap::new(),
            usage: Usage::default(),
            host: HostPool::new(config.host.unwrap_or_default()),
            tenants: vec![[0; COMPONENTS.len()]; config.tenants.len()],
            clock: 0,
            experience: Experience::default(),
            config,
        })
    }

    /// The configuration that it was made with.
    #[must_use]
    pub fn config(&self) -> &TreeConfig {
        &self.config
    }

    /// Counts what the tree holds now.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// Counts what one tenant holds: KV tokens, window tokens, states. `None` for a tenant that is not configured.
    #[must_use]
    pub fn tenant_usage(&self, tenant: TenantId) -> Option<[usize; 3]> {
        let held = self.tenants.get(usize::from(tenant.0))?;
        Some([Component::Kv, Component::Window, Component::State].map(|component| held[component as usize]))
    }

    /// Gives each tenant another share; there may be more tenants than before, and not fewer. What is held stays.
    ///
    /// # Errors
    /// [`PrefixError::Config`] for fewer tenants, none, too many, or a share of 0.
    pub fn set_tenants(&mut self, shares: Vec<u32>) -> Result<(), PrefixError> {
        TreeConfig::validate_tenants(&shares)?;
        if shares.len() < self.tenants.len() {
            return Err(PrefixError::Config { what: "tenants, of whom there were more,", found: shares.len() });
        }
        self.nodes.grow_lists(shares.len() * LISTS);
        self.tenants.resize(shares.len(), [0; COMPONENTS.len()]);
        self.config.tenants = shares;
        Ok(())
    }

    /// Whether the configuration names a tenant.
    pub(super) fn check_tenant(&self, tenant: TenantId) -> Result<(), PrefixError> {
        match self.tenants.len() {
            tenants if usize::from(tenant.0) < tenants => Ok(()),
            tenants => Err(PrefixError::UnknownTenant { tenant: tenant.0, tenants }),
        }
    }

    /// The slot of the state at the end of a node, if both are still there.
    #[must_use]
    pub fn state(&self, node: NodeId) -> Option<SlotId> {
        let node = self.nodes.resolve(node)?;
        self.nodes[node].state.map(|state| state.slot)
    }

    /// The list of evictable nodes of a component that belongs to a tenant. Only states have ranks.
    pub(super) fn list_of(tenant: TenantId, component: Component, rank: usize) -> u32 {
        (usize::from(tenant.0) * LISTS + component as usize + rank) as u32
    }

    /// The component whose links a list runs through.
    pub(super) fn component_of(list: u32) -> Component {
        COMPONENTS[(list as usize % LISTS).min(Component::State as usize)]
    }

    /// The list in which a node belongs while it is evictable.
    pub(super) fn list_for(&self, node: u32, component: Component) -> u32 {
        let n = &self.nodes[node];
        let rank = n.state.filter(|_| component == Component::State).map_or(0, |state| usize::from(state.rank));
        Self::list_of(n.tenant, component, rank)
    }

    /// Starts an operation: everything it touches is equally recent.
    pub(super) fn tick(&mut self) {
        self.clock += 1;
    }

    pub(super) fn root_or_new(&mut self, namespace: &Namespace) -> u32 {
        if let Some(&root) = self.roots.get(namespace) {
            return root;
        }
        let root = self.nodes.insert(Node::new(NIL, 0, TenantId::default()));
        let namespace = Arc::new(namespace.clone());
        self.roots.insert(Arc::clone(&namespace), root);
        self.namespaces.insert(root, namespace);
        root
    }

    /// Hangs a childless node without blocks below `parent`.
    pub(super) fn attach(&mut self, parent: u32, key: Box<[Token]>, tenant: TenantId) -> u32 {
        let end = self.nodes[parent].end + key.len() as u32;
        let mut node = Node::new(parent, end, tenant);
        node.key = key;
        node.stamp = self.clock;
        let node = self.nodes.insert(node);
        self.adopt(parent, node);
        self.edges.insert(&self.nodes, node);
        self.usage.nodes += 1;
        self.relist(parent, Recency::Newest);
        node
    }

    /// Takes out a childless node that holds nothing any more. Its parent may have become evictable.
    pub(super) fn detach(&mut self, node: u32) {
        self.edges.remove(&self.nodes, node);
        let parent = self.nodes[node].parent;
        self.disown(parent, node);
        let stamp = self.nodes.remove(node).stamp;
        self.usage.nodes -= 1;
        if self.nodes[parent].parent == NIL {
            self.drop_root_if_empty(parent);
        } else {
            self.relist(parent, self.recency_below(parent, stamp));
        }
    }

    /// Where a parent that lost a child enters its list. It is never older than the child: equally old, it is next in
    /// turn; younger, it was used without this child and counts as fresh.
    pub(super) fn recency_below(&self, parent: u32, child_stamp: u64) -> Recency {
        if self.nodes[parent].stamp == child_stamp { Recency::Oldest } else { Recency::Newest }
    }

    /// Namespaces may be as many as users, so an empty one must leave nothing behind.
    pub(super) fn drop_root_if_empty(&mut self, root: u32) {
        if !self.nodes[root].is_leaf() {
            return;
        }
        if let Some(namespace) = self.namespaces.remove(&root) {
            self.roots.remove(&namespace);
        }
        self.nodes.remove(root);
    }

    /// Enters a node into its parent's ring of children.
    pub(super) fn adopt(&mut self, parent: u32, child: u32) {
        let first = self.nodes[parent].first_child;
        self.nodes[child].next_sibling = first;
        self.nodes[child].prev_sibling = NIL;
        if first != NIL {
            self.nodes[first].prev_sibling = child;
        }
        self.nodes[parent].first_child = child;
        self.nodes[parent].children += 1;
    }

    fn disown(&mut self, parent: u32, child: u32) {
        let (prev, next) = (self.nodes[child].prev_sibling, self.nodes[child].next_sibling);
        match prev {
            NIL => self.nodes[parent].first_child = next,
            prev => self.nodes[prev].next_sibling = next,
        }
        if next != NIL {
            self.nodes[next].prev_sibling = prev;
        }
        self.nodes[parent].children -= 1;
    }

    /// Splits a node `at` tokens into its span and returns the new node, which holds the front.
    ///
    /// The identity, the state and the receipts belong to the end of the span, so they stay with the rear.
    pub(super) fn split(&mut self, rear: u32, at: usize) -> u32 {
        let pages = at / self.config.page;
        self.edges.remove(&self.nodes, rear);
        let node = &mut self.nodes[rear];
        let front_key: Box<[Token]> = node.key[..at].into();
        node.key = node.key[at..].into();
        let parent = node.parent;
        let mut front = Node::new(parent, node.end - node.key.len() as u32, node.tenant);
        front.stamp = node.stamp;
        front.window_pins = node.window_pins;
        front.locked_children = u32::from(node.locked());
        front.key = front_key;
        front.device_children = u32::from(!node.kv.is_empty());
        front.kv = cut(&mut node.kv, pages);
        front.host_kv = cut(&mut node.host_kv, pages);
        front.window = cut(&mut node.window, pages);
        front.host_window = cut(&mut node.host_window, pages);
        let front = self.nodes.insert(front);
        self.disown(parent, rear);
        self.adopt(parent, front);
        self.nodes[rear].parent = front;
        self.adopt(front, rear);
        self.edges.insert(&self.nodes, front);
        self.edges.insert(&self.nodes, rear);
        self.usage.nodes += 1;
        if self.nodes[rear].links[Component::Window as usize].is_linked() {
            self.nodes.push_behind(Component::Window, front, rear);
        }
        front
    }

    /// Brings a node's membership in the lists of evictable nodes up to date with its locks and contents.
    pub(super) fn relist(&mut self, node: u32, recency: Recency) {
        for component in COMPONENTS {
            let n = &self.nodes[node];
            let evictable = match component {
                Component::Kv => n.is_device_leaf() && !n.locked(),
                Component::Window => !n.window.is_empty() && n.window_pins == 0,
                Component::State => n.state.is_some() && n.state_pins == 0,
                Component::HostKv => !n.host_kv.is_empty() && n.is_leaf() && !n.locked(),
                Component::HostState => n.host_state.is_some() && n.state_pins == 0,
            };
            if evictable == n.links[component as usize].is_linked() {
                continue;
            }
            if evictable {
                let list = self.list_for(node, component);
                match recency {
                    Recency::Newest => self.nodes.push_front(list, component, node),
                    Recency::Oldest => self.nodes.push_back(list, component, node),
                }
            } else {
                self.nodes.unlink(component, node);
            }
        }
    }

    /// Marks the KV and the window of a node as used now. States have a recency of their own.
    pub(super) fn touch(&mut self, node: u32) {
        self.nodes[node].stamp = self.clock;
        for component in [Component::Kv, Component::Window, Component::HostKv] {
            let link = self.nodes[node].links[component as usize];
            if link.is_linked() && link.prev != NIL {
                self.nodes.unlink(component, node);
                self.nodes.push_front(link.list, component, node);
            }
        }
    }

    /// How much a node holds of a component, and whether that is protected.
    pub(super) fn units(&self, node: u32, component: Component) -> (usize, bool) {
        let n = &self.nodes[node];
        match component {
            Component::Kv => (n.kv.len() * self.config.page, n.locked()),
            Component::Window => (n.window.len() * self.config.page, n.window_pins > 0),
            Component::State => (usize::from(n.state.is_some()), n.state_pins > 0),
            Component::HostKv => (n.host_kv.len() * self.config.page, n.locked()),
            Component::HostState => (usize::from(n.host_state.is_some()), n.state_pins > 0),
        }
    }

    /// Books units of a component that a node gained or lost.
    pub(super) fn book(&mut self, node: u32, component: Component, change: Change) {
        let (units, protected) = self.units(node, component);
        let n = &self.nodes[node];
        let tenant = &mut self.tenants[usize::from(n.tenant.0)][component as usize];
        let held = self.usage.of(component);
        let side = if protected { &mut held.protected } else { &mut held.evictable };
        match change {
            Change::Gain => {
                *side += units;
                *tenant += units;
            }
            Change::Loss => {
                *side -= units;
                *tenant -= units;
            }
        }
    }
}

/// Whether [`Tree::book`] adds or subtracts what the node holds.
#[derive(Clone, Copy)]
pub(super) enum Change {
    Gain,
    Loss,
}

/// Takes the first `at` units off, or none off nothing.
fn cut<T: Copy>(units: &mut Box<[T]>, at: usize) -> Box<[T]> {
    if units.is_empty() {
        return Box::default();
    }
    let front = units[..at].into();
    *units = units[at..].into();
    front
}
