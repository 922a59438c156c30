//! A tree between two pools, so that tests speak of tokens and counts.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part of the harness")]

use cacheplan_managers::book::{BlockId, SlotId};
use cacheplan_managers::prefix::{
    Evicted, Eviction, Insert, Inserted, Key, Match, Namespace, Receipt, Released, TenantId, Token, Tree, TreeConfig,
    WindowSpan,
};

pub fn tokens(range: std::ops::RangeInclusive<Token>) -> Vec<Token> {
    range.collect()
}

pub fn config() -> TreeConfig {
    TreeConfig { eviction: Eviction::Lru, ..TreeConfig::default() }
}

pub struct Harness {
    pub tree: Tree,
    pub blocks: Vec<BlockId>,
    pub window: Vec<BlockId>,
    pub slots: Vec<SlotId>,
    pub namespace: Namespace,
    sizes: (u32, u32),
}

impl Harness {
    /// A tree between pools of `tokens` KV tokens and `slots` state slots.
    pub fn new(config: TreeConfig, tokens: u32, slots: u32) -> Self {
        let blocks = tokens / config.page as u32;
        Self {
            tree: Tree::new(config).unwrap(),
            // Popped from the end, so that ids are handed out in ascending order.
            blocks: (0..blocks).rev().map(BlockId).collect(),
            window: (0..blocks).rev().map(BlockId).collect(),
            slots: (0..slots).rev().map(SlotId).collect(),
            namespace: Namespace::default(),
            sizes: (blocks, slots),
        }
    }

    pub fn key<'a>(&'a self, tokens: &'a [Token]) -> Key<'a> {
        Key { namespace: &self.namespace, tokens }
    }

    /// Computes `tokens` with fresh blocks and, if asked, a fresh slot, and inserts them.
    pub fn insert_owned(&mut self, tokens: &[Token], state: bool, owned: usize) -> Inserted {
        let slot = state.then(|| self.slots.pop().unwrap());
        self.insert_slot(tokens, slot, owned)
    }

    pub fn insert_slot(&mut self, tokens: &[Token], state: Option<SlotId>, owned: usize) -> Inserted {
        let inserted = self.insert_any(tokens, state, owned);
        self.tree.check().unwrap();
        inserted
    }

    /// Inserts with a state and without looking at the whole tree, for trees that are large.
    pub fn insert_unchecked(&mut self, tokens: &[Token]) -> Inserted {
        let slot = self.slots.pop();
        self.insert_any(tokens, slot, 0)
    }

    fn insert_any(&mut self, tokens: &[Token], state: Option<SlotId>, owned: usize) -> Inserted {
        let pages = tokens.len() / self.tree.config().page;
        let blocks: Vec<BlockId> = (0..pages).map(|_| self.blocks.pop().unwrap()).collect();
        let namespace = self.namespace.clone();
        let insert = Insert {
            key: Key { namespace: &namespace, tokens },
            blocks: &blocks,
            owned,
            state,
            window: None,
            tenant: TenantId::default(),
        };
        let mut out = Released::default();
        let inserted = self.tree.insert(&insert, &mut out).unwrap();
        self.take_back(out);
        inserted
    }

    /// Inserts KV with a window whose blocks begin at `from`.
    pub fn insert_window(&mut self, tokens: &[Token], state: bool, from: usize) -> Inserted {
        let page = self.tree.config().page;
        let blocks: Vec<BlockId> = (0..tokens.len() / page).map(|_| self.blocks.pop().unwrap()).collect();
        let window: Vec<BlockId> = (0..(tokens.len() - from) / page).map(|_| self.window.pop().unwrap()).collect();
        let namespace = self.namespace.clone();
        let insert = Insert {
            key: Key { namespace: &namespace, tokens },
            blocks: &blocks,
            owned: 0,
            state: state.then(|| self.slots.pop().unwrap()),
            window: Some(WindowSpan { from, blocks: &window }),
            tenant: TenantId::default(),
        };
        let mut out = Released::default();
        let inserted = self.tree.insert(&insert, &mut out).unwrap();
        self.take_back(out);
        self.audit();
        inserted
    }

    pub fn insert(&mut self, tokens: &[Token]) -> Inserted {
        self.insert_owned(tokens, true, 0)
    }

    pub fn insert_kv(&mut self, tokens: &[Token]) -> Inserted {
        self.insert_owned(tokens, false, 0)
    }

    pub fn find(&self, tokens: &[Token]) -> Match {
        self.tree.match_prefix(self.key(tokens))
    }

    /// Looks up and marks as used, as a request that starts does.
    pub fn hit(&mut self, tokens: &[Token]) -> usize {
        let found = self.find(tokens);
        self.tree.commit(&found).unwrap();
        self.tree.check().unwrap();
        found.hit
    }

    pub fn lock(&mut self, tokens: &[Token]) -> Receipt {
        let found = self.find(tokens);
        let receipt = self.tree.lock(&found, Default::default()).unwrap();
        self.tree.check().unwrap();
        receipt
    }

    pub fn unlock(&mut self, receipt: Receipt) {
        self.tree.unlock(receipt).unwrap();
        self.tree.check().unwrap();
    }

    pub fn evict_kv(&mut self, tokens: usize) -> Evicted {
        self.evict(|tree, out| tree.evict_kv(tokens, out))
    }

    pub fn evict_state(&mut self, states: usize) -> Evicted {
        self.evict(|tree, out| tree.evict_state(states, out))
    }

    pub fn evict_window(&mut self, tokens: usize) -> Evicted {
        self.evict(|tree, out| tree.evict_window(tokens, out))
    }

    fn evict(&mut self, evict: impl FnOnce(&mut Tree, &mut Released) -> Evicted) -> Evicted {
        let mut out = Released::default();
        let evicted = evict(&mut self.tree, &mut out);
        assert_eq!(evicted.tokens, out.blocks.len() * self.tree.config().page);
        assert_eq!(evicted.states, out.slots.len());
        self.take_back(out);
        self.audit();
        evicted
    }

    pub fn take_back(&mut self, out: Released) {
        self.blocks.extend(out.blocks);
        self.window.extend(out.window);
        self.slots.extend(out.slots);
    }

    /// Every unit is in the tree or free: nothing leaked, nothing twice.
    pub fn audit(&self) {
        self.tree.check().unwrap();
        let (blocks, slots) = self.sizes;
        self.tree.census().audit((blocks, &self.blocks), (blocks, &self.window), (slots, &self.slots)).unwrap();
    }

    /// Free KV tokens and free slots.
    pub fn free(&self) -> (usize, usize) {
        (self.blocks.len() * self.tree.config().page, self.slots.len())
    }
}
