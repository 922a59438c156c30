//! Prediction layers beside a reference in float64, and what is generated with their guesses.

use cacheplan_managers::book::{StepMetadata, Work};
use cacheplan_planner::Budget;
use cacheplan_runtime::{Request, Sampling, Session, SessionOptions};
use candle_core::{Device, Tensor};
use rstest::rstest;
use tempfile::TempDir;

use crate::harness::{BUDGET, Golden, assert_close, folder, session_without_reuse};

/// A model with its prediction layer, which transformers would have left out.
pub(crate) fn with_layer(model: &str) -> TempDir {
    let made = TempDir::new().unwrap();
    let own = folder(model);
    std::fs::copy(own.join("config.json"), made.path().join("config.json")).unwrap();
    let load = |file: &std::path::Path| candle_core::safetensors::load(file, &Device::Cpu).unwrap();
    let mut tensors = load(&own.join("model.safetensors"));
    tensors.extend(load(&own.join("../../prediction").join(model).join("mtp.safetensors")));
    candle_core::safetensors::save(&tensors, made.path().join("model.safetensors")).unwrap();
    made
}

fn predicting(model: &str, more: &str) -> Session {
    let budget = format!("{BUDGET}\n[speculation]\ndraft_tokens = 3\nmtp_layers = 1\n{more}");
    let budget = Budget::from_toml(&budget, "test").unwrap();
    let options = SessionOptions { budget, ignore_eos: true, ..SessionOptions::default() };
    Session::open(with_layer(model).path(), options).unwrap()
}

#[rstest]
fn a_layer_says_what_the_reference_does(
    #[values("deepseek_v3", "nemotron_h", "qwen3_next")] model: &str,
    #[values(26, 13, 5, 1)] chunk: usize,
) {
    let ids = Golden::load(model).ids("ids");
    let expected = Golden::load_from(&folder(model).join("../../prediction").join(model)).get("logits");
    let mut session = predicting(model, "");
    let (decoder, caches) = session.parts();
    let caches = caches.manager_mut().unwrap();
    let sequence = caches.admit(27).unwrap();
    let (mut metadata, mut said) = (StepMetadata::default(), Vec::new());
    for start in (0..26).step_by(chunk) {
        let tokens = &ids[start..(start + chunk).min(26)];
        caches.step(&[Work { sequence, tokens: tokens.len() as u32 }], &mut metadata).unwrap();
        let [_, hidden] = decoder.forward_with_hidden(tokens, &[0], caches, &metadata).unwrap();
        let rows: Vec<u32> = (0..tokens.len() as u32).collect();
        let next = &ids[start + 1..][..tokens.len()];
        let [logits, _] = decoder.predict(&hidden, next, &rows, caches, &metadata).unwrap();
        said.push(logits);
    }
    assert_close(&Tensor::cat(&said, 0).unwrap(), &expected, model);
}

#[rstest]
fn its_guesses_do_not_change_what_is_generated(
    #[values("deepseek_v3", "nemotron_h", "qwen3_next")] model: &str,
    #[values("", "scheme = \"replay\"\n")] scheme: &str,
) {
    let states = if model != "deepseek_v3" { "[workload]\ncheckpoints_per_sequence = 2\n" } else { "" };
    let mut guessing = predicting(model, &format!("{scheme}{states}[host]\nbytes = '8MiB'\n"));
    let mut plain = session_without_reuse(model, BUDGET);
    let prompt = |start: u32| (start..start + 20).map(|token| 1 + token * 7 % 90).collect();
    let drawn = Sampling { temperature: 0.8, seed: 3, ..Sampling::default() };
    let repeating = Sampling { frequency_penalty: -4.0, ..Sampling::default() };
    let requests: Vec<Request> = [Sampling::default(), drawn, repeating]
        .into_iter()
        .enumerate()
        .map(|(at, sampling)| Request { sampling, ..Request::new(prompt(at as u32), 24) })
        .collect();
    let expected = plain.generate(&requests, false).unwrap();
    // The second time from what the first has left.
    for _ in 0..2 {
        let found = guessing.generate(&requests, false).unwrap();
        for (found, expected) in found.outputs.iter().zip(&expected.outputs) {
            assert_eq!(found.tokens, expected.tokens);
        }
        assert!(found.speed.accepted_tokens > 0 && found.speed.steps < expected.speed.steps + 2, "{:?}", found.speed);
    }
    assert!(guessing.reuse().unwrap().unwrap().hit_tokens > 0);
    guessing.forget_prefixes().unwrap();
    guessing.caches().manager().unwrap().book().ensure_idle().unwrap();
}

#[rstest]
#[case::no_weights("deepseek_v3", 1, "tensor `model.layers.2.")]
#[case::several("qwen3_next", 2, "state `mtp_layers = 1`")]
#[case::gguf("qwen35.gguf", 1, "GGUF files' are not read")]
#[case::another_model("llama", 1, "has no prediction layers")]
fn a_layer_that_is_not_there_is_named(#[case] model: &str, #[case] layers: u32, #[case] expected: &str) {
    let budget = format!("{BUDGET}\n[speculation]\ndraft_tokens = 3\nmtp_layers = {layers}\n");
    let budget = Budget::from_toml(&budget, "test").unwrap();
    let options = SessionOptions { budget, ..SessionOptions::default() };
    let model = if model.ends_with(".gguf") { folder("../gguf/models").join(model) } else { folder(model) };
    let error = Session::open(&model, options).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}
