//! A node of the tree and its identity.

use super::config::TenantId;
use super::host::{HostBlockId, HostSlotId};
use super::key::Token;
use crate::book::{BlockId, SlotId};

/// The identity of a node. It stays unique after the node is gone: a later node in its place has another generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeId {
    pub(super) index: u32,
    pub(super) generation: u32,
}

/// No node.
pub(super) const NIL: u32 = u32::MAX;

/// A node's place in one list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    pub prev: u32,
    pub next: u32,
    /// Which list, or `NIL`.
    pub list: u32,
}

impl Link {
    pub(super) const UNLINKED: Self = Self { prev: NIL, next: NIL, list: NIL };

    pub(super) fn is_linked(self) -> bool {
        self.list != NIL
    }
}

/// What a state is to the sequences that pass it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// The deepest state of its sequence: a continuation will use it.
    Tail,
    /// A deeper state of the only sequence that passes it has taken its place.
    Superseded,
    /// Sequences part here, or did once.
    Fork,
}

/// A checkpoint: the state after exactly [`Node::end`] tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Checkpoint {
    pub slot: SlotId,
    pub class: Class,
    /// Which list it is in while it can be evicted.
    pub rank: u8,
    /// How often it was hit as what it is now.
    pub uses: u32,
    /// When it was stored or last hit.
    pub used: u64,
}

/// The components whose evictable nodes are kept in lists of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Component {
    Kv,
    Window,
    HostKv,
    HostState,
    /// Last, because its nodes are in one list per rank.
    State,
}

pub(super) const COMPONENTS: [Component; 5] =
    [Component::Kv, Component::Window, Component::HostKv, Component::HostState, Component::State];

/// What a lookup reads of a node lies in its first cache line: in a large tree every line is a miss.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Node {
    pub key: Box<[Token]>,
    /// `NIL` for the root of a namespace.
    pub parent: u32,
    pub first_child: u32,
    pub children: u32,
    pub generation: u32,
    pub state: Option<Checkpoint>,
    /// Position after the last token of the span. Splits and inserts never change it.
    pub end: u32,
    /// Receipts anchored here.
    pub pins: u32,
    /// Children that are locked. With `pins` it says whether the node is locked, so that locking a path
    /// under a locked ancestor stops there.
    pub locked_children: u32,
    /// Receipts whose window segment covers the node.
    pub window_pins: u32,
    /// Receipts that hold the state, or would hold it if it were there.
    pub state_pins: u32,
    pub next_sibling: u32,
    pub prev_sibling: u32,
    pub tenant: TenantId,
    /// When the node was last used.
    pub stamp: u64,
    pub links: [Link; COMPONENTS.len()],
    /// Children whose KV lies on the device. A node leaves the device after them.
    pub device_children: u32,
    pub host_state: Option<HostSlotId>,
    /// One block per page of `key`, or empty: the span lies on the host.
    pub kv: Box<[BlockId]>,
    /// One block per page of `key`, or empty: the span lies on the device.
    pub host_kv: Box<[HostBlockId]>,
    /// One block per page of `key`, or empty: a tombstone, or on the host.
    pub window: Box<[BlockId]>,
    /// One block per page of `key`, or empty. A span that came back to the device may have left its window there.
    pub host_window: Box<[HostBlockId]>,
}

impl Node {
    pub(super) fn new(parent: u32, end: u32, tenant: TenantId) -> Self {
        Self {
            generation: 0,
            parent,
            first_child: NIL,
            next_sibling: NIL,
            prev_sibling: NIL,
            children: 0,
            end,
            pins: 0,
            locked_children: 0,
            window_pins: 0,
            state_pins: 0,
            tenant,
            stamp: 0,
            key: Box::default(),
            device_children: 0,
            host_state: None,
            kv: Box::default(),
            host_kv: Box::default(),
            window: Box::default(),
            host_window: Box::default(),
            state: None,
            links: [Link::UNLINKED; COMPONENTS.len()],
        }
    }

    pub(super) fn len(&self) -> usize {
        self.key.len()
    }

    pub(super) fn start(&self) -> usize {
        self.end as usize - self.key.len()
    }

    pub(super) fn locked(&self) -> bool {
        self.pins + self.locked_children > 0
    }

    /// Whether its span may leave the device next.
    pub(super) fn is_device_leaf(&self) -> bool {
        !self.kv.is_empty() && self.device_children == 0
    }

    pub(super) fn is_leaf(&self) -> bool {
        self.children == 0
    }
}

// There may be millions.
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Node>() == 256);
