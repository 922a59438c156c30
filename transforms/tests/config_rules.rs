//! What the keys of a config mean, where that is more than a number.

mod support;

use cacheplan_handlers::{DType, Growth};
use cacheplan_transforms::{
    Assumption, FrontendError, Model, PassContext, PassError, ReadOptions, Resources, collect, read_config_str,
};
use rstest::rstest;
use serde_json::{Map, Value};

/// A real config with some keys changed; a null takes a key away.
fn changed(config: &str, changes: &str) -> String {
    let path = support::fixture(&format!("configs/{config}.json"));
    let mut config: Map<String, Value> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let changes: Map<String, Value> = serde_json::from_str(changes).unwrap();
    let target = match config.get_mut("text_config") {
        Some(Value::Object(inner)) => inner,
        _ => &mut config,
    };
    target.extend(changes);
    serde_json::to_string(&config).unwrap()
}

fn read(text: &str, assume: &[&str]) -> Result<Model, FrontendError> {
    let assume: Vec<Assumption> = assume.iter().map(|text| text.parse().unwrap()).collect();
    read_config_str("config.json", text, &ReadOptions { assume, ..ReadOptions::default() })
}

fn resources(config: &str, changes: &str) -> Resources {
    let mut model = read(&changed(config, changes), &[]).unwrap();
    collect(&mut model.graph, &PassContext::default()).unwrap().resources
}

fn windows(resources: &Resources) -> Vec<Option<u32>> {
    let window = |growth| match growth {
        Growth::Paged { window, .. } => window,
        _ => None,
    };
    resources.iter().map(|resource| window(resource.handler.growth())).collect()
}

#[test]
fn the_last_layers_of_gemma_4_read_the_keys_of_the_last_owner_of_their_kind() {
    let resources = resources("google__gemma-4-26B-A4B", r#"{"num_kv_shared_layers": 12}"#);
    assert_eq!(resources.len(), 18);
    assert_eq!(resources.get("kv_cache_17").unwrap().shared_by, [23, 29]);
    assert_eq!(resources.get("kv_cache_16").unwrap().shared_by, [18, 19, 20, 21, 22, 24, 25, 26, 27, 28]);
}

#[test]
fn sharing_without_an_owner_is_refused() {
    let error = read(&changed("google__gemma-4-26B-A4B", r#"{"num_kv_shared_layers": 26}"#), &[]).unwrap_err();
    assert!(error.to_string().contains("`num_kv_shared_layers` is 26"), "{error}");
}

#[test]
fn hunyuan_shares_keys_within_groups_only_if_told_to() {
    let all = resources("tencent__Hunyuan-A13B", "{}");
    let grouped = resources("tencent__Hunyuan-A13B", r#"{"use_cla": true}"#);
    assert_eq!((all.len(), grouped.len()), (32, 16));
    assert_eq!(grouped.get("kv_cache_6").unwrap().shared_by, [7]);
}

#[rstest]
#[case(r#"{"use_sliding_window": false}"#, 0)]
#[case(r#"{"use_sliding_window": true}"#, 0)]
#[case(r#"{"use_sliding_window": true, "max_window_layers": 20}"#, 8)]
fn qwen_windows_begin_behind_max_window_layers(#[case] changes: &str, #[case] windowed: usize) {
    let windows = windows(&resources("Qwen__Qwen2.5-7B-Instruct", changes));
    assert_eq!(windows.iter().filter(|window| **window == Some(131_072)).count(), windowed);
    assert!(windows[..20].iter().all(Option::is_none));
}

#[rstest]
#[case(r#"{"no_rope_layers": []}"#, 12)]
#[case(r#"{"no_rope_layer_interval": 2}"#, 24)]
fn llama_4_sees_everything_where_it_has_no_rope(#[case] changes: &str, #[case] full: usize) {
    let windows = windows(&resources("meta-llama__Llama-4-Scout-17B-16E-Instruct", changes));
    assert_eq!(windows.iter().filter(|window| window.is_none()).count(), full);
    assert!(windows.iter().flatten().all(|window| *window == 8192));
}

#[test]
fn a_sliding_layer_without_a_window_is_an_error() {
    let error = read(&changed("openai__gpt-oss-120b", r#"{"sliding_window": 0}"#), &[]).unwrap_err();
    assert!(matches!(error, FrontendError::Missing { .. }), "{error}");
}

#[rstest]
#[case(r#"{"kv_cache_scheme": {"num_bits": 8, "type": "float"}}"#, DType::F8E4m3)]
#[case(r#"{"kv_cache_scheme": {"num_bits": 8, "type": "int"}}"#, DType::Int8)]
#[case(r#"{"kv_cache_scheme": {"num_bits": 4, "type": "float"}}"#, DType::Nvfp4)]
#[case(r#"{"kv_cache_quant_algo": "FP8"}"#, DType::F8E4m3)]
#[case(r#"{"kv_cache_scheme": null}"#, DType::Bf16)]
fn a_checkpoint_states_the_dtype_of_its_keys(#[case] section: &str, #[case] dtype: DType) {
    let changes = format!(r#"{{"quantization_config": {section}}}"#);
    let resources = resources("Qwen__Qwen3-8B", &changes);
    assert!(resources.iter().all(|resource| resource.handler.dtype() == dtype));
}

#[test]
fn an_unknown_scheme_of_keys_is_refused() {
    let section = r#"{"quantization_config": {"kv_cache_scheme": {"num_bits": 3, "type": "float"}}}"#;
    let error = read(&changed("Qwen__Qwen3-8B", section), &[]).unwrap_err();
    assert!(error.to_string().contains("quantization_config.kv_cache_scheme"), "{error}");
}

#[rstest]
#[case("Qwen__Qwen3-8B", "{}", Some(16_381_468_672))]
#[case("deepseek-ai__DeepSeek-V3", "{}", Some(671_000_000_000))]
#[case("Qwen__Qwen3-8B", r#"{"quantization_config": {"quant_method": "awq"}}"#, None)]
#[case("Qwen__Qwen3-8B", r#"{"vocab_size": null}"#, None)]
fn weights_are_estimated_within_a_hundredth_or_not_at_all(
    #[case] config: &str,
    #[case] changes: &str,
    #[case] published: Option<u64>,
) {
    let weights = read(&changed(config, changes), &[]).unwrap().info.weights;
    assert!(weights.is_none_or(|weights| !weights.exact));
    match (weights, published) {
        (None, None) => {}
        (Some(weights), Some(published)) => {
            let ratio = weights.bytes as f64 / published as f64;
            assert!((0.99..1.01).contains(&ratio), "{} bytes", weights.bytes);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_assumption_replaces_a_key_even_inside_an_object() {
    let mut model = read(&changed("state-spaces__mamba2-2.7b", "{}"), &["ssm_cfg.d_state=64"]).unwrap();
    let resources = collect(&mut model.graph, &PassContext::default()).unwrap().resources;
    assert_eq!(resources.get("ssm_state_0").unwrap().handler.dim("d_state"), Some(64));
    assert!(model.facts.iter().any(|fact| fact.assumed && fact.what == "ssm_cfg.d_state"));
}

#[test]
fn an_assumption_that_nothing_reads_is_refused() {
    let error = read(&changed("Qwen__Qwen3-8B", "{}"), &["hed_dim=64"]).unwrap_err();
    assert!(matches!(&error, FrontendError::Assumption { .. }));
    assert!(error.to_string().contains("hed_dim"), "{error}");
}

#[test]
fn an_unknown_architecture_can_be_read_as_a_known_one() {
    let text = changed("Qwen__Qwen3-8B", r#"{"model_type": "qwen9"}"#);
    assert!(read(&text, &[]).unwrap_err().is_unsupported());
    assert_eq!(read(&text, &["model_type=qwen3"]).unwrap().info.model_type, "qwen3");
}

#[test]
fn a_builder_cannot_share_with_a_layer_that_has_no_keys() {
    use cacheplan_transforms::{Attention, GraphBuilder};
    let mut builder = GraphBuilder::new("test", 64, DType::F32);
    builder.layer();
    builder.layer();
    builder.attention(&Attention { shares_layer: Some(0), ..Attention::grouped(4, 2, 16) });
    let mut model = builder.build();
    let error = collect(&mut model.graph, &PassContext::default()).unwrap_err();
    assert!(matches!(&error, PassError::Alias { .. }));
    assert!(error.to_string().contains("`layers.0`: that layer comes later or has no keys"), "{error}");
}
