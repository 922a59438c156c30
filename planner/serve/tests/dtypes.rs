//! What vLLM keeps latents in: a stated dtype of caches is honoured, refused in the engine's words, or not answered.

mod common;

use std::collections::BTreeMap;

use cacheplan_handlers::{DType, Kind};
use cacheplan_planner::logs::{Fact, Logged};
use cacheplan_planner::{Budget, EngineSpec};
use cacheplan_serve::{Models, Options, ServeError, answer};
use cacheplan_transforms::{Model, ReadOptions};
use rstest::rstest;

use common::{changed, launch, models, on};

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
    let glm = models("zai-org__GLM-5.2");
    assert!(tokens(&glm, "8xb200", "0.33.0", "auto").unwrap() > tokens(&glm, "8xb200", "0.33.0", "bfloat16").unwrap());
    // Before 0.30 it had to be asked for.
    let v4 = models("deepseek-ai__DeepSeek-V4-Flash");
    assert!(tokens(&v4, "8xh100", "0.29.0", "auto").unwrap_err().contains("got auto"));
    assert_eq!(tokens(&v4, "8xh100", "0.30.0", "auto"), tokens(&v4, "8xh100", "0.30.0", "fp8"));
}

#[test]
fn a_scheme_of_the_checkpoint_stands_above_the_command_in_some_releases() {
    let scheme = serde_json::json!({ "quant_method": "compressed-tensors", "kv_cache_scheme": { "num_bits": 8, "type": "float" } });
    let model = changed("Qwen__Qwen3-8B", |config| config["quantization_config"] = scheme.clone());
    let of = |version: &str, word: &str| tokens(&model, "8xh100", version, word).unwrap().unwrap();
    for version in ["0.15.1", "0.19.0", "0.21.0"] {
        assert_eq!(of(version, "bfloat16"), of(version, "fp8"), "{version}");
    }
    for version in ["0.14.0", "0.22.0", "0.33.0"] {
        assert!(of(version, "bfloat16") < of(version, "fp8"), "{version}");
    }
}

#[test]
fn another_float_of_16_bits_than_the_models_is_refused_since_0_33() {
    let model = models("Qwen__Qwen3-8B");
    assert!(tokens(&model, "8xh100", "0.32.0", "float16").is_ok());
    let said = tokens(&model, "8xh100", "0.33.0", "float16").unwrap_err();
    assert_eq!(
        said,
        "kv_cache_dtype=\"float16\" is incompatible with dtype=\"bfloat16\". Please set `--kv-cache-dtype` to `auto` or `bfloat16`."
    );
}

/// Of which models a config tells vLLM the dtype of states; Kimi's delta attention has it in float32 anyway.
#[rstest]
#[case("starts/configs/nvidia__Nemotron-3-Nano-Omni-30B-A3B-Reasoning", "0.33.0", DType::Bf16)]
#[case("configs/nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "0.12.0", DType::Bf16)]
#[case("configs/nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "0.13.0", DType::F32)]
#[case("configs/Qwen__Qwen3.5-9B", "0.17.0", DType::F32)]
#[case("configs/Qwen__Qwen3-Next-80B-A3B-Thinking", "0.33.0", DType::Bf16)]
#[case("configs/nvidia__Nemotron-H-8B-Base-8K", "0.19.0", DType::Bf16)]
#[case("configs/nvidia__Nemotron-H-8B-Base-8K", "0.20.0", DType::F32)]
#[case("published/ling_3_flash", "0.33.0", DType::F32)]
#[case("published/ling_2_6_1t", "0.33.0", DType::Bf16)]
fn states_are_what_vllm_reads_of_a_config(#[case] file: &str, #[case] version: &str, #[case] dtype: DType) {
    let path = format!("{}/../../tests/fixtures/{file}.json", env!("CARGO_MANIFEST_DIR"));
    let mut model = Model::read(path.as_ref(), &ReadOptions::default()).unwrap();
    let engine: EngineSpec = format!("vllm@{version}").parse().unwrap();
    let context = Budget::default().engine_context(&model.info, engine);
    let resources = model.graph.collect(&context).unwrap().resources;
    let states: Vec<DType> = resources.of_kind(&Kind::Ssm).map(|state| state.handler.dtype()).collect();
    assert!(!states.is_empty() && states.iter().all(|state| *state == dtype), "{states:?}");
}

#[test]
fn a_step_of_a_server_holds_an_item_of_gemma_4() {
    const MODEL: &str = "google__gemma-4-26B-A4B";
    let of = |model: Models, version: &str, flags: &str| {
        let options = Options { version: Some(version.to_owned()), ..on("l40s") };
        let command = format!("vllm serve m --max-model-len 4096 --kv-cache-memory-bytes 8000000000{flags}");
        answer(&launch(&command), model, &options).unwrap().limits.max_num_tokens
    };
    let step = |version: &str, flags: &str| of(models(MODEL), version, flags);
    assert_eq!(step("0.21.0", ""), 2048);
    assert_eq!(step("0.22.0", ""), 32 * 78);
    assert_eq!(step("0.33.0", " --max-num-batched-tokens 3000"), 3000);
    assert_eq!(step("0.33.0", " --language-model-only"), 2048);
    assert_eq!(step("0.26.0", " --language-model-only"), 32 * 78);
    assert_eq!(step("0.33.0", " --limit-mm-per-prompt {\"image\":0,\"video\":0,\"audio\":0}"), 2048);
    // One that also hears takes items until it is told not to.
    let hears =
        || changed(MODEL, |config| config["audio_config"] = serde_json::json!({ "model_type": "gemma4_audio" }));
    assert_eq!(of(hears(), "0.33.0", " --limit-mm-per-prompt {\"image\":0,\"video\":0}"), 32 * 78);
    assert_eq!(of(hears(), "0.33.0", " --limit-mm-per-prompt {\"image\":0,\"video\":0,\"audio\":0}"), 2048);
}
