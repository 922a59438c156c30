//! What vLLM keeps latents in: a stated dtype of caches is honoured, refused in the engine's words, or not answered.

mod common;

use std::collections::BTreeMap;

use cacheplan_planner::logs::{Fact, Logged};
use cacheplan_serve::{Models, Options, ServeError, answer};

use common::{launch, models, on};

const MODELS: [&str; 9] = [
    "deepseek-ai__DeepSeek-V2-Lite",
    "deepseek-ai__DeepSeek-V3",
    "deepseek-ai__DeepSeek-V3.2",
    "deepseek-ai__DeepSeek-V4-Flash",
    "deepseek-ai__DeepSeek-V4.1-Flash",
    "moonshotai__Kimi-K2-Instruct",
    "zai-org__GLM-4.7-Flash",
    "zai-org__GLM-5.2",
    "zai-org__GLM-5.3-Flash",
];
const VERSIONS: [&str; 10] =
    ["0.12.0", "0.14.0", "0.17.1", "0.18.0", "0.21.0", "0.24.0", "0.28.0", "0.30.0", "0.31.0", "0.33.0"];
const DEVICES: [&str; 4] = ["8xa100-80gb", "8xh100", "8xb200", "8xrtx-pro-6000"];
const WIDE: [&str; 2] = ["bfloat16", "float16"];
const NARROW: [&str; 4] = ["fp8", "fp8_e4m3", "fp8_e5m2", "fp8_ds_mla"];

/// Tokens that it logs; none where nobody answers.
fn tokens(model: &Models, device: &str, version: &str, word: &str) -> Result<Option<u64>, String> {
    let command = format!("vllm serve m --max-model-len 4096 --tensor-parallel-size 4 --kv-cache-dtype {word}");
    let options =
        Options { version: Some(version.to_owned()), cache_bytes: Some(Logged::exact(40 << 30)), ..on(device) };
    match answer(&launch(&command), model.clone(), &options) {
        Ok(answer) => Ok(answer.facts.get(&Fact::Tokens).map(|tokens| tokens.low)),
        Err(ServeError::Engine { said, .. }) => Err(said),
        Err(error) => {
            assert!(!matches!(error, ServeError::Program { .. }), "{error}");
            Ok(None)
        }
    }
}

#[test]
fn a_stated_dtype_of_latents_is_honoured_or_refused() {
    let mut honoured = 0;
    let mut refused = 0;
    for name in MODELS {
        let model = models(name);
        for (version, device) in VERSIONS.iter().flat_map(|version| DEVICES.map(|device| (*version, device))) {
            let of = |word: &'static str| (word, tokens(&model, device, version, word));
            let answers: BTreeMap<&str, _> = WIDE.into_iter().chain(NARROW).map(of).collect();
            let place = format!("{name} {version} {device} {answers:?}");
            for (word, said) in answers.iter().filter_map(|(word, answer)| Some((word, answer.as_ref().err()?))) {
                refused += 1;
                assert!(said.contains(word) || said.contains("kv_cache_dtype"), "{place}");
            }
            let held = |words: &[&str]| -> Vec<u64> {
                words.iter().filter_map(|word| answers[word].as_ref().ok().copied().flatten()).collect()
            };
            // Records of 16 bits hold fewer tokens than any of 8.
            let (wide, narrow) = (held(&WIDE), held(&NARROW));
            honoured += wide.len() + narrow.len();
            assert!(wide.iter().max() < narrow.iter().min() || narrow.is_empty() || wide.is_empty(), "{place}");
        }
    }
    assert!(honoured > 300 && refused > 300, "{honoured} {refused}");
}

#[test]
fn records_of_compressed_attention_are_refused_in_16_bits() {
    for (name, version) in [
        ("deepseek-ai__DeepSeek-V4-Flash", "0.33.0"),
        ("deepseek-ai__DeepSeek-V4-Flash", "0.21.0"),
        ("deepseek-ai__DeepSeek-V4.1-Flash", "0.33.0"),
    ] {
        for device in ["8xh100", "8xb200", "8xrtx-pro-6000"] {
            let said = tokens(&models(name), device, version, "bfloat16").unwrap_err();
            assert!(said.contains("got bfloat16"), "{said}");
            assert!(tokens(&models(name), device, version, "fp8").unwrap().is_some());
        }
    }
    // Before 0.30 it had to be asked for.
    let v4 = models("deepseek-ai__DeepSeek-V4-Flash");
    assert!(tokens(&v4, "8xh100", "0.29.0", "auto").unwrap_err().contains("got auto"));
    assert_eq!(tokens(&v4, "8xh100", "0.30.0", "auto"), tokens(&v4, "8xh100", "0.30.0", "fp8"));
}
