//! What must hold of any snapshot and of any trace, whoever wrote it. The fuzz targets check the same.

#![allow(dead_code, reason = "the fuzz targets include it, and each uses a part")]

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use cacheplan_managers::book::prefix::{HostTier, LeafRule, Released, Restore, Saved, Shape, Tree, TreeConfig};
use cacheplan_managers::book::{BlockId, SlotId, TraceRequest};

const CHECKSUM: usize = 32;

fn shape() -> Shape {
    Shape { fingerprint: "model".into(), block_bytes: 1, window_bytes: 1, state_bytes: 2 }
}

/// A pool whose units are numbered as they are handed out.
struct Pool {
    given: u32,
    size: u32,
}

impl Pool {
    fn take(&mut self) -> Option<u32> {
        let unit = (self.given < self.size).then_some(self.given)?;
        self.given += 1;
        Some(unit)
    }
}

/// KV blocks, window blocks, states.
struct Pools([Pool; 3]);

impl Pools {
    fn of(size: u32) -> Self {
        Self([0; 3].map(|given| Pool { given, size }))
    }
}

impl Restore for Pools {
    fn block(&mut self, bytes: &[u8]) -> Option<BlockId> {
        assert_eq!(bytes.len(), shape().block_bytes);
        self.0[0].take().map(BlockId)
    }

    fn window(&mut self, bytes: &[u8]) -> Option<BlockId> {
        assert_eq!(bytes.len(), shape().window_bytes);
        self.0[1].take().map(BlockId)
    }

    fn state(&mut self, bytes: &[u8]) -> Option<SlotId> {
        assert_eq!(bytes.len(), shape().state_bytes);
        self.0[2].take().map(SlotId)
    }
}

/// Restores from a whole file with any content: the first bytes choose the tree and the content's kind.
/// Returns whether the file was taken.
pub(crate) fn check_snapshot(path: &Path, bytes: &[u8]) -> bool {
    let mut bytes = bytes.iter().copied();
    let mut next = || bytes.next().unwrap_or(0);
    let (config, size, kind) = (config(next()), u32::from(next()), next());
    let content: Vec<u8> = if kind % 4 == 0 { bytes.collect() } else { nodes(&config, &mut bytes) };
    let mut tree = Tree::new(config.clone()).unwrap();
    let mut file = [header(path, &tree), &content].concat();
    file.extend(blake3::hash(&file).as_bytes());
    fs::write(path, file).unwrap();

    let (mut pools, mut out) = (Pools::of(size), Released::default());
    let restored = tree.restore(path, &shape(), &mut pools, &mut out).is_ok();
    tree.check().unwrap();
    assert!(restored || tree.usage() == Default::default());
    every_unit_has_one_place(&tree, &pools, &out);
    // A save waits for the disk.
    if restored && kind >= 240 {
        comes_back(path, &tree);
    }
    tree.evict_kv(usize::MAX, &mut out);
    tree.evict_host(usize::MAX, usize::MAX);
    tree.check().unwrap();
    assert_eq!(tree.usage(), Default::default());
    every_unit_has_one_place(&tree, &pools, &out);
    restored
}

/// The tree that [`a_snapshot`] is of: with states.
const TREE: u8 = 1 << 4;

/// The file of a snapshot with some nodes, which is left there.
pub(crate) fn a_snapshot(path: &Path) -> Vec<u8> {
    let some = |n: u8| (0..200u8).map(move |at| at.wrapping_mul(11).wrapping_add(n.wrapping_mul(37)));
    let taken = (0..=u8::MAX).find(|&n| {
        let content: Vec<u8> = [TREE, u8::MAX, 1, 8].into_iter().chain(some(n)).collect();
        check_snapshot(path, &content)
    });
    assert!(taken.is_some(), "none of the contents is a snapshot's");
    fs::read(path).unwrap()
}

/// Whether the file is taken for a snapshot of that tree; else nothing is left of it.
pub(crate) fn restores(path: &Path) -> bool {
    let mut tree = Tree::new(config(TREE)).unwrap();
    let restored = tree.restore(path, &shape(), &mut Pools::of(u32::MAX), &mut Released::default()).is_ok();
    tree.check().unwrap();
    assert!(restored || tree.usage() == Default::default());
    restored
}

/// The header of snapshots of trees with this page.
fn header(path: &Path, tree: &Tree) -> &'static [u8] {
    static HEADERS: [OnceLock<Vec<u8>>; 2] = [const { OnceLock::new() }; 2];
    HEADERS[tree.config().page - 1].get_or_init(|| {
        tree.save(path, &shape(), |_, _| Ok(())).unwrap();
        // An empty tree is a header, a count of no nodes, and the checksum.
        let empty = fs::read(path).unwrap();
        empty[..empty.len() - 8 - CHECKSUM].to_vec()
    })
}

fn config(choice: u8) -> TreeConfig {
    let bit = |at: u8| choice >> at & 1 == 1;
    let legacy = bit(0) && !bit(1);
    TreeConfig {
        page: if bit(2) && !legacy { 2 } else { 1 },
        window: (bit(3) && !legacy).then_some(2),
        states: legacy || bit(4),
        leaves: if legacy { LeafRule::State } else { LeafRule::Kv },
        host: (bit(5) && !legacy).then_some(HostTier { blocks: 4, slots: 2, windows: 4 }),
        tenants: vec![1; 1 + usize::from(bit(6))],
        ..TreeConfig::default()
    }
}

/// Nodes that are right, but for a few bytes at most.
fn nodes(config: &TreeConfig, bytes: &mut impl Iterator<Item = u8>) -> Vec<u8> {
    let mut next = || bytes.next().unwrap_or(0);
    let count = next() % 32;
    let mut content = u64::from(count).to_le_bytes().to_vec();
    for node in 0..u32::from(count) {
        let kind = next();
        if node == 0 || kind % 8 == 0 {
            content.extend([u32::MAX, 1].map(u32::to_le_bytes).concat());
            content.push(b'a' + node as u8);
            content.extend(0_u32.to_le_bytes());
            continue;
        }
        let pages = 1 + usize::from(kind / 8 % 3);
        let mut key: Vec<u8> = (0..pages * config.page).map(|_| next() % 4).collect();
        // Most siblings differ.
        key[0] = if kind >= 128 { key[0] } else { node as u8 };
        content.extend([u32::from(next()) % node, key.len() as u32].map(u32::to_le_bytes).concat());
        key.iter().for_each(|&token| content.extend(u32::from(token).to_le_bytes()));
        content.extend(u16::from(next() % 3).to_le_bytes());
        content.extend(u64::from(next()).to_le_bytes());
        let flags = next();
        let (windowed, stated) = (config.window.is_some() && flags & 1 == 1, config.states && flags & 2 == 2);
        content.extend([u8::from(windowed), u8::from(stated)]);
        let shape = shape();
        let units = pages * (shape.block_bytes + usize::from(windowed) * shape.window_bytes);
        content.resize(content.len() + units + usize::from(stated) * shape.state_bytes, 7);
    }
    for _ in 0..next() % 4 {
        let len = content.len();
        content[usize::from(next()) * len / 256] = next();
    }
    content
}

/// Every unit that was handed out is in the tree, on its way to the host, or given back.
fn every_unit_has_one_place(tree: &Tree, pools: &Pools, out: &Released) {
    let census = tree.census();
    let places = [
        ids(census.blocks.iter().chain(&out.blocks).map(|block| block.0)),
        ids(census.window.iter().chain(&out.window).map(|block| block.0)),
        ids(census.slots.iter().chain(&out.slots).map(|slot| slot.0)),
    ];
    for (places, pool) in places.iter().zip(&pools.0) {
        let distinct: HashSet<u32> = places.iter().copied().collect();
        assert_eq!((places.len(), distinct.len()), (pool.given as usize, pool.given as usize));
    }
}

fn ids(ids: impl Iterator<Item = u32>) -> Vec<u32> {
    ids.collect()
}

/// What was read can be written and read again.
fn comes_back(path: &Path, tree: &Tree) {
    let save = |unit: Saved, bytes: &mut Vec<u8>| {
        let len = match unit {
            Saved::Block(_) | Saved::HostBlock(_) => shape().block_bytes,
            Saved::Window(_) | Saved::HostWindow(_) => shape().window_bytes,
            Saved::State(_) | Saved::HostState(_) => shape().state_bytes,
        };
        bytes.resize(bytes.len() + len, 0);
        Ok(())
    };
    tree.save(path, &shape(), save).unwrap();
    let mut again = Tree::new(tree.config().clone()).unwrap();
    again.restore(path, &shape(), &mut Pools::of(u32::MAX), &mut Released::default()).unwrap();
    again.check().unwrap();
    assert_eq!(again.usage(), tree.usage());
}

/// Reads a trace with any content. Returns whether it is one.
pub(crate) fn check_trace(bytes: &[u8]) -> bool {
    let requests = TraceRequest::read_trace(bytes);
    requests.iter().for_each(|requests| comes_back_in_our_format(requests));
    requests.is_ok()
}

pub(crate) fn comes_back_in_our_format(requests: &[TraceRequest]) {
    let lines: Vec<String> = requests.iter().map(|request| serde_json::to_string(request).unwrap()).collect();
    assert_eq!(TraceRequest::read_trace(lines.join("\n").as_bytes()).unwrap(), requests);
}
