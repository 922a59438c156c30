//! Where nodes live, and the intrusive lists that run through them.

use std::ops::{Index, IndexMut};

use super::node::{Component, Link, NIL, Node, NodeId};

/// The ends of a list: the head is the most recently used node.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    pub head: u32,
    pub tail: u32,
    pub len: usize,
}

impl List {
    const EMPTY: Self = Self { head: NIL, tail: NIL, len: 0 };
}

/// Nodes by index, with reuse of the indices of nodes that are gone.
#[derive(Debug)]
pub(super) struct Arena {
    nodes: Vec<Node>,
    free: Vec<u32>,
    lists: Vec<List>,
}

impl Arena {
    pub(super) fn new(lists: usize) -> Self {
        Self { nodes: Vec::new(), free: Vec::new(), lists: vec![List::EMPTY; lists] }
    }

    /// Adds empty lists until there are so many.
    pub(super) fn grow_lists(&mut self, lists: usize) {
        self.lists.resize(lists.max(self.lists.len()), List::EMPTY);
    }

    pub(super) fn insert(&mut self, mut node: Node) -> u32 {
        if let Some(index) = self.free.pop() {
            node.generation = self.nodes[index as usize].generation;
            self.nodes[index as usize] = node;
            index
        } else {
            self.nodes.push(node);
            (self.nodes.len() - 1) as u32
        }
    }

    /// Forgets a node that is in no list; ids of it are stale from now on.
    pub(super) fn remove(&mut self, index: u32) -> Node {
        let generation = self[index].generation.wrapping_add(1);
        let mut vacant = Node::new(NIL, 0, self[index].tenant);
        vacant.generation = generation;
        self.free.push(index);
        std::mem::replace(&mut self[index], vacant)
    }

    /// The node at an index that may be `NIL`.
    pub(super) fn get(&self, index: u32) -> Option<&Node> {
        self.nodes.get(index as usize)
    }

    pub(super) fn id(&self, index: u32) -> NodeId {
        NodeId { index, generation: self[index].generation }
    }

    pub(super) fn resolve(&self, id: NodeId) -> Option<u32> {
        let node = self.nodes.get(id.index as usize)?;
        (node.generation == id.generation).then_some(id.index)
    }

    /// How many nodes are live.
    pub(super) fn len(&self) -> usize {
        self.nodes.len() - self.free.len()
    }

    pub(super) fn list(&self, list: u32) -> List {
        self.lists[list as usize]
    }

    pub(super) fn lists(&self) -> u32 {
        self.lists.len() as u32
    }

    pub(super) fn push_front(&mut self, list: u32, component: Component, node: u32) {
        let head = self.lists[list as usize].head;
        self.link(list, component, node, NIL, head);
    }

    pub(super) fn push_back(&mut self, list: u32, component: Component, node: u32) {
        let tail = self.lists[list as usize].tail;
        self.link(list, component, node, tail, NIL);
    }

    /// Puts a node right behind one that is in a list, that is, next to be evicted after it was the other way round.
    pub(super) fn push_behind(&mut self, component: Component, node: u32, neighbour: u32) {
        let link = self[neighbour].links[component as usize];
        self.link(link.list, component, node, neighbour, link.next);
    }

    pub(super) fn unlink(&mut self, component: Component, node: u32) {
        let c = component as usize;
        let link = std::mem::replace(&mut self[node].links[c], Link::UNLINKED);
        if !link.is_linked() {
            return;
        }
        match link.prev {
            NIL => self.lists[link.list as usize].head = link.next,
            prev => self[prev].links[c].next = link.next,
        }
        match link.next {
            NIL => self.lists[link.list as usize].tail = link.prev,
            next => self[next].links[c].prev = link.prev,
        }
        self.lists[link.list as usize].len -= 1;
    }

    fn link(&mut self, list: u32, component: Component, node: u32, prev: u32, next: u32) {
        let c = component as usize;
        self[node].links[c] = Link { prev, next, list };
        match prev {
            NIL => self.lists[list as usize].head = node,
            prev => self[prev].links[c].next = node,
        }
        match next {
            NIL => self.lists[list as usize].tail = node,
            next => self[next].links[c].prev = node,
        }
        self.lists[list as usize].len += 1;
    }
}

impl Index<u32> for Arena {
    type Output = Node;

    fn index(&self, index: u32) -> &Node {
        &self.nodes[index as usize]
    }
}

impl IndexMut<u32> for Arena {
    fn index_mut(&mut self, index: u32) -> &mut Node {
        &mut self.nodes[index as usize]
    }
}
