//! Which models vLLM drafts with by layers of their own, and what a checkpoint that is named beside such a method adds.

mod common;

use std::path::Path;

use cacheplan_planner::logs::{Fact, Logged};
use cacheplan_planner::plan::LedgerItem;
use cacheplan_serve::{Models, Options, answer, request};
use cacheplan_transforms::{Model, ReadOptions};
use rstest::rstest;
use serde_json::json;

use common::{changed, launch, models, on};

/// Of the zoo, as `SpeculativeConfig.hf_config_override` of 0.33.0 was asked about each config, with the layers that are run.
const HEADS: [(&str, u64); 22] = [
    ("Qwen__Qwen3-Next-80B-A3B-Thinking", 1),
    ("Qwen__Qwen3.5-122B-A10B", 1),
    ("Qwen__Qwen3.5-27B", 1),
    ("Qwen__Qwen3.5-2B", 1),
    ("Qwen__Qwen3.5-35B-A3B", 1),
    ("Qwen__Qwen3.5-4B", 1),
    ("Qwen__Qwen3.5-9B", 1),
    ("deepseek-ai__DeepSeek-R1", 1),
    ("deepseek-ai__DeepSeek-V3.2", 1),
    ("deepseek-ai__DeepSeek-V3", 1),
    ("deepseek-ai__DeepSeek-V4-Flash", 1),
    ("nvidia__NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16", 1),
    ("nvidia__NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4", 1),
    ("nvidia__Qwen3.6-35B-A3B-NVFP4", 1),
    ("transformers__qwen4_exp", 1),
    ("zai-org__GLM-4.5", 1),
    ("zai-org__GLM-4.7-FP8", 1),
    ("zai-org__GLM-4.7-Flash", 1),
    ("zai-org__GLM-5.2", 1),
    ("zai-org__GLM-5.3-Flash", 1),
    // Of these the engine says why it does not.
    ("deepseek-ai__DeepSeek-V4.1-Flash", 0),
    ("moonshotai__Kimi-K3", 0),
];

fn with_bytes() -> Options {
    Options { version: Some("0.33.0".into()), cache_bytes: Some(Logged::exact(40 << 30)), ..on("b200") }
}

fn spoken(method: &str, more: &str) -> String {
    format!("vllm serve m --max-model-len 4096 --speculative-config {{\"method\":\"{method}\"{more}}}")
}

#[test]
fn only_models_with_layers_that_predict_draft_by_them() {
    let zoo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/configs");
    let (mut with, mut without) = (0, 0);
    for entry in std::fs::read_dir(zoo).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        let Ok(model) = Model::read(&path, &ReadOptions::default()) else { continue };
        let models = Models::from(model);
        let command = launch(&spoken("mtp", ",\"num_speculative_tokens\":1"));
        let found = request(&command, &models, &with_bytes()).map(|(_, request)| request.budget().unwrap().clone());
        match HEADS.iter().find(|(head, _)| *head == name) {
            Some((_, layers @ 1..)) => {
                let speculation = found.unwrap_or_else(|error| panic!("{name}: {error}")).speculation.unwrap();
                assert_eq!(u64::from(speculation.mtp_layers), *layers, "{name}");
                with += 1;
            }
            _ => {
                assert!(found.is_err(), "{name}");
                without += 1;
            }
        }
    }
    assert!(with == 20 && without > 40, "{with} {without}");
}

/// As many layers as the config says, and tokens that they divide.
#[rstest]
#[case(Some(3), 3, Ok(3))]
#[case(Some(3), 2, Ok(3))]
#[case(Some(3), 4, Err("num_speculative_tokens:4 must be divisible by n_predict=3"))]
#[case(Some(0), 1, Err("integer modulo by zero"))]
#[case(None, 5, Ok(1))]
fn a_head_has_the_layers_that_its_config_says(
    #[case] layers: Option<u64>,
    #[case] tokens: u64,
    #[case] expected: Result<u32, &str>,
) {
    let models = changed("zai-org__GLM-4.5", |config| match layers {
        Some(layers) => config["num_nextn_predict_layers"] = layers.into(),
        None => drop(config.as_object_mut().unwrap().remove("num_nextn_predict_layers")),
    });
    let command = launch(&spoken("mtp", &format!(",\"num_speculative_tokens\":{tokens}")));
    let found = request(&command, &models, &with_bytes());
    match (found, expected) {
        (Ok((_, request)), Ok(layers)) => {
            assert_eq!(request.budget().unwrap().speculation.as_ref().unwrap().mtp_layers, layers);
        }
        (Err(error), Err(said)) => assert!(error.to_string().contains(said), "{error}"),
        (found, _) => panic!("{:?}", found.map(|_| ())),
    }
}

/// All layers of Gemma 4's assistants read the caches of the model that they assist.
fn assistant() -> Models {
    let text = json!({
        "model_type": "gemma4_text", "hidden_size": 1024, "intermediate_size": 8192, "num_hidden_layers": 4,
        "num_attention_heads": 16, "num_key_value_heads": 8, "num_global_key_value_heads": 2, "head_dim": 256,
        "global_head_dim": 512, "num_kv_shared_layers": 4, "sliding_window": 1024, "attention_k_eq_v": true,
        "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
        "vocab_size": 262_144, "max_position_embeddings": 262_144, "hidden_size_per_layer_input": 0, "dtype": "bfloat16",
    });
    let config = json!({
        "architectures": ["Gemma4AssistantForCausalLM"], "model_type": "gemma4_assistant", "backbone_hidden_size": 2816,
        "text_config": text,
    });
    Model::read_config("config.json", &config.to_string(), &ReadOptions::default()).unwrap().into()
}

#[rstest]
#[case("mtp")]
#[case("draft_model")]
fn an_assistant_adds_weights_and_no_caches(#[case] method: &str) {
    const GEMMA: &str = "google__gemma-4-26B-A4B";
    let command = launch(&spoken(method, ",\"model\":\"google/x-assistant\",\"num_speculative_tokens\":2"));
    let drafts = Models { draft: Some(assistant().model), ..models(GEMMA) };
    let alone = launch("vllm serve m --max-model-len 4096");
    let of = |launch, models, options: &Options| answer(launch, models, options).unwrap().facts;
    let [with, without] = [of(&command, drafts.clone(), &with_bytes()), of(&alone, models(GEMMA), &with_bytes())];
    for fact in [Fact::Tokens, Fact::Concurrency, Fact::Groups] {
        assert_eq!(with.get(&fact), without.get(&fact), "{fact:?}");
    }
    // Embeddings, four layers, and what leads to the model and back.
    let weights = assistant().model.info().weights.unwrap().bytes;
    let layers = 3 * 2 * 1024 * 16 * 256 + 2 * 1024 * 16 * 512 + 4 * 3 * 1024 * 8192;
    let matrices = 2 * (262_144 * 1024 + layers + 3 * 2816 * 1024);
    assert!((matrices..matrices + (1 << 20)).contains(&weights), "{weights} {matrices}");
    let (engine, request) = request(&command, &drafts, &on("h100")).unwrap();
    let lines = request.beside_caches(engine).unwrap();
    let of_drafts = lines.iter().filter(|line| line.name == LedgerItem::DraftWeights).map(|line| line.bytes);
    assert_eq!(of_drafts.sum::<u64>(), weights);
}

/// A model beside the method drafts by its own layers that predict, if it has any.
#[rstest]
#[case("zai-org__GLM-4.5", "zai-org__GLM-4.5", None)]
#[case("Qwen__Qwen3-8B", "meta-llama__Llama-3.1-8B-Instruct", Some("Unsupported speculative method: 'mtp'"))]
#[case("Qwen__Qwen3-8B", "zai-org__GLM-4.5", Some("the layers of glm4_moe that predict"))]
fn what_is_named_beside_the_method_is_asked_what_it_is(
    #[case] model: &str,
    #[case] draft: &str,
    #[case] refused: Option<&str>,
) {
    let of = |more: &str, draft: Option<&str>| {
        let command = launch(&spoken("mtp", &format!("{more},\"num_speculative_tokens\":1")));
        let draft = draft.map(|name| models(name).model);
        answer(&command, Models { draft, ..models(model) }, &with_bytes()).map(|found| found.facts)
    };
    match (of(",\"model\":\"org/head\"", Some(draft)), refused) {
        (Ok(found), None) => assert_eq!(found, of("", None).unwrap()),
        (Err(error), Some(said)) => assert!(error.to_string().contains(said), "{error}"),
        (found, _) => panic!("{found:?}"),
    }
}

/// A model drafts by itself over the ranks of the model that is served, which only the older runner is asked about.
#[rstest]
#[case("", 1, None)]
#[case("VLLM_USE_V2_MODEL_RUNNER=1 ", 1, None)]
#[case("VLLM_USE_V2_MODEL_RUNNER=0 ", 4, None)]
#[case("VLLM_USE_V2_MODEL_RUNNER=0 ", 1, Some("must be the same. Got 1 and 4"))]
fn a_model_that_drafts_is_divided_as_the_served_one(
    #[case] variable: &str,
    #[case] ranks: u64,
    #[case] refused: Option<&str>,
) {
    let config = format!("{{\"model\":\"d\",\"num_speculative_tokens\":3,\"draft_tensor_parallel_size\":{ranks}}}");
    let command = launch(&format!("{variable}vllm serve m -tp 4 --max-model-len 4096 --speculative-config {config}"));
    let draft = Some(models("Qwen__Qwen3-0.6B").model);
    let found = answer(&command, Models { draft, ..models("Qwen__Qwen3-32B") }, &on("4xh100"));
    match refused {
        None => assert!(found.is_ok(), "{found:?}"),
        Some(said) => assert!(found.unwrap_err().to_string().contains(said)),
    }
}
