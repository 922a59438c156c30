//! From a node and the first page after it to the child that continues there.
//!
//! One table serves all nodes, so that a node with a million children costs no more than one with two.
//! The hash only chooses a bucket: every lookup compares parent and tokens.

use std::hash::{BuildHasher, Hash, Hasher};

use hashbrown::{DefaultHashBuilder, HashTable};

use super::arena::Arena;
use super::key::Token;

#[derive(Debug)]
pub(super) struct Edges {
    table: HashTable<u32>,
    hasher: DefaultHashBuilder,
    page: usize,
}

impl Edges {
    pub(super) fn new(page: usize) -> Self {
        Self { table: HashTable::new(), hasher: DefaultHashBuilder::default(), page }
    }

    /// The child of `parent` whose key starts with the first page of `tokens`.
    pub(super) fn find(&self, nodes: &Arena, parent: u32, tokens: &[Token]) -> Option<u32> {
        let first = tokens.get(..self.page)?;
        match nodes[parent].children {
            0 => None,
            // An only child needs no hashing, and chains of turns are made of only children.
            1 => {
                let child = nodes[parent].first_child;
                (nodes[child].key.starts_with(first)).then_some(child)
            }
            _ => self
                .table
                .find(self.hash(parent, first), |&child| {
                    nodes[child].parent == parent && nodes[child].key.starts_with(first)
                })
                .copied(),
        }
    }

    pub(super) fn insert(&mut self, nodes: &Arena, child: u32) {
        let hash = self.hash_of(nodes, child);
        let (hasher, page) = (&self.hasher, self.page);
        self.table
            .insert_unique(hash, child, |&other| hash_edge(hasher, nodes[other].parent, &nodes[other].key[..page]));
    }

    pub(super) fn remove(&mut self, nodes: &Arena, child: u32) {
        let hash = self.hash_of(nodes, child);
        if let Ok(entry) = self.table.find_entry(hash, |&other| other == child) {
            entry.remove();
        }
    }

    /// Whether the edge to `child` is stored under the child's own parent and first page.
    pub(super) fn contains(&self, nodes: &Arena, child: u32) -> bool {
        let hash = self.hash_of(nodes, child);
        self.table.find(hash, |&other| other == child).is_some()
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    fn hash_of(&self, nodes: &Arena, child: u32) -> u64 {
        self.hash(nodes[child].parent, &nodes[child].key[..self.page])
    }

    fn hash(&self, parent: u32, first: &[Token]) -> u64 {
        hash_edge(&self.hasher, parent, first)
    }
}

fn hash_edge(hasher: &DefaultHashBuilder, parent: u32, first: &[Token]) -> u64 {
    let mut state = hasher.build_hasher();
    state.write_u32(parent);
    first.hash(&mut state);
    state.finish()
}
