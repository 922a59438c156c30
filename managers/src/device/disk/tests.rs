//! Any order of keeping, finding, damaging and beginning anew, beside a plain map.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use cacheplan_handlers::DType;
use cacheplan_planner::{Budget, CachePlan, PlanRequest};
use cacheplan_transforms::GraphBuilder;
use cacheplan_transforms::layers::Attention;
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

const MOST: u64 = 3000;

fn plan() -> CachePlan {
    let mut builder = GraphBuilder::new("decoder", 64, DType::F32);
    builder.layer();
    builder.attention(&Attention::grouped(2, 1, 32));
    let budget = Budget::from_toml("max_seq_len = 64\nmax_batch_size = 2", "test").unwrap();
    PlanRequest::of(builder.build()).with_budget(budget).plan().unwrap()
}

#[derive(Clone, Debug)]
enum Op {
    Keep { tokens: Vec<Token>, part: Vec<u8> },
    Find { tokens: Vec<Token>, than: usize },
    Damage { file: usize, at: usize, by: u8 },
    Cut { file: usize, by: usize },
    Remove { file: usize },
    LeavePartial,
    Reopen,
    ReopenForAnother,
}

fn op() -> impl Strategy<Value = Op> {
    let tokens = || prop::collection::vec(0u32..3, 1..7);
    prop_oneof![
        4 => (tokens(), prop::collection::vec(any::<u8>(), 0..900)).prop_map(|(tokens, part)| Op::Keep { tokens, part }),
        6 => (tokens(), 0usize..4).prop_map(|(tokens, than)| Op::Find { tokens, than }),
        1 => (any::<usize>(), any::<usize>(), 1u8..).prop_map(|(file, at, by)| Op::Damage { file, at, by }),
        1 => (any::<usize>(), 1usize..50).prop_map(|(file, by)| Op::Cut { file, by }),
        1 => any::<usize>().prop_map(|file| Op::Remove { file }),
        1 => Just(Op::LeavePartial),
        1 => Just(Op::Reopen),
        1 => Just(Op::ReopenForAnother),
    ]
}

/// The files, and what was ever kept.
struct World {
    folder: TempDir,
    plan: CachePlan,
    model: u8,
    files: Option<PrefixFiles>,
    kept: BTreeMap<Vec<Token>, Vec<u8>>,
}

impl World {
    fn new(divides: bool) -> Self {
        let mut world =
            Self { folder: TempDir::new().unwrap(), plan: plan(), model: 0, files: None, kept: BTreeMap::new() };
        if !divides {
            // As a window would.
            world.plan.pools[0].window = Some(16);
        }
        world.reopen();
        world
    }

    fn reopen(&mut self) {
        self.files = None;
        self.files = Some(PrefixFiles::open(self.folder.path(), MOST, &self.plan, [self.model; 32]).unwrap());
    }

    fn paths(&self) -> Vec<PathBuf> {
        let paths = fs::read_dir(self.folder.path()).unwrap().map(|entry| entry.unwrap().path());
        let mut paths: Vec<PathBuf> = paths.filter(|path| path.to_string_lossy().ends_with(SUFFIX)).collect();
        paths.sort();
        paths
    }

    fn change(&self, file: usize, change: impl FnOnce(&mut Vec<u8>)) {
        let paths = self.paths();
        if let Some(path) = paths.get(file % paths.len().max(1)) {
            let mut bytes = fs::read(path).unwrap();
            change(&mut bytes);
            fs::write(path, bytes).unwrap();
        }
    }

    fn apply(&mut self, op: Op) {
        let files = self.files.as_mut().unwrap();
        match op {
            Op::Keep { tokens, part } => {
                if !files.has(&tokens) {
                    files.keep(&tokens, std::slice::from_ref(&part)).unwrap();
                    self.kept.insert(tokens, part);
                }
            }
            Op::Find { tokens, than } => {
                let Some(found) = files.find(&tokens, than) else { return };
                assert!(found.tokens > than && found.of[..found.tokens] == tokens[..found.tokens]);
                assert!(files.divides || found.tokens == found.of.len());
                // Tokens that were damaged may be some that nothing was kept of.
                let part = self.kept.get(&found.of).cloned().unwrap_or_default();
                // Whole and right, or gone.
                match files.read(&found, &[part.len() as u64]).unwrap() {
                    Some(parts) => assert_eq!(Some(&parts[0]), self.kept.get(&found.of)),
                    None => assert!(!files.take_notes().is_empty() && !files.entries.contains_key(&found.of)),
                }
            }
            Op::Damage { file, at, by } => self.change(file, |bytes| {
                let at = at % bytes.len().max(1);
                bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= by);
            }),
            Op::Cut { file, by } => self.change(file, |bytes| bytes.truncate(bytes.len().saturating_sub(by))),
            Op::Remove { file } => {
                let paths = self.paths();
                paths.get(file % paths.len().max(1)).into_iter().for_each(|path| fs::remove_file(path).unwrap());
            }
            Op::LeavePartial => {
                let path = self.folder.path().join(format!("00{SUFFIX}.0123456789abcdef.partial"));
                fs::write(path, [7; 5000]).unwrap();
                self.reopen();
            }
            Op::Reopen => self.reopen(),
            Op::ReopenForAnother => {
                self.model += 1;
                self.reopen();
                assert!(self.files.as_ref().unwrap().is_empty() && self.paths().is_empty());
            }
        }
    }

    fn check(&self) {
        let files = self.files.as_ref().unwrap();
        assert!(files.bytes <= MOST);
        assert_eq!(files.bytes, files.entries.values().map(|entry| entry.bytes).sum::<u64>());
        let on_disk: u64 = self.paths().iter().map(|path| fs::metadata(path).unwrap().len()).sum();
        assert!(on_disk <= MOST, "{on_disk} bytes lie there");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn what_is_read_is_what_was_kept_within_the_bytes(divides: bool, ops in prop::collection::vec(op(), 1..60)) {
        let mut world = World::new(divides);
        for op in ops {
            world.apply(op);
            world.check();
        }
    }
}

#[test]
fn one_process_has_a_folder() {
    let folder = TempDir::new().unwrap();
    let first = PrefixFiles::open(folder.path(), MOST, &plan(), [0; 32]).unwrap();
    let second = PrefixFiles::open(folder.path(), MOST, &plan(), [0; 32]);
    assert!(matches!(second, Err(DiskError::InUse { .. })));
    drop(first);
    assert!(PrefixFiles::open(folder.path(), MOST, &plan(), [0; 32]).is_ok());
}

#[test]
fn other_files_are_let_be() {
    let folder = TempDir::new().unwrap();
    let other = folder.path().join("notes.txt");
    fs::write(&other, "mine").unwrap();
    let files = PrefixFiles::open(folder.path(), 0, &plan(), [0; 32]).unwrap();
    assert!(files.is_empty() && other.exists());
}
