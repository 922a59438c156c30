//! What the integration tests share.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use cacheplan_handlers::{DType, Growth, Kind, ResourceHandler};
use cacheplan_transforms::{Collected, Model, PassContext, ReadOptions, Resource, Resources};

/// A file or folder of the fixtures.
pub(crate) fn fixture(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(path)
}

/// Reads a fixture without any assumption.
pub(crate) fn read(path: &str) -> Model {
    Model::read(&fixture(path), &ReadOptions::default()).unwrap()
}

/// Reads a fixture and runs the passes over it.
pub(crate) fn collected(path: &str) -> (Model, Collected) {
    let mut model = read(path);
    let collected = model.graph.collect(&PassContext::default()).unwrap();
    (model, collected)
}

/// Parameters that transformers allocates and no checkpoint has: those of LongCat's experts that pass a token on as it is.
pub(crate) fn not_stored(config: &serde_json::Value) -> u64 {
    let of = |key: &str| config[key].as_u64().unwrap_or(0);
    let experts = if config["model_type"] == "longcat_flash" { of("zero_expert_num") } else { 0 };
    experts * 2 * of("expert_ffn_hidden_size") * of("hidden_size") * of("num_layers")
}

/// How many resources there are of one kind.
pub(crate) fn count(resources: &Resources, kind: &Kind) -> usize {
    resources.of_kind(kind).count()
}

/// Bytes that one more token costs, before any window stops the growth.
pub(crate) fn bytes_per_token(resources: &Resources) -> u64 {
    resources
        .iter()
        .filter(|resource| resource.handler.is_paged())
        .map(|resource| {
            let (bytes, tokens) = resource.handler.bytes_per_token().unwrap();
            bytes / tokens
        })
        .sum()
}

/// Bytes of the per-sequence resources of one kind.
pub(crate) fn state_bytes(resources: &Resources, kind: &Kind) -> u64 {
    resources.of_kind(kind).map(|resource| resource.handler.unit_bytes()).sum()
}

/// What the description calls each layer.
pub(crate) fn layer_kinds(model: &Model) -> Vec<&str> {
    model.layers.iter().map(|layer| layer.kind.as_str()).collect()
}

/// The names of all files in a folder of the fixtures, sorted.
pub(crate) fn names(folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(fixture(folder)).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// What a plan depends on: every resource's name, layer and handler, in registration order.
pub(crate) fn essence(resources: &Resources) -> Vec<(String, Option<u32>, ResourceHandler)> {
    resources.iter().map(|resource| (resource.name.clone(), resource.layer, resource.handler.clone())).collect()
}

/// Neighbouring layers as ranges: `0-3, 5`.
pub(crate) fn ranges(layers: &[u32]) -> String {
    let runs = layers.chunk_by(|left, right| left + 1 == *right);
    let texts = runs.map(|run| match (run[0], run[run.len() - 1]) {
        (first, last) if first == last => first.to_string(),
        (first, last) => format!("{first}-{last}"),
    });
    texts.collect::<Vec<_>>().join(", ")
}

/// What each layer caches, in the words of what `tests/fixtures/transformers/make.py` writes.
pub(crate) fn caches(mut model: Model) -> BTreeMap<String, String> {
    let resources = model.graph.collect(&PassContext::default()).unwrap().resources;
    let mut by_layer: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    // What an entry in the making is made of is kept of all tokens there.
    for resource in resources.iter().filter(|resource| resource.handler.as_ring().is_none()) {
        by_layer.entry(resource.layer.unwrap()).or_default().push(words(resource, model.info.dtype));
    }
    let mut layers: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for (layer, mut found) in by_layer {
        found.sort();
        layers.entry(found.join(" + ")).or_default().push(layer);
    }
    layers.into_iter().map(|(words, layers)| (words, ranges(&layers))).collect()
}

/// What is kept, and in which dtype where it is not the `usual` one of the weights.
fn words(resource: &Resource, usual: DType) -> String {
    let handler = &resource.handler;
    let sizes: Vec<u64> = handler.shape().iter().map(|dim| dim.size).collect();
    let window = match handler.growth() {
        Growth::Paged { window: Some(window), .. } => format!(" window {window}"),
        _ => String::new(),
    };
    let words = match handler.kind() {
        // A row with a key and a value of other sizes.
        Kind::KvPaged if sizes[0] == 1 => format!("joint {}x{}{window}", sizes[1], sizes[2]),
        Kind::KvPaged => format!("kv {}x{}{window}", sizes[1], sizes[2]),
        Kind::MlaPaged => format!("latent {}{window}", sizes[sizes.len() - 1]),
        Kind::CausalConv => format!("conv {}x{}", sizes[0], sizes[1]),
        Kind::IndexKey => format!("index {}", sizes[0]),
        _ if handler.is_paged() => format!("row {}", sizes.iter().product::<u64>()),
        _ => format!("state {}", sizes.iter().product::<u64>()),
    };
    match handler.dtype() {
        dtype if dtype == usual => words,
        dtype => format!("{words} {dtype}"),
    }
}

/// The same words without the dtypes behind them.
pub(crate) fn without_dtypes(caches: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let plain = |word: &str| match word.rsplit_once(' ') {
        Some((plain, last)) if last.parse::<DType>().is_ok() => plain.to_owned(),
        _ => word.to_owned(),
    };
    let words = |words: &String| words.split(" + ").map(plain).collect::<Vec<_>>().join(" + ");
    caches.iter().map(|(all, layers)| (words(all), layers.clone())).collect()
}

/// What is known to be otherwise than in transformers: rows of a type and a key, or of a type and `dtypes`.
pub(crate) fn otherwise() -> BTreeSet<String> {
    let text = std::fs::read_to_string(fixture("transformers/keys_otherwise.tsv")).unwrap();
    text.lines().map(|line| line.split('\t').take(2).collect::<Vec<_>>().join(" ")).collect()
}
