//! A fixture model in a session, stepped with given tokens.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use cacheplan_managers::book::{SequenceId, StepMetadata, Work};
use cacheplan_managers::device::CacheManager;
use cacheplan_planner::Budget;
use cacheplan_runtime::{Session, SessionOptions};
use cacheplan_transforms::ReadOptions;
use candle_core::{DType, Device, Tensor};

/// How far ours may be from Hugging Face's float32.
pub(crate) const TOLERANCE: f32 = 1e-4;

/// Blocks of 8 tokens, so that every prompt spans several.
pub(crate) const BUDGET: &str = "max_seq_len = 96\nmax_batch_size = 3\nmax_num_tokens = 64\ntokens_per_block = 8\n";

pub(crate) fn folder(model: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models").join(model)
}

pub(crate) fn session(model: &str, budget: &str) -> Session {
    session_in(&folder(model), budget)
}

/// As [`session`] in any folder, with the tokens that end texts.
pub(crate) fn session_in_ending(folder: &Path, budget: &str) -> Session {
    Session::open(folder, SessionOptions { ignore_eos: false, ..options(budget) }).unwrap()
}

fn session_in(folder: &Path, budget: &str) -> Session {
    Session::open(folder, options(budget)).unwrap()
}

pub(crate) fn session_without_reuse(model: &str, budget: &str) -> Session {
    Session::open(&folder(model), SessionOptions { reuse_prefixes: false, ..options(budget) }).unwrap()
}

pub(crate) fn options(budget: &str) -> SessionOptions {
    let budget = Budget::from_toml(budget, "test").unwrap();
    SessionOptions { budget, ignore_eos: true, ..SessionOptions::default() }
}

/// What Hugging Face computed, by name.
pub(crate) struct Golden(HashMap<String, Tensor>);

impl Golden {
    pub(crate) fn load(model: &str) -> Self {
        Self::load_from(&folder(model))
    }

    pub(crate) fn load_from(folder: &Path) -> Self {
        Self(candle_core::safetensors::load(folder.join("golden.safetensors"), &Device::Cpu).unwrap())
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// A tensor without its batch dimension of one.
    pub(crate) fn get(&self, name: &str) -> Tensor {
        let tensor = self.0.get(name).unwrap_or_else(|| panic!("the golden file has no `{name}`"));
        tensor.squeeze(0).unwrap()
    }

    pub(crate) fn ids(&self, name: &str) -> Vec<u32> {
        self.get(name).to_dtype(DType::U32).unwrap().to_vec1().unwrap()
    }
}

/// A model whose steps the test chooses.
pub(crate) struct Driven(Session);

impl Driven {
    pub(crate) fn open(model: &str) -> Self {
        Self::open_with(model, BUDGET)
    }

    pub(crate) fn open_with(model: &str, budget: &str) -> Self {
        Self(session(model, budget))
    }

    pub(crate) fn of(session: Session) -> Self {
        Self(session)
    }

    pub(crate) fn open_in(folder: &Path) -> Self {
        Self(session_in(folder, BUDGET))
    }

    pub(crate) fn open_assuming(model: &Path, fact: &str) -> Self {
        let read = ReadOptions { assume: vec![fact.parse().unwrap()], ..ReadOptions::default() };
        Self(Session::open(model, SessionOptions { read, ..options(BUDGET) }).unwrap())
    }

    pub(crate) fn caches(&mut self) -> &mut CacheManager {
        self.0.parts().1.manager_mut().unwrap()
    }

    pub(crate) fn admit(&mut self, tokens: usize) -> SequenceId {
        self.caches().admit(tokens as u32).unwrap()
    }

    /// The logits of every token of a step.
    pub(crate) fn step(&mut self, parts: &[(SequenceId, &[u32])]) -> Tensor {
        let (decoder, caches) = self.0.parts();
        let caches = caches.manager_mut().unwrap();
        let work: Vec<Work> =
            parts.iter().map(|&(sequence, tokens)| Work { sequence, tokens: tokens.len() as u32 }).collect();
        let mut metadata = StepMetadata::default();
        caches.step(&work, &mut metadata).unwrap();
        let tokens: Vec<u32> = parts.iter().flat_map(|(_, tokens)| tokens.iter().copied()).collect();
        let rows: Vec<u32> = (0..tokens.len() as u32).collect();
        decoder.forward(&tokens, &rows, caches, &metadata).unwrap()
    }
}

/// Fails unless all elements are within [`TOLERANCE`] of a golden.
#[track_caller]
pub(crate) fn assert_close(ours: &Tensor, theirs: &Tensor, what: &str) {
    assert_within(TOLERANCE, ours, theirs, what);
}

/// Fails unless all elements of two runs are as near as two can be that are each within [`TOLERANCE`] of the same
/// golden: runs that cut a prompt at other places sum in another order, and no two processors alike.
#[track_caller]
pub(crate) fn assert_alike(ours: &Tensor, theirs: &Tensor, what: &str) {
    assert_within(2.0 * TOLERANCE, ours, theirs, what);
}

#[track_caller]
fn assert_within(tolerance: f32, ours: &Tensor, theirs: &Tensor, what: &str) {
    assert_eq!(ours.dims(), theirs.dims(), "{what}");
    let values = |tensor: &Tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    for (at, (ours, theirs)) in values(ours).into_iter().zip(values(theirs)).enumerate() {
        // Written so that NaN fails.
        assert!((ours - theirs).abs() <= tolerance, "{what}: element {at} is {ours}, expected {theirs}");
    }
}
