//! Operations of the prefix tree at 1 thousand to 1 million leaves.
//!
//! A prompt has 1,100 tokens on a path of 6 nodes, one token per block, a state at every leaf.
//! Every sample is one operation on a path that was not touched just before.
//! What grows with the tree beyond cache misses is a mistake.

use std::cell::RefCell;

use cacheplan_managers::book::ids::{BlockId, SlotId};
use cacheplan_managers::book::prefix::{Hold, Insert, Key, Namespace, Released, TenantId, Token, Tree, TreeConfig};
use divan::{Bencher, black_box};

const LEAVES: [usize; 4] = [1_000, 10_000, 100_000, 1_000_000];
const LEVELS: [usize; 6] = [200, 200, 200, 200, 200, 100];
const PROMPT: usize = 1100;

fn main() {
    divan::main();
}

/// Deterministic noise.
fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 31)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x ^ (x >> 32)
}

struct Bench {
    tree: Tree,
    namespace: Namespace,
    leaves: usize,
    next: usize,
    units: u32,
    out: Released,
}

impl Bench {
    fn new(leaves: usize) -> Self {
        let tree = Tree::new(TreeConfig { chunk: 64, ..TreeConfig::default() }).unwrap();
        let mut bench =
            Self { tree, namespace: Namespace::default(), leaves, next: 0, units: 0, out: Released::default() };
        for leaf in 0..leaves {
            bench.insert(leaf);
        }
        bench
    }

    /// The prompt that ends at a leaf: siblings share their ancestors' tokens.
    fn prompt(&self, leaf: usize) -> Vec<Token> {
        let mut tokens = Vec::with_capacity(PROMPT);
        for (level, len) in LEVELS.into_iter().enumerate() {
            let width = (self.leaves as f64).powf((level + 1) as f64 / LEVELS.len() as f64);
            // Leaves beyond the first `leaves` are new siblings of older ones.
            let node = if level + 1 == LEVELS.len() {
                leaf as u64
            } else {
                ((leaf % self.leaves) as f64 / self.leaves as f64 * width.ceil()) as u64
            };
            let seed = mix(node * 8 + level as u64);
            tokens.extend((0..len as u64).map(|i| (mix(seed + i) % 150_000) as Token));
        }
        tokens
    }

    fn insert(&mut self, leaf: usize) {
        let tokens = self.prompt(leaf);
        self.insert_prompt(&tokens);
    }

    fn insert_prompt(&mut self, tokens: &[Token]) {
        let blocks: Vec<BlockId> = (0..PROMPT as u32).map(|i| BlockId(self.units.wrapping_add(i))).collect();
        self.units = self.units.wrapping_add(PROMPT as u32);
        self.insert_blocks(tokens, &blocks);
        self.out.blocks.clear();
        self.out.slots.clear();
    }

    fn insert_blocks(&mut self, tokens: &[Token], blocks: &[BlockId]) {
        let insert = Insert {
            key: Key { namespace: &self.namespace, tokens },
            blocks,
            owned: 0,
            state: Some(SlotId(self.units)),
            window: None,
            tenant: TenantId::default(),
        };
        let _ = self.tree.insert(&insert, &mut self.out).unwrap();
    }

    /// A leaf that is in the tree, chosen without a pattern.
    fn some_leaf(&mut self) -> usize {
        self.next += 1;
        (mix(self.next as u64) % self.leaves as u64) as usize
    }

    /// A leaf that is not in the tree, below the ancestors of some leaf that is.
    fn fresh_leaf(&mut self) -> usize {
        self.some_leaf() + self.leaves * (1 + self.next)
    }

    fn key<'a>(&'a self, tokens: &'a [Token]) -> Key<'a> {
        Key { namespace: &self.namespace, tokens }
    }
}

#[divan::bench(args = LEAVES, sample_size = 1, sample_count = 400)]
fn match_prefix(bencher: Bencher<'_, '_>, leaves: usize) {
    let bench = RefCell::new(Bench::new(leaves));
    bencher
        .with_inputs(|| {
            let mut bench = bench.borrow_mut();
            let leaf = bench.some_leaf();
            bench.prompt(leaf)
        })
        .bench_local_refs(|tokens| {
            let bench = bench.borrow();
            black_box(bench.tree.match_prefix(bench.key(tokens)))
        });
}

#[divan::bench(args = LEAVES, sample_size = 1, sample_count = 400)]
fn insert(bencher: Bencher<'_, '_>, leaves: usize) {
    let bench = RefCell::new(Bench::new(leaves));
    let blocks: Vec<BlockId> = (0..PROMPT as u32).map(BlockId).collect();
    bencher
        .with_inputs(|| {
            let bench = &mut *bench.borrow_mut();
            bench.tree.evict_state(1, &mut bench.out);
            bench.out = Released { blocks: Vec::with_capacity(PROMPT * 200), ..Released::default() };
            let leaf = bench.fresh_leaf();
            bench.prompt(leaf)
        })
        .bench_local_refs(|tokens| bench.borrow_mut().insert_blocks(tokens, &blocks));
}

#[divan::bench(args = LEAVES, sample_size = 1, sample_count = 400)]
fn lock_unlock(bencher: Bencher<'_, '_>, leaves: usize) {
    let bench = RefCell::new(Bench::new(leaves));
    bencher
        .with_inputs(|| {
            let mut bench = bench.borrow_mut();
            let leaf = bench.some_leaf();
            let tokens = bench.prompt(leaf);
            bench.tree.match_prefix(bench.key(&tokens))
        })
        .bench_local_refs(|found| {
            let tree = &mut bench.borrow_mut().tree;
            let receipt = tree.lock(found, Hold::PathAndState).unwrap();
            tree.unlock(receipt).unwrap();
        });
}

#[divan::bench(args = LEAVES, sample_size = 1, sample_count = 400)]
fn evict_one_state(bencher: Bencher<'_, '_>, leaves: usize) {
    let bench = RefCell::new(Bench::new(leaves));
    refilled(bencher, &bench, |tree, out| tree.evict_state(1, out).states);
}

#[divan::bench(args = LEAVES, sample_size = 1, sample_count = 400)]
fn evict_one_leaf(bencher: Bencher<'_, '_>, leaves: usize) {
    let bench = RefCell::new(Bench::new(leaves));
    refilled(bencher, &bench, |tree, out| tree.evict_kv(1, out).tokens);
}

/// Puts a leaf back for every one that is evicted, outside the measurement.
fn refilled(bencher: Bencher<'_, '_>, bench: &RefCell<Bench>, evict: impl Fn(&mut Tree, &mut Released) -> usize) {
    bencher
        .with_inputs(|| {
            let mut bench = bench.borrow_mut();
            let leaf = bench.fresh_leaf();
            bench.insert(leaf);
        })
        .bench_local_refs(|()| {
            let bench = &mut *bench.borrow_mut();
            bench.out.blocks.clear();
            bench.out.slots.clear();
            black_box(evict(&mut bench.tree, &mut bench.out))
        });
}

/// A conversation of `turns` turns of 16 tokens with a state after each.
#[divan::bench(args = [10, 100, 1000, 5000])]
fn match_chain(bencher: Bencher<'_, '_>, turns: usize) {
    let mut bench = Bench::new(0);
    let tokens: Vec<Token> = (0..turns * 16).map(|i| (mix(i as u64) % 150_000) as Token).collect();
    for turn in 1..=turns {
        let blocks: Vec<BlockId> = (0..turn as u32 * 16).map(|i| BlockId(turn as u32 * 100_000 + i)).collect();
        bench.insert_blocks(&tokens[..turn * 16], &blocks);
    }
    bencher.bench_local(|| black_box(bench.tree.match_prefix(bench.key(&tokens))));
}
