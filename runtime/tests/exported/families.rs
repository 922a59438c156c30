//! Every family of models in exported graphs.

use std::path::PathBuf;

use cacheplan_runtime::{GraphDType, GraphExport, Session, SessionOptions};
use rstest::rstest;
use serde_json::Value;

use crate::exporter::{as_said, export};
use crate::{admit, fixture, options, step};

/// Logits are at most so far from the native ones, of the largest where that is beyond 1: other orders of the same sums in
/// f32, over a handful of layers.
const TOLERANCE: f32 = 2e-4;

/// A prompt, tokens behind it one by one, and four at once.
fn logits(session: &mut Session, vocab_size: u32) -> Vec<Vec<f32>> {
    let tokens: Vec<u32> = (0..20).map(|n| (n * 37 + 5) % vocab_size).collect();
    let sequence = admit(session, 13);
    [0..13, 13..14, 14..15, 15..16, 16..20].map(|part| step(session, sequence, &tokens[part])).to_vec()
}

#[rstest]
#[case::mamba_2_and_attention("models/bamba")]
#[case::an_activation_of_erf("variants/bamba_gelu")]
#[case::an_odd_rotation("variants/bamba_odd_rotation")]
#[case::groups_worth_their_best_expert("models/deepseek_v2")]
#[case::latent_attention_and_groups_of_experts("models/deepseek_v3")]
#[case::yarn("variants/deepseek_v3_yarn")]
#[case::mixers_side_by_side("models/falcon_h1")]
#[case::windows("models/gemma3")]
#[case::heads_of_two_sizes_and_inputs_of_layers("models/gemma4")]
#[case::experts_beside_an_mlp("models/gemma4_moe")]
#[case::layers_that_read_the_keys_of_others("variants/gemma4_older_sizes")]
#[case::sinks_and_clamped_experts("models/gpt_oss")]
#[case::shared_experts("models/granitemoehybrid")]
#[case::mamba_1_and_experts("models/jamba")]
#[case::a_decay_per_channel("models/kimi_linear")]
#[case::short_convolutions("models/lfm2")]
#[case::short_convolutions_and_experts("models/lfm2_moe")]
#[case::only_attention("models/llama")]
#[case::only_mamba_1("models/mamba")]
#[case::only_mamba_2("models/mamba2")]
#[case::a_fixed_decay("models/minimax")]
#[case::no_rotation("variants/mistral_window")]
#[case::experts_by_softmax("variants/mixtral_window")]
#[case::experts_by_sigmoid("models/nemotron_h")]
#[case::narrow_experts("variants/nemotron_h_latent_experts")]
#[case::biases("variants/qwen2_window")]
#[case::norms_of_all_heads("models/olmo_hybrid")]
#[case::norms_of_heads("models/qwen3")]
#[case::gated_delta_nets("models/qwen3_5_text")]
#[case::some_layers_with_experts("variants/qwen3_moe_sparse_step")]
#[case::gated_delta_nets_and_a_shared_expert("models/qwen3_next")]
#[case::a_shared_transformer("models/zamba2")]
#[case::neighbours_rotated_together("gguf/models/llama.gguf")]
#[case::blocks_of_a_file("gguf/models/granitehybrid.gguf")]
#[case::adapters("variants/zamba2_attention_adapters")]
fn a_family_gives_the_native_logits(#[case] model: &str) {
    // Files of blocks state 16 bits, in which keys would be kept where there are any.
    let keeps_keys = !matches!(model, "models/mamba" | "models/mamba2");
    let budget = if keeps_keys { "max_seq_len = 48\n[dtypes]\nkv = \"f32\"\n" } else { "max_seq_len = 48\n" };
    let model = fixture(model);
    let mut native = Session::open(&model, options(budget)).unwrap();
    let vocab_size = native.parts().0.vocab_size() as u32;
    let expected = logits(&mut native, vocab_size);
    for buckets in [&[None, Some(1)][..], &[Some(16), Some(1)]] {
        let folder = tempfile::tempdir().unwrap();
        GraphExport { dtype: Some(GraphDType::F32), ..as_said(buckets, 48) }.write(&model, folder.path()).unwrap();
        let options = SessionOptions { static_graphs: Some(folder.path().to_owned()), ..options("") };
        let found = logits(&mut Session::open(&model, options).unwrap(), vocab_size);
        for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let furthest = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            let largest = expected.iter().fold(1f32, |most, logit| most.max(logit.abs()));
            assert!(furthest <= TOLERANCE * largest, "{buckets:?}, call {at}: {furthest}, of {largest}");
        }
    }
}

/// The folders of models of each type.
fn fixtures() -> Vec<(String, PathBuf)> {
    let folders = ["models", "variants"].map(|folder| std::fs::read_dir(fixture(folder)).unwrap());
    let found = folders.into_iter().flatten().filter_map(|entry| {
        let folder = entry.unwrap().path();
        let config = std::fs::read(folder.join("config.json")).ok()?;
        let config: Value = serde_json::from_slice(&config).unwrap();
        Some((config["model_type"].as_str()?.to_owned(), folder))
    });
    found.collect()
}

#[test]
fn every_model_type_that_runs_exports_as_documented() {
    let read = |document: &str| std::fs::read_to_string(fixture("../..").join(document)).unwrap();
    let graphs = read("docs/graphs.md");
    let (_, but) = graphs.split_once("Every model type that `run` computes is exported, but ").unwrap();
    let (but, _) = but.split_once(';').unwrap();
    let refused: Vec<&str> = but.split('`').skip(1).step_by(2).collect();
    let readme = read("README.md");
    let (_, list) = readme.split_once("`run` computes models of type ").unwrap();
    let (list, _) = list.split_once(", with weights in").unwrap();
    let fixtures = fixtures();
    for model_type in list.split('`').skip(1).step_by(2) {
        let mut folders = fixtures.iter().filter(|(own, _)| own == model_type).peekable();
        assert!(folders.peek().is_some(), "{model_type} has no fixture");
        for (_, folder) in folders {
            let out = tempfile::tempdir().unwrap();
            let exported = export(folder, &[Some(1)], 16, out.path());
            if refused.contains(&model_type) {
                let error = exported.unwrap_err().to_string();
                assert!(error.contains("it has several residual streams"), "{error}");
            } else {
                exported.unwrap();
            }
        }
    }
}
