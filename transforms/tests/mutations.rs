//! Mutated real files never make a front-end panic, hang or take much memory.
//!
//! Each runs for a second; `CACHEPLAN_SOAK_SECONDS` runs each longer.

mod support;

use std::alloc::System;
use std::fs;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cacheplan_transforms::{PassContext, ReadOptions, collect, read_config_str, read_model};
use cap::Cap;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, TestRunner};

use support::{fixture, names};

#[global_allocator]
static MEMORY: Cap<System> = Cap::new(System, usize::MAX);

/// What reading a header may take.
const MAX_BYTES: usize = 64 << 20;
/// How long it may take, in a debug build on a busy machine.
const MAX_TIME: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
enum Mutation {
    Set(Index, u8),
    Flip(Index, u8),
    Truncate(Index),
    Delete(Index, u8),
    Repeat(Index, u8),
    Insert(Index, Index),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    prop_oneof![
        (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Mutation::Set(at, byte)),
        (any::<Index>(), 0..8u8).prop_map(|(at, bit)| Mutation::Flip(at, bit)),
        any::<Index>().prop_map(Mutation::Truncate),
        (any::<Index>(), any::<u8>()).prop_map(|(at, length)| Mutation::Delete(at, length)),
        (any::<Index>(), any::<u8>()).prop_map(|(at, length)| Mutation::Repeat(at, length)),
        (any::<Index>(), any::<Index>()).prop_map(|(at, word)| Mutation::Insert(at, word)),
    ]
}

/// Pieces that parsers stumble over.
const WORDS: [&[u8]; 14] = [
    b"-1",
    b"0",
    b"20000",
    b"99999999999999999999",
    b"1e300",
    b"null",
    b"[]",
    b"{}",
    b"\"auto\"",
    b"Infinity",
    b"[[[[[[[[[[[[[[[[",
    &[0xff; 8],
    &[0x80; 10],
    &[0; 8],
];

impl Mutation {
    fn apply(&self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        let length = bytes.len();
        let span = |at: &Index, span: u8| {
            let start = at.index(length);
            start..(start + usize::from(span)).min(length)
        };
        match self {
            Self::Set(at, byte) => bytes[at.index(length)] = *byte,
            Self::Flip(at, bit) => bytes[at.index(length)] ^= 1 << bit,
            Self::Truncate(at) => bytes.truncate(at.index(length)),
            Self::Delete(at, size) => drop(bytes.drain(span(at, *size))),
            Self::Repeat(at, size) => {
                let piece = bytes[span(at, *size)].to_vec();
                let start = at.index(length);
                bytes.splice(start..start, piece);
            }
            Self::Insert(at, word) => {
                let start = at.index(length);
                bytes.splice(start..start, WORDS[word.index(WORDS.len())].iter().copied());
            }
        }
    }
}

/// One front-end at a time, so that the memory counted is its own.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Mutates `seeds` until the time is up and hands each result to `read`.
fn soak(seeds: &[Vec<u8>], read: impl Fn(&[u8])) {
    let _alone = alone();
    let seconds = std::env::var("CACHEPLAN_SOAK_SECONDS").map_or(1, |text| text.parse().unwrap());
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::default() });
    let strategy = (any::<Index>(), prop::collection::vec(mutation(), 1..6));
    let mut cases = 0u64;
    while Instant::now() < deadline {
        let tree = strategy.new_tree(&mut runner).unwrap();
        let outcome = runner.run_one(tree, |(seed, mutations)| {
            let mut bytes = seeds[seed.index(seeds.len())].clone();
            mutations.iter().for_each(|mutation| mutation.apply(&mut bytes));
            let (before, start) = (MEMORY.allocated(), Instant::now());
            read(&bytes);
            prop_assert!(start.elapsed() < MAX_TIME, "took {:?}", start.elapsed());
            let taken = MEMORY.max_allocated().saturating_sub(before);
            prop_assert!(taken <= MAX_BYTES, "took {taken} bytes");
            Ok(())
        });
        if let Err(error) = outcome {
            panic!("after {cases} cases: {error}");
        }
        cases += 1;
    }
    assert!(cases > 0);
}

/// Reads a file, walks its graph if there is one; errors are fine.
fn read_file(path: &Path) {
    if let Ok(mut model) = read_model(path, &ReadOptions::default()) {
        let _ = collect(&mut model.graph, &PassContext::default());
    }
}

/// The beginning of a fixture: a header and a little of what follows.
fn beginning(path: &str, length: usize) -> Vec<u8> {
    let mut bytes = fs::read(fixture(path)).unwrap();
    bytes.truncate(length);
    bytes
}

#[test]
fn configs_survive() {
    let seeds: Vec<Vec<u8>> =
        names("configs").iter().map(|name| beginning(&format!("configs/{name}"), usize::MAX)).collect();
    soak(&seeds, |bytes| {
        let text = String::from_utf8_lossy(bytes);
        if let Ok(mut model) = read_config_str("mutated", &text, &ReadOptions::default()) {
            let _ = collect(&mut model.graph, &PassContext::default());
        }
    });
}

#[test]
fn safetensors_headers_survive() {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(fixture("models/nemotron_h/config.json"), folder.path().join("config.json")).unwrap();
    let path = folder.path().join("model.safetensors");
    soak(
        &[beginning("models/nemotron_h/model.safetensors", 4096), beginning("models/llama/model.safetensors", 3072)],
        |bytes| {
            fs::write(&path, bytes).unwrap();
            read_file(&path);
        },
    );
}

#[test]
fn gguf_headers_survive() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mutated.gguf");
    let files = names("gguf").into_iter().filter(|name| name.ends_with(".gguf"));
    let seeds: Vec<Vec<u8>> = files.map(|name| beginning(&format!("gguf/{name}"), usize::MAX)).collect();
    soak(&seeds, |bytes| {
        fs::write(&path, bytes).unwrap();
        read_file(&path);
    });
}

#[test]
fn onnx_graphs_survive() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mutated.onnx");
    let files = names("onnx").into_iter().filter(|name| name.ends_with(".onnx"));
    let seeds: Vec<Vec<u8>> = files.map(|name| beginning(&format!("onnx/{name}"), usize::MAX)).collect();
    soak(&seeds, |bytes| {
        fs::write(&path, bytes).unwrap();
        read_file(&path);
    });
}

#[test]
fn the_most_layers_that_are_read_stay_within_the_limit() {
    let _alone = alone();
    let layers = 10_000;
    let text = format!(
        r#"{{"model_type": "nemotron_h", "hidden_size": 64, "hybrid_override_pattern": "{}", "mamba_num_heads": 8,
            "mamba_head_dim": 16, "ssm_state_size": 16, "vocab_size": 32}}"#,
        "M".repeat(layers)
    );
    let before = MEMORY.allocated();
    let model = read_config_str("long", &text, &ReadOptions::default()).unwrap();
    let taken = MEMORY.max_allocated() - before;
    assert!(taken <= MAX_BYTES, "{taken} bytes for {} layers", model.info.layers);
}
