//! Mutated real files never make a front-end panic, hang or take much memory.
//!
//! Each runs for a second; `CACHEPLAN_SOAK_SECONDS` runs each longer.

mod support;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use cacheplan_transforms::{FrontendError, Model, PassContext, ReadOptions, collect, read_config_str, read_model};
use cpu_time::ThreadTime;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, TestRunner};
use rstest::rstest;

use support::{fixture, names};

/// What reading a header may take.
const MAX_BYTES: u64 = 64 << 20;
/// What walking the graph of the largest model may take besides.
const MAX_WALK_BYTES: u64 = 128 << 20;
/// How long it may take of a processor, in a debug build.
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

/// Mutates `seeds` until the time is up and walks what `read` makes of each result; errors are fine.
#[expect(clippy::print_stdout, reason = "a soak says how much it did")]
fn soak(seeds: &[Vec<u8>], read: impl Fn(&[u8]) -> Result<Model, FrontendError>) {
    let seconds = std::env::var("CACHEPLAN_SOAK_SECONDS").map_or(1, |text| text.parse().unwrap());
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::default() });
    let strategy = (any::<Index>(), prop::collection::vec(mutation(), 1..6));
    let (mut cases, mut models) = (0u64, 0u64);
    while Instant::now() < deadline {
        let tree = strategy.new_tree(&mut runner).unwrap();
        let walked = std::cell::Cell::new(false);
        let outcome = runner.run_one(tree, |(seed, mutations)| {
            let mut bytes = seeds[seed.index(seeds.len())].clone();
            mutations.iter().for_each(|mutation| mutation.apply(&mut bytes));
            let start = ThreadTime::now();
            walked.set(walk_within_limits(|| read(&bytes)));
            prop_assert!(start.elapsed() < MAX_TIME, "took {:?}", start.elapsed());
            Ok(())
        });
        if let Err(error) = outcome {
            panic!("after {cases} cases: {error}");
        }
        cases += 1;
        models += u64::from(walked.get());
    }
    println!("{cases} cases, {models} of them still models");
    assert!(cases > 0);
}

/// Whether what is read is a model whose graph can be walked.
fn walk_within_limits(read: impl FnOnce() -> Result<Model, FrontendError>) -> bool {
    let (mut model, mut walked) = (None, false);
    let memory = allocation_counter::measure(|| model = read().ok());
    assert!(memory.bytes_max <= MAX_BYTES, "reading took {} bytes", memory.bytes_max);
    let context = PassContext { speculation: true, ..PassContext::default() };
    let memory = allocation_counter::measure(|| {
        walked = model.is_some_and(|mut model| collect(&mut model.graph, &context).is_ok());
    });
    assert!(memory.bytes_max <= MAX_WALK_BYTES, "walking took {} bytes", memory.bytes_max);
    walked
}

fn read(path: &Path) -> Result<Model, FrontendError> {
    read_model(path, &ReadOptions::default())
}

fn read_text(bytes: &[u8]) -> Result<Model, FrontendError> {
    read_config_str("mutated", &String::from_utf8_lossy(bytes), &ReadOptions::default())
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
    soak(&seeds, read_text);
}

#[test]
fn runtime_configs_survive() {
    soak(&[beginning("edge_llm/config.json", usize::MAX)], read_text);
}

#[test]
fn descriptions_survive() {
    let guide = fs::read_to_string(fixture("../../docs/adding-a-model.md")).unwrap();
    let block = |language: &str| {
        let start = guide.split_once(&format!("```{language}\n")).unwrap().1;
        start.split_once("```").unwrap().0.to_owned()
    };
    let config = block("json");
    soak(&[block("toml").into_bytes()], |bytes| {
        let descriptions = vec![String::from_utf8_lossy(bytes).into_owned()];
        read_config_str("mutated", &config, &ReadOptions { descriptions, ..ReadOptions::default() })
    });
}

#[test]
fn safetensors_headers_survive() {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(fixture("models/nemotron_h/config.json"), folder.path().join("config.json")).unwrap();
    let path = folder.path().join("model.safetensors");
    let seeds = [("nemotron_h", 4096), ("llama", 3072)];
    let seeds = seeds.map(|(model, length)| beginning(&format!("models/{model}/model.safetensors"), length));
    soak(&seeds, |bytes| {
        fs::write(&path, bytes).unwrap();
        read(&path)
    });
}

#[test]
fn indices_of_shards_survive() {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(fixture("models/llama").join(file), folder.path().join(file)).unwrap();
    }
    let index = r#"{"metadata": {"total_size": 12345},
        "weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}"#;
    soak(&[index.as_bytes().to_vec()], |bytes| {
        fs::write(folder.path().join("model.safetensors.index.json"), bytes).unwrap();
        read(folder.path())
    });
}

#[test]
fn gguf_headers_survive() {
    files_survive("gguf", ".gguf");
}

#[test]
fn onnx_graphs_survive() {
    files_survive("onnx", ".onnx");
}

/// Mutates all files of a folder that have this extension.
fn files_survive(fixtures: &str, extension: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(format!("mutated{extension}"));
    let files = names(fixtures).into_iter().filter(|name| name.ends_with(extension));
    let seeds: Vec<Vec<u8>> = files.map(|name| beginning(&format!("{fixtures}/{name}"), usize::MAX)).collect();
    soak(&seeds, |bytes| {
        fs::write(&path, bytes).unwrap();
        read(&path)
    });
}

#[rstest]
#[case::hybrid(
    r#""model_type": "nemotron_h", "hidden_size": 64, "mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 16,
       "vocab_size": 32, "hybrid_override_pattern""#,
    format!("{:?}", "M".repeat(10_000))
)]
#[case::recurrent(
    r#""d_model": 64, "d_intermediate": 0, "vocab_size": 32, "ssm_cfg": {"layer": "Mamba2"}, "attn_layer_idx": [],
       "attn_cfg": {}, "rms_norm": true, "tie_embeddings": true, "n_layer""#,
    "10000".to_owned()
)]
fn the_most_layers_that_are_read_stay_within_the_limit(#[case] config: &str, #[case] layers: String) {
    let text = format!("{{{config}: {layers}}}");
    assert!(walk_within_limits(|| read_text(text.as_bytes())));
}
