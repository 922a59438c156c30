//! Snapshots: what is written comes back, and what is damaged or foreign is refused.

use std::fs;
use std::path::Path;

use crate::prefix_common::{Harness, config, tokens};
use cacheplan_managers::book::prefix::{
    Key, LeafRule, Namespace, Released, Restore, Saved, Shape, SnapshotError, Tree, TreeConfig,
};
use cacheplan_managers::book::{BlockId, SlotId};
use rstest::rstest;

fn shape() -> Shape {
    Shape { fingerprint: "model a, bf16".into(), block_bytes: 4, window_bytes: 0, state_bytes: 8 }
}

fn payload(unit: Saved, bytes: &mut Vec<u8>) -> std::io::Result<()> {
    match unit {
        Saved::Block(BlockId(i)) => bytes.extend((i + 1000).to_le_bytes()),
        Saved::State(SlotId(i)) => bytes.extend(u64::from(i + 2000).to_le_bytes()),
        _ => panic!("{unit:?}"),
    }
    Ok(())
}

/// Pools that number what they hand out and remember its bytes.
struct Pools {
    blocks: Vec<Vec<u8>>,
    states: Vec<Vec<u8>>,
    room: usize,
}

impl Pools {
    fn with_room(room: usize) -> Self {
        Self { blocks: Vec::new(), states: Vec::new(), room }
    }
}

impl Restore for Pools {
    fn block(&mut self, bytes: &[u8]) -> Option<BlockId> {
        self.room = self.room.checked_sub(1)?;
        self.blocks.push(bytes.to_vec());
        Some(BlockId(self.blocks.len() as u32 - 1))
    }

    fn window(&mut self, _: &[u8]) -> Option<BlockId> {
        None
    }

    fn state(&mut self, bytes: &[u8]) -> Option<SlotId> {
        self.states.push(bytes.to_vec());
        Some(SlotId(self.states.len() as u32 - 1))
    }
}

/// A tree of two namespaces with a fork, saved to `path`.
fn saved(path: &Path) -> Harness {
    let mut h = Harness::new(config(), 128, 16);
    h.insert(&tokens(1..=7));
    h.insert(&[1, 2, 3, 4, 5, 60, 70]);
    h.insert(&[1, 2, 3]);
    h.namespace = Namespace { salt: "tenant".into(), adapter: "lora".into() };
    h.insert(&[1, 2, 9]);
    h.namespace = Namespace::default();
    h.tree.save(path, &shape(), payload).unwrap();
    h
}

fn restore(path: &Path, shape: &Shape, room: usize) -> (Tree, Pools, Result<(), SnapshotError>) {
    let mut tree = Tree::new(config()).unwrap();
    let mut pools = Pools::with_room(room);
    let mut out = Released::default();
    let result = tree.restore(path, shape, &mut pools, &mut out);
    tree.check().unwrap();
    let held = tree.census().blocks.len();
    assert_eq!(held + out.blocks.len(), pools.blocks.len(), "every block is in the tree or given back");
    (tree, pools, result)
}

#[test]
fn what_was_saved_comes_back_with_its_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    let before = saved(&path);
    let (tree, pools, result) = restore(&path, &shape(), usize::MAX);
    result.unwrap();
    assert_eq!(tree.usage(), before.tree.usage());
    for (namespace, prompt) in [
        (Namespace::default(), tokens(1..=7)),
        (Namespace::default(), vec![1, 2, 3, 4, 5, 60, 70]),
        (Namespace { salt: "tenant".into(), adapter: "lora".into() }, vec![1, 2, 9]),
        (Namespace { salt: "tenant".into(), adapter: String::new() }, vec![1, 2, 9]),
    ] {
        let key = Key { namespace: &namespace, tokens: &prompt };
        let (old, new) = (before.tree.match_prefix(key), tree.match_prefix(key));
        assert_eq!((old.hit, old.kv_hit), (new.hit, new.kv_hit), "{prompt:?}");
        if let (Some(old), Some(new)) = (old.state, new.state) {
            let mut bytes = Vec::new();
            payload(Saved::State(old), &mut bytes).unwrap();
            assert_eq!(pools.states[new.0 as usize], bytes);
        }
    }
}

#[test]
fn the_order_of_eviction_survives() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    let mut before = saved(&path);
    let (mut tree, ..) = restore(&path, &shape(), usize::MAX);
    for _ in 0..3 {
        before.evict_kv(1);
        tree.evict_kv(1, &mut Released::default());
        for prompt in [tokens(1..=7), vec![1, 2, 3, 4, 5, 60, 70]] {
            assert_eq!(tree.match_prefix(before.key(&prompt)).kv_hit, before.find(&prompt).kv_hit);
        }
    }
}

#[rstest]
fn what_does_not_fit_is_left_out_deepest_first(#[values(0, 1, 3, 5, 8, 11)] room: usize) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    saved(&path);
    let (tree, _, result) = restore(&path, &shape(), room);
    result.unwrap();
    assert!(tree.usage().kv.evictable <= room);
}

#[test]
fn a_truncated_file_is_refused_at_every_length() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    saved(&path);
    let whole = fs::read(&path).unwrap();
    for len in 0..whole.len() {
        fs::write(&path, &whole[..len]).unwrap();
        let (tree, _, result) = restore(&path, &shape(), usize::MAX);
        assert!(matches!(result, Err(SnapshotError::Damaged { .. })), "{len} bytes: {result:?}");
        assert_eq!(tree.usage(), Default::default());
    }
}

#[test]
fn a_flipped_bit_is_refused_wherever_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    saved(&path);
    let whole = fs::read(&path).unwrap();
    for at in 0..whole.len() {
        let mut flipped = whole.clone();
        flipped[at] ^= 0x10;
        fs::write(&path, &flipped).unwrap();
        let (tree, _, result) = restore(&path, &shape(), usize::MAX);
        assert!(result.is_err(), "byte {at}");
        assert_eq!(tree.usage(), Default::default());
    }
}

#[test]
fn a_snapshot_of_something_else_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    saved(&path);
    let other_model = Shape { fingerprint: "model b".into(), ..shape() };
    let other_state = Shape { state_bytes: 16, ..shape() };
    for (shape, what) in [(other_model, "the fingerprint"), (other_state, "bytes per state")] {
        let (_, _, result) = restore(&path, &shape, usize::MAX);
        assert!(matches!(result, Err(SnapshotError::Foreign { what: found, .. }) if found == what));
    }
    let mut paged = Tree::new(TreeConfig { page: 2, ..config() }).unwrap();
    let result = paged.restore(&path, &shape(), &mut Pools::with_room(9), &mut Released::default());
    assert!(matches!(result, Err(SnapshotError::Foreign { what: "tokens per block", .. })));
}

#[test]
fn a_failed_save_leaves_the_old_snapshot() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    let h = saved(&path);
    let before = fs::read(&path).unwrap();
    let failing = |_: Saved, _: &mut Vec<u8>| Err(std::io::Error::other("the device is gone"));
    assert!(matches!(h.tree.save(&path, &shape(), failing), Err(SnapshotError::Replace(_))));
    assert_eq!(fs::read(&path).unwrap(), before);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left lying about");
}

/// Names in a folder, sorted.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_save_removes_what_saves_that_were_cut_off_have_left_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let left = folder.path().join("cache.0123456789abcdef.partial");
    let running = folder.path().join("cache.fedcba9876543210.partial");
    let others = ["cache.mine.partial", "cache.b.0123456789abcdef.partial", "cachet.0123456789abcdef.partial"];
    for path in [&left, &running].into_iter().cloned().chain(others.map(|name| folder.path().join(name))) {
        fs::write(path, "half a snapshot").unwrap();
    }
    let writer = fs::File::open(&running).unwrap();
    writer.lock().unwrap();
    saved(&folder.path().join("cache"));
    let mut expected = vec!["cache", "cache.fedcba9876543210.partial"];
    expected.extend(others);
    expected.sort_unstable();
    assert_eq!(names(folder.path()), expected);
}

#[test]
fn saves_to_one_path_at_once_do_not_mix() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    let h = saved(&path);
    let mut others = 0;
    let meanwhile = |unit: Saved, bytes: &mut Vec<u8>| {
        others += 1;
        h.tree.save(&path, &shape(), payload).unwrap();
        payload(unit, bytes)
    };
    h.tree.save(&path, &shape(), meanwhile).unwrap();
    assert!(others > 3);
    assert_eq!(names(folder.path()), ["cache"]);
    restore(&path, &shape(), usize::MAX).2.unwrap();
}

#[test]
fn a_path_that_names_no_file_is_an_error() {
    let h = Harness::new(config(), 16, 4);
    for path in ["/", ".."] {
        assert!(matches!(h.tree.save(Path::new(path), &shape(), payload), Err(SnapshotError::Replace(_))));
    }
}

#[test]
fn a_tree_that_was_saved_while_it_was_read_comes_back_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    let mut h = Harness::new(config(), 64, 8);
    h.insert(&[1, 2]);
    h.insert(&[1, 2, 3, 4]);
    // The second lock stops at what the first one holds, which is the older then.
    let receipts = [h.lock(&[1, 2]), h.lock(&[1, 2, 3, 4])];
    h.tree.save(&path, &shape(), payload).unwrap();
    receipts.into_iter().for_each(|receipt| h.unlock(receipt));
    let (tree, _, result) = restore(&path, &shape(), usize::MAX);
    result.unwrap();
    assert_eq!(tree.usage(), h.tree.usage());
}

#[test]
fn a_tree_in_use_is_not_restored_over() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    let mut h = saved(&path);
    let result = h.tree.restore(&path, &shape(), &mut Pools::with_room(9), &mut Released::default());
    assert!(matches!(result, Err(SnapshotError::NotEmpty { nodes: 5 })));
}

#[test]
fn under_the_leaf_rule_state_no_stateless_leaf_is_restored() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    saved(&path);
    let mut tree = Tree::new(TreeConfig { leaves: LeafRule::State, ..config() }).unwrap();
    let mut out = Released::default();
    tree.restore(&path, &shape(), &mut Pools::with_room(8), &mut out).unwrap();
    tree.check().unwrap();
}

#[test]
fn the_ages_of_states_survive() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    let config = TreeConfig::default();
    let mut before = Harness::new(config.clone(), 256, 8);
    before.insert(&tokens(1..=100));
    before.insert(&[900]);
    for _ in 0..200 {
        before.hit(&[900]);
    }
    before.tree.save(&path, &shape(), payload).unwrap();
    let mut after = Tree::new(config).unwrap();
    let mut out = Released::default();
    after.restore(&path, &shape(), &mut Pools::with_room(usize::MAX), &mut out).unwrap();
    before.evict_state(1);
    after.evict_state(1, &mut out);
    after.check().unwrap();
    for prompt in [tokens(1..=100), vec![900]] {
        let key = Key { namespace: &before.namespace, tokens: &prompt };
        assert_eq!(before.tree.match_prefix(key).hit, after.match_prefix(key).hit, "{prompt:?}");
    }
    assert_eq!(before.find(&tokens(1..=100)).hit, 0, "what covers more but is much older goes");
}
