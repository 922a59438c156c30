//! Files that are whole, and were made to do harm.

use std::fs;
use std::path::PathBuf;

use rstest::rstest;
use tempfile::TempDir;

use super::input::Input;
use super::{Restore, Shape, SnapshotError};
use crate::book::ids::{BlockId, SlotId};
use crate::book::prefix::key::{Key, Namespace, Token};
use crate::book::prefix::node::NIL;
use crate::book::prefix::{Insert, Released, TenantId, Tree, TreeConfig};

const PAGE: usize = 2;

fn shape() -> Shape {
    Shape { fingerprint: "model".into(), block_bytes: 3, window_bytes: 2, state_bytes: 5 }
}

fn tree(window: Option<usize>, states: bool) -> Tree {
    Tree::new(TreeConfig { page: PAGE, window, states, ..TreeConfig::default() }).unwrap()
}

/// Pools that count what they hand out.
#[derive(Default)]
struct Pools {
    blocks: u32,
    windows: u32,
    states: u32,
}

impl Restore for Pools {
    fn block(&mut self, _: &[u8]) -> Option<BlockId> {
        self.blocks += 1;
        Some(BlockId(self.blocks))
    }

    fn window(&mut self, _: &[u8]) -> Option<BlockId> {
        self.windows += 1;
        Some(BlockId(self.windows))
    }

    fn state(&mut self, _: &[u8]) -> Option<SlotId> {
        self.states += 1;
        Some(SlotId(self.states))
    }
}

/// A node as it stands in a file.
struct Raw<'a> {
    parent: u32,
    key: &'a [Token],
    stamp: u64,
    flags: [u8; 2],
}

fn raw(parent: u32, key: &[Token]) -> Raw<'_> {
    Raw { parent, key, stamp: 7, flags: [1, 1] }
}

impl Raw<'_> {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = [self.parent.to_le_bytes(), (self.key.len() as u32).to_le_bytes()].concat();
        self.key.iter().for_each(|token| bytes.extend(token.to_le_bytes()));
        bytes.extend(0_u16.to_le_bytes());
        bytes.extend(self.stamp.to_le_bytes());
        bytes.extend(self.flags);
        let pages = self.key.len() / PAGE;
        let windows = usize::from(self.flags[0] == 1) * pages * shape().window_bytes;
        let states = usize::from(self.flags[1] == 1) * shape().state_bytes;
        bytes.extend(vec![9; pages * shape().block_bytes + windows + states]);
        bytes
    }
}

fn root(salt: &str) -> Vec<u8> {
    let lens = [NIL, salt.len() as u32].map(u32::to_le_bytes).concat();
    [&lens, salt.as_bytes(), &0_u32.to_le_bytes()].concat()
}

/// A whole file with this header, that says to have so many nodes, and has these.
fn file(header: Vec<u8>, count: u64, nodes: &[Vec<u8>]) -> (TempDir, PathBuf) {
    let mut bytes = [header, count.to_le_bytes().to_vec(), nodes.concat()].concat();
    bytes.extend(blake3::hash(&bytes).as_bytes());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    fs::write(&path, bytes).unwrap();
    (folder, path)
}

#[rstest]
#[case::more_nodes_than_there_are(u64::MAX, &[root("")], "a length reaches beyond the end")]
#[case::fewer_nodes_than_there_are(1, &[root(""), raw(0, &[1, 2]).bytes()], "there is more behind the last node")]
#[case::its_own_parent(2, &[root(""), raw(1, &[1, 2]).bytes()], "a node has no parent")]
#[case::a_parent_that_comes_later(3, &[root(""), raw(2, &[1, 2]).bytes(), raw(0, &[3, 4]).bytes()], "a node has no parent")]
#[case::a_namespace_twice(3, &[root("a"), raw(0, &[1, 2]).bytes(), root("a")], "a namespace stands twice")]
#[case::an_empty_key(2, &[root(""), raw(0, &[]).bytes()], "a key is not whole pages")]
#[case::half_a_page(2, &[root(""), raw(0, &[1, 2, 3]).bytes()], "a key is not whole pages")]
#[case::a_key_without_end(2, &[root(""), [0, u32::MAX].map(u32::to_le_bytes).concat()], "a length reaches beyond the end")]
#[case::a_name_without_end(1, &[[NIL, u32::MAX].map(u32::to_le_bytes).concat()], "a length reaches beyond the end")]
#[case::a_name_that_is_no_text(1, &[[&root("a")[..8], &[0xff, 0, 0, 0, 0]].concat()], "a text is not UTF-8")]
#[case::siblings_alike(
    4,
    &[root(""), raw(0, &[1, 2, 3, 4]).bytes(), raw(1, &[5, 6]).bytes(), raw(0, &[1, 2, 5, 6]).bytes()],
    "siblings start with the same page"
)]
#[case::a_use_at_the_end_of_time(
    2,
    &[root(""), Raw { stamp: u64::MAX, ..raw(0, &[1, 2]) }.bytes()],
    "a node was used at a time that cannot be"
)]
#[case::half_a_flag(
    2,
    &[root(""), Raw { flags: [1, 2], ..raw(0, &[1, 2]) }.bytes()],
    "a flag is neither set nor clear"
)]
#[case::units_that_are_not_there(3, &[root(""), raw(0, &[1, 2]).bytes(), raw(1, &[3; 8]).bytes()[..60].to_vec()], "a length reaches beyond the end")]
fn a_whole_file_that_is_no_tree_is_refused_and_leaves_nothing(
    #[case] count: u64,
    #[case] nodes: &[Vec<u8>],
    #[case] expected: &str,
) {
    let mut tree = tree(Some(4), true);
    tree.tick();
    let (_folder, path) = file(tree.header(&shape()), count, nodes);
    let (mut pools, mut out) = (Pools::default(), Released::default());
    let refused = tree.restore(&path, &shape(), &mut pools, &mut out);
    assert!(matches!(&refused, Err(SnapshotError::Damaged { what, .. }) if *what == expected), "{refused:?}");
    tree.check().unwrap();
    assert_eq!((tree.usage(), tree.roots.len(), tree.nodes.len(), tree.clock), (Default::default(), 0, 0, 1));
    let given_back = [out.blocks.len(), out.window.len(), out.slots.len()].map(|units| units as u32);
    assert_eq!(given_back, [pools.blocks, pools.windows, pools.states]);
    assert!(out.offloads.is_empty());
    // It is as good as new.
    let namespace = Namespace::default();
    let key = Key { namespace: &namespace, tokens: &[1, 2] };
    let (blocks, tenant) = (&[BlockId(1)][..], TenantId::default());
    tree.insert(&Insert { key, blocks, owned: 0, state: None, window: None, tenant }, &mut out).unwrap();
    tree.check().unwrap();
}

#[rstest]
#[case::window(None, true, "a node has a window, and this cache has none")]
#[case::state(Some(4), false, "a node has a state, and this cache has none")]
fn units_that_the_cache_does_not_know_are_refused(
    #[case] window: Option<usize>,
    #[case] states: bool,
    #[case] expected: &str,
) {
    let mut tree = tree(window, states);
    let (_folder, path) = file(tree.header(&shape()), 2, &[root(""), raw(0, &[1, 2]).bytes()]);
    let refused = tree.restore(&path, &shape(), &mut Pools::default(), &mut Released::default());
    assert!(matches!(&refused, Err(SnapshotError::Damaged { what, .. }) if *what == expected), "{refused:?}");
}

#[test]
fn positions_beyond_the_last_are_refused() {
    let mut tree = tree(Some(4), true);
    let above = tree.root_or_new(&Namespace::default());
    let span = raw(NIL, &[1, 2]).bytes();
    let (_folder, path) = file(Vec::from(*b"CPPREFIX\x01\0\0\0"), 0, &[span]);
    for (end, fits) in [(u32::MAX - 2, true), (u32::MAX - 1, false)] {
        tree.nodes[above].end = end;
        let mut input = Input::open(&path).unwrap();
        // The number of nodes, and the parent.
        input.bytes(12).unwrap();
        let read = tree.read_span(above, &mut input);
        assert_eq!(read.is_ok(), fits);
    }
}

#[test]
fn time_goes_on_from_the_latest_use_that_is_read_and_parents_are_no_older_than_children() {
    let mut tree = tree(Some(4), true);
    let late = Raw { stamp: u64::MAX / 2, ..raw(1, &[3, 4]) };
    let (_folder, path) = file(tree.header(&shape()), 3, &[root(""), raw(0, &[1, 2]).bytes(), late.bytes()]);
    tree.restore(&path, &shape(), &mut Pools::default(), &mut Released::default()).unwrap();
    tree.check().unwrap();
    let namespace = Namespace::default();
    let found = tree.match_prefix(Key { namespace: &namespace, tokens: &[1, 2, 3, 4] });
    assert_eq!(found.hit, 4);
    tree.commit(&found).unwrap();
    tree.check().unwrap();
}

#[test]
fn what_lies_in_the_buffer_of_released_units_stays_there() {
    use crate::book::prefix::{HostBlockId, HostTier, Offload};
    let host = Some(HostTier { blocks: 8, slots: 2, windows: 8 });
    let mut tree = Tree::new(TreeConfig { page: PAGE, window: Some(4), host, ..TreeConfig::default() }).unwrap();
    let nodes = [root(""), raw(0, &[1, 2]).bytes(), raw(7, &[3, 4]).bytes()];
    let (_folder, path) = file(tree.header(&shape()), 3, &nodes);
    let earlier = Offload::Block { from: BlockId(90), to: HostBlockId(3) };
    let mut out = Released { offloads: vec![earlier], ..Released::default() };
    tree.restore(&path, &shape(), &mut Pools::default(), &mut out).unwrap_err();
    assert_eq!((out.offloads, out.blocks.len(), out.window.len(), out.slots.len()), (vec![earlier], 1, 1, 1));
    tree.check().unwrap();
}
