//! Operations of the prefix tree at 1 thousand to 1 million leaves.
//!
//! A prompt has 1,100 tokens on a path of 6 nodes, one token per block, a state at every leaf.
//! Every sample is one operation on a path that was not touched just before.
//! What grows with the tree beyond cache misses is a mistake.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Instant;

use cacheplan_managers::book::{BlockId, SlotId};
use cacheplan_managers::prefix::{Hold, Insert, Key, Namespace, Released, TenantId, Token, Tree, TreeConfig};
use divan::{Bencher, black_box};

const LEAVES: [usize; 4] = [1_000, 10_000, 100_000, 1_000_000];
const LEVELS: [usize; 6] = [200, 200, 200, 200, 200, 100];
const PROMPT: usize = 1100;

fn main() {
    if std::env::args().any(|arg| arg == "growth") {
        growth();
    } else {
        divan::main();
    }
}

/// How a match grows with the tree, beside what cache misses make of reading its tokens: `-- growth`.
#[expect(clippy::print_stdout, reason = "a table for people")]
fn growth() {
    println!("{:>9} {:>10} {:>11} {:>6}", "leaves", "match ns", "control ns", "ratio");
    for leaves in LEAVES {
        let mut bench = Bench::new(leaves);
        let control = Control::new(leaves);
        let (mut ours, mut floor) = (Vec::new(), Vec::new());
        for _ in 0..2000 {
            let leaf = bench.some_leaf();
            let tokens = bench.prompt(leaf);
            ours.push(timed(|| bench.tree.match_prefix(bench.key(&tokens)).kv_hit));
            let leaf = bench.some_leaf();
            let (path, tokens) = (control.path(leaf), bench.prompt(leaf));
            floor.push(timed(|| control.walk(&path, &tokens)));
        }
        let [ours, floor] = [ours, floor].map(|mut nanos| *nanos.select_nth_unstable(1000).1);
        println!("{leaves:>9} {ours:>10} {floor:>11} {:>6.2}", ours as f64 / floor as f64);
    }
}

fn timed(act: impl FnOnce() -> usize) -> u128 {
    let start = Instant::now();
    assert_eq!(black_box(act()), PROMPT);
    start.elapsed().as_nanos()
}

/// Deterministic noise.
fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 31)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x ^ (x >> 32)
}

/// The node of a level that the path to a leaf passes. Leaves beyond the first `leaves` are new siblings of older ones.
fn node_at(leaves: usize, leaf: usize, level: usize) -> u64 {
    if level + 1 == LEVELS.len() {
        return leaf as u64;
    }
    let width = (leaves as f64).powf((level + 1) as f64 / LEVELS.len() as f64);
    ((leaf % leaves) as f64 / leaves as f64 * width.ceil()) as u64
}

fn span(level: usize, node: u64) -> impl Iterator<Item = Token> {
    let seed = mix(node * 8 + level as u64);
    (0..LEVELS[level] as u64).map(move |i| (mix(seed + i) % 150_000) as Token)
}

fn prompt(leaves: usize, leaf: usize) -> Vec<Token> {
    (0..LEVELS.len()).flat_map(|level| span(level, node_at(leaves, leaf, level))).collect()
}

/// The spans of a tree without the tree, and a walk that is told every node of its path. What remains is to read each
/// header, to follow it to its tokens and to compare them.
struct Control {
    headers: Vec<Header>,
    of: HashMap<(usize, u64), usize>,
    leaves: usize,
}

#[repr(align(64))]
struct Header(Box<[Token]>);

impl Control {
    fn new(leaves: usize) -> Self {
        let mut control = Self { headers: Vec::new(), of: HashMap::new(), leaves };
        for leaf in 0..leaves {
            for level in 0..LEVELS.len() {
                let node = node_at(leaves, leaf, level);
                control.of.entry((level, node)).or_insert_with(|| {
                    control.headers.push(Header(span(level, node).collect()));
                    control.headers.len() - 1
                });
            }
        }
        control
    }

    fn path(&self, leaf: usize) -> [usize; LEVELS.len()] {
        std::array::from_fn(|level| self.of[&(level, node_at(self.leaves, leaf, level))])
    }

    /// Each header is looked up only when the tokens before it have been compared.
    fn walk(&self, path: &[usize; LEVELS.len()], tokens: &[Token]) -> usize {
        let mut position = 0;
        for &header in path {
            let span = &self.headers[header].0;
            if **span != tokens[position..position + span.len()] {
                break;
            }
            position += span.len();
        }
        position
    }
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
        prompt(self.leaves, leaf)
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
