//! Reading a config and walking its graph: under 1 ms for every real model, linear in the number of layers.

use std::path::PathBuf;
use std::sync::LazyLock;

use cacheplan_handlers::DType;
use cacheplan_transforms::layers::{Attention, Mamba2};
use cacheplan_transforms::{GraphBuilder, Model, PassContext, ReadOptions};
use divan::Bencher;

/// Every real config but the one that is refused.
static CONFIGS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let entries = std::fs::read_dir(fixture("configs")).expect("the fixtures are there");
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| !name.contains("Phi-4-mini-flash")).collect();
    names.sort();
    names
});

fn main() {
    divan::main();
}

fn fixture(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(path)
}

#[divan::bench(args = &*CONFIGS)]
fn read_and_walk(bencher: Bencher<'_, '_>, name: &String) {
    let text = std::fs::read_to_string(fixture("configs").join(name)).expect("a fixture");
    bencher.bench(|| {
        let mut model = Model::read_config(name, &text, &ReadOptions::default()).expect("a real config");
        model.graph.collect(&PassContext::default()).expect("a graph that can be walked")
    });
}

#[divan::bench(args = ["onnx/hybrid_opset18.onnx", "gguf/nemotron_h.gguf", "models/nemotron_h"])]
fn read_and_walk_other_formats(bencher: Bencher<'_, '_>, path: &str) {
    bencher.bench(|| {
        let mut model = Model::read(&fixture(path), &ReadOptions::default()).expect("a fixture");
        model.graph.collect(&PassContext::default()).expect("a graph that can be walked")
    });
}

fn hybrid(layers: u32) -> Model {
    let mamba = Mamba2 { num_heads: 64, head_dim: 64, d_state: 128, n_groups: 8, d_conv: 4, state_dtype: None };
    let mut builder = GraphBuilder::new("made_up", 4096, DType::Bf16);
    for layer in 0..layers {
        builder.layer();
        if layer % 8 == 0 {
            builder.attention(&Attention::grouped(32, 8, 128));
        } else {
            builder.mamba2(&mamba);
        }
    }
    builder.build()
}

#[divan::bench(args = [100, 1_000, 10_000])]
fn build_layers(bencher: Bencher<'_, '_>, layers: u32) {
    bencher.bench(|| hybrid(layers));
}

#[divan::bench(args = [100, 1_000, 10_000])]
fn walk_layers(bencher: Bencher<'_, '_>, layers: u32) {
    bencher
        .with_inputs(|| hybrid(layers))
        .bench_refs(|model| model.graph.collect(&PassContext::default()).expect("a graph that can be walked"));
}
