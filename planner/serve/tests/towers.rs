//! What a rank holds of towers beside a decoder: vLLM divides their attention and blocks, unless it is told not to.

mod common;

use std::path::PathBuf;

use cacheplan_planner::plan::LedgerItem;
use cacheplan_serve::{Models, request};
use cacheplan_transforms::{Model, ReadOptions};
use rstest::rstest;

use common::{launch, on};

fn published(name: &str) -> Models {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/published");
    Model::read(&folder.join(format!("{name}.json")), &ReadOptions::default()).unwrap().into()
}

fn weights(model: &str, flags: &str) -> u64 {
    let command = launch(format!("vllm serve m --max-model-len 4096 {flags}").trim_end());
    let (engine, request) = request(&command, &published(model), &on("8xh200")).unwrap();
    let lines = request.beside_caches(engine).unwrap();
    lines.iter().filter(|line| line.name == LedgerItem::Weights).map(|line| line.bytes).sum()
}

/// Matrices of layers, and biases of those whose columns are divided: of InternViT-6B, whose 25 heads no two ranks divide, only its blocks.
#[rstest]
#[case::siglip("gemma3_27b", 27 * (4 * 1152 * 1152 + 3 * 1152 + 2 * 1152 * 4304 + 4304))]
#[case::intern_vit("internvl3_38b", 45 * (2 * 3200 * 12_800 + 12_800))]
#[case::gated("qwen25vl72b", 32 * (4 * 1280 * 1280 + 3 * 1280 + 3 * 1280 * 3456 + 2 * 3456) + 5120 * (5120 + 1 + 8192))]
#[case::pixtral("mistral_small_32", 24 * 1024 * (4 * 1024 + 3 * 4096))]
fn ranks_divide_the_matrices_of_a_tower(#[case] model: &str, #[case] divided: u64, #[values(2, 4, 8)] tp: u64) {
    let [usual, same, whole] = ["", " --mm-encoder-tp-mode weights", " --mm-encoder-tp-mode data"]
        .map(|mode| weights(model, &format!("-tp {tp}{mode}")));
    assert_eq!(usual, same);
    let saved = 2 * divided - (2 * divided).div_ceil(tp);
    // Rounding of a class.
    assert!((whole - usual).abs_diff(saved) <= 2, "{model}: {usual} {whole} {saved}");
    let [one, other] = ["", " --mm-encoder-tp-mode data"].map(|mode| weights(model, &format!("-tp 1{mode}")));
    assert_eq!(one, other);
}

/// A server of text alone loads nothing of them, however they would be divided.
#[rstest]
fn a_server_of_text_has_no_tower(#[values("", " --mm-encoder-tp-mode data")] mode: &str) {
    for model in ["gemma3_27b", "internvl3_38b", "qwen25vl72b", "mistral_small_32"] {
        let [with, without] = ["", " --language-model-only"].map(|flag| weights(model, &format!("-tp 4{mode}{flag}")));
        assert!(with > without + (100 << 20), "{model}");
        assert_eq!(without, weights(model, "-tp 4 --language-model-only"));
    }
}

/// A stage of a pipeline has its share of the layers; towers and token embeddings are on the first, the head on the last.
#[rstest]
#[case("gemma3_27b", 262_208 * 5376 * 2, 262_208 * 5376 * 2)]
#[case("qwen25vl72b", 152_064 * 8192 * 2, 152_064 * 8192 * 2)]
fn the_ends_of_a_pipeline_hold_what_stands_beside_layers(#[case] model: &str, #[case] tokens: u64, #[case] head: u64) {
    let command = launch("vllm serve m --max-model-len 4096 -pp 4");
    let (engine, request) = request(&command, &published(model), &on("8xh200")).unwrap();
    let of_stage = |stage: u32| {
        let lines = request.clone().of_stage(stage).beside_caches(engine).unwrap();
        lines.iter().filter(|line| line.name == LedgerItem::Weights).map(|line| line.bytes).sum::<u64>()
    };
    let [first, second, third, last] = [0, 1, 2, 3].map(of_stage);
    assert_eq!(second, third);
    assert_eq!(last - second, head);
    let [with, without] = ["", "--language-model-only"].map(|flag| weights(model, flag));
    // Rounding of the classes of layers.
    assert!((first - second).abs_diff(tokens + with - without) <= 8, "{first} {second}");
}
