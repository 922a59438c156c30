//! From a node and the first page after it to the child that continues there.
//!
//! One table serves all nodes, so that a node with a million children costs no more than one with two. An edge says
//! how long its child is, so that a lookup can guess a whole path from the table alone. In a large tree the nodes and
//! their tokens are cache misses, which then overlap instead of waiting for each other.
//! The hash only guesses: a guess is believed after parent and tokens have been compared.

use std::hash::{BuildHasher, Hash, Hasher};

use hashbrown::{DefaultHashBuilder, HashTable};

use super::arena::Arena;
use super::key::Token;

/// Tests in this crate use few hashes, so that guesses are often wrong.
const HASHES: u64 = if cfg!(test) { 3 } else { u64::MAX };

/// How many nodes of a path are read ahead.
pub(super) const AHEAD: usize = 8;

/// How to go on from a node.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Edge {
    hash: u64,
    pub child: u32,
    /// Tokens of the child.
    pub len: u32,
}

#[derive(Debug)]
pub(super) struct Edges {
    table: HashTable<Edge>,
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
        let hash = self.hash(parent, first);
        let is_it = |edge: &Edge| {
            edge.hash == hash && nodes[edge.child].parent == parent && nodes[edge.child].key.starts_with(first)
        };
        self.table.find(hash, is_it).map(|edge| edge.child)
    }

    /// The nodes to which `tokens` lead from `parent`, as many as `path` has room for, each under the condition that
    /// the one before it matches as a whole. Returns how many.
    pub(super) fn read_ahead(&self, nodes: &Arena, parent: u32, tokens: &[Token], path: &mut [Edge]) -> usize {
        let guessed = self.guess(parent, tokens, path);
        // All of them are looked at before any is compared further.
        let (mut above, mut rest) = (parent, tokens);
        for (i, edge) in path[..guessed].iter().enumerate() {
            let node = &nodes[edge.child];
            if node.parent != above || !node.key.starts_with(&rest[..self.page]) {
                if i > 0 {
                    return i;
                }
                let Some(child) = self.find(nodes, parent, tokens) else {
                    return 0;
                };
                path[0].child = child;
                return 1;
            }
            above = edge.child;
            rest = rest.get(edge.len as usize..).unwrap_or_default();
        }
        guessed
    }

    fn guess(&self, mut parent: u32, tokens: &[Token], path: &mut [Edge]) -> usize {
        let mut rest = Some(tokens);
        for (i, place) in path.iter_mut().enumerate() {
            let Some(first) = rest.and_then(|rest| rest.get(..self.page)) else {
                return i;
            };
            let hash = self.hash(parent, first);
            let Some(&edge) = self.table.find(hash, |edge| edge.hash == hash) else {
                return i;
            };
            *place = edge;
            parent = edge.child;
            rest = rest.and_then(|rest| rest.get(edge.len as usize..));
        }
        path.len()
    }

    pub(super) fn insert(&mut self, nodes: &Arena, child: u32) {
        let hash = self.hash_of(nodes, child);
        let edge = Edge { hash, child, len: nodes[child].len() as u32 };
        self.table.insert_unique(hash, edge, |edge| edge.hash);
    }

    pub(super) fn remove(&mut self, nodes: &Arena, child: u32) {
        let hash = self.hash_of(nodes, child);
        if let Ok(entry) = self.table.find_entry(hash, |edge| edge.child == child) {
            entry.remove();
        }
    }

    /// Whether the edge to `child` is stored under the child's own parent and first page, with the child's length.
    pub(super) fn contains(&self, nodes: &Arena, child: u32) -> bool {
        let hash = self.hash_of(nodes, child);
        let edge = self.table.find(hash, |edge| edge.child == child);
        edge.is_some_and(|edge| edge.hash == hash && edge.len as usize == nodes[child].len())
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    fn hash_of(&self, nodes: &Arena, child: u32) -> u64 {
        self.hash(nodes[child].parent, &nodes[child].key[..self.page])
    }

    fn hash(&self, parent: u32, first: &[Token]) -> u64 {
        let mut state = self.hasher.build_hasher();
        state.write_u32(parent);
        first.hash(&mut state);
        state.finish() & HASHES
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Insert, Key, Namespace, Released, TenantId, Token, Tree, TreeConfig};
    use crate::book::{BlockId, SlotId};

    /// Runs of few tokens, so that they share prefixes of all lengths.
    fn run(seed: u32, len: usize) -> Vec<Token> {
        let noise = |i: u32| (seed ^ i).wrapping_mul(0x9E37_79B9).rotate_left(7).wrapping_mul(0x85EB_CA6B) >> 30;
        (0..len as u32).map(|i| noise(i) % 3).collect()
    }

    #[test]
    fn wrong_guesses_find_the_same() {
        let mut tree = Tree::new(TreeConfig { page: 2, ..TreeConfig::default() }).unwrap();
        let namespace = Namespace::default();
        let mut cached: Vec<Vec<Token>> = Vec::new();
        for seed in 0..200 {
            let tokens = run(seed, 2 * (1 + seed as usize % 20));
            let blocks: Vec<BlockId> = (0..tokens.len() as u32 / 2).map(|i| BlockId(seed * 100 + i)).collect();
            let insert = Insert {
                key: Key { namespace: &namespace, tokens: &tokens },
                blocks: &blocks,
                owned: 0,
                state: Some(SlotId(seed)),
                window: None,
                tenant: TenantId::default(),
            };
            tree.insert(&insert, &mut Released::default()).unwrap();
            cached.push(tokens);
        }
        tree.check().unwrap();
        for seed in 0..2000 {
            let tokens = run(seed, 41);
            let shared = |other: &Vec<Token>| {
                tokens.chunks_exact(2).zip(other.chunks_exact(2)).take_while(|(a, b)| a == b).count() * 2
            };
            let found = tree.match_prefix(Key { namespace: &namespace, tokens: &tokens });
            assert_eq!(found.kv_hit, cached.iter().map(shared).max().unwrap(), "{tokens:?}");
            let whole = cached.iter().filter(|other| shared(other) == other.len()).map(Vec::len).max();
            assert_eq!(found.hit, whole.unwrap_or(0), "{tokens:?}");
        }
    }
}
