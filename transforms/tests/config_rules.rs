//! What the keys of a config mean, where that is more than a number.

mod support;

use cacheplan_handlers::{DType, Growth};
use cacheplan_transforms::layers::{BlockSpec, LayerSpec};
use cacheplan_transforms::{Assumption, FrontendError, Model, PassContext, PassError, ReadOptions, Resources};
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
    Model::read_config("config.json", text, &ReadOptions { assume, ..ReadOptions::default() })
}

fn resources(config: &str, changes: &str) -> Resources {
    let mut model = read(&changed(config, changes), &[]).unwrap();
    model.graph.collect(&PassContext::default()).unwrap().resources
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
fn the_last_layers_of_gemma_3n_share_by_default() {
    let text = r#"{"model_type": "gemma3n", "text_config": {"model_type": "gemma3n_text", "hidden_size": 2048,
        "num_hidden_layers": 35, "num_attention_heads": 8}}"#;
    let mut model = read(text, &[]).unwrap();
    let resources = model.graph.collect(&PassContext::default()).unwrap().resources;
    assert_eq!(resources.len(), 20);
    assert_eq!(resources.get("kv_cache_19").unwrap().shared_by, [24, 29, 34]);
    assert_eq!(windows(&resources)[15..], [Some(512), Some(512), Some(512), Some(512), None]);
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

/// `head_dim` stands above `attention_head_dim`, which counts where it stands alone.
#[rstest]
fn hunyuan_heads_are_as_wide_as_engines_read_them(
    #[values(
        ("tencent__Hunyuan-A13B", "hunyuan"),
        ("tencent__Hunyuan-A13B", "hunyuan_v1_moe"),
        ("tencent__Hunyuan-7B-Instruct", "hunyuan_v1_dense")
    )]
    model: (&str, &str),
    #[values(("256", "64", 256), ("null", "64", 64), ("256", "null", 256), ("null", "null", 128))] widths: (
        &str,
        &str,
        u64,
    ),
) {
    let ((config, model_type), (head_dim, attention_head_dim, expected)) = (model, widths);
    let changes = format!(
        r#"{{"model_type": "{model_type}", "head_dim": {head_dim}, "attention_head_dim": {attention_head_dim}}}"#
    );
    let resources = resources(config, &changes);
    let widths = resources.iter().map(|resource| resource.handler.shape().last().map(|dim| dim.size));
    assert!(widths.into_iter().all(|width| width == Some(expected)));
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
    assert!(matches!(error, FrontendError::BadValue { .. }), "{error}");
}

#[rstest]
#[case(r#"{"kv_cache_scheme": {"num_bits": 8, "type": "float"}}"#, DType::F8E4m3)]
#[case(r#"{"kv_cache_scheme": "FP8"}"#, DType::F8E4m3)]
#[case(r#"{"kv_cache_scheme": {"num_bits": 8, "type": "int"}}"#, DType::Int8PerTokenHead)]
#[case(r#"{"kv_cache_scheme": {"num_bits": 4, "type": "float"}}"#, DType::Nvfp4)]
#[case(r#"{"kv_cache_quant_algo": "FP8"}"#, DType::F8E4m3)]
#[case(r#"{"quant_method": "modelopt", "quantization": {"kv_cache_quant_algo": "FP8"}}"#, DType::F8E4m3)]
#[case(r#"{"kv_cache_scheme": null}"#, DType::Bf16)]
fn a_checkpoint_states_the_dtype_of_its_keys(#[case] section: &str, #[case] dtype: DType) {
    let changes = format!(r#"{{"quantization_config": {section}}}"#);
    let resources = resources("Qwen__Qwen3-8B", &changes);
    assert!(resources.iter().all(|resource| resource.handler.dtype() == dtype));
}

#[test]
fn a_calibration_beside_the_config_states_it_too() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(support::fixture("configs/Qwen__Qwen3-8B.json"), folder.path().join("config.json")).unwrap();
    let calibration = r#"{"producer": {"name": "modelopt"}, "quantization": {"kv_cache_quant_algo": "FP8"}}"#;
    std::fs::write(folder.path().join("hf_quant_config.json"), calibration).unwrap();
    let mut model = Model::read(folder.path(), &ReadOptions::default()).unwrap();
    let resources = model.graph.collect(&PassContext::default()).unwrap().resources;
    assert!(resources.iter().all(|resource| resource.handler.dtype() == DType::F8E4m3));
    assert_eq!(model.info.weights, None);
}

/// What tools and copied files leave behind is passed over; where windows begin counts if they are used.
#[rstest]
#[case("Qwen__Qwen3-8B", r#"{"for_llm_compressor": true}"#, true)]
#[case("zai-org__GLM-4.5", r#"{"max_window_layers": 20}"#, true)]
#[case("zai-org__GLM-4.5", r#"{"max_window_layers": 20, "use_sliding_window": true}"#, false)]
#[case("zai-org__GLM-4.5", r#"{"swiglu_limits_shared": [7, 16], "mtp": {"layer_types": ["sliding_attention"]}}"#, true)]
fn keys_that_say_nothing_are_passed_over(#[case] config: &str, #[case] keys: &str, #[case] passed: bool) {
    let read = read(&changed(config, keys), &[]);
    assert_eq!(read.is_ok(), passed, "{:?}", read.err());
}

#[test]
fn an_unknown_scheme_of_keys_is_refused() {
    let section = r#"{"quantization_config": {"kv_cache_scheme": {"num_bits": 3, "type": "float"}}}"#;
    let error = read(&changed("Qwen__Qwen3-8B", section), &[]).unwrap_err();
    assert!(error.to_string().contains("quantization_config.kv_cache_scheme"), "{error}");
}

#[rstest]
#[case("Qwen__Qwen3-8B", "{}", Some(16_381_470_720))]
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

/// Qwen3-8B has 6,945,767,424 weights in the matrices of its layers, and 2,489,935,872 bytes of others.
#[rstest]
// 4 bits, and 20 of scale and zero point for 128.
#[case(r#"{"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": true}"#, Some(6_098_479_104))]
#[case(r#"{"quant_method": "gptq", "bits": 8, "group_size": 128}"#, Some(9_598_494_720))]
#[case(r#"{"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {"-:.*layers.0.*": {}}}"#, None)]
#[case(r#"{"quant_method": "awq"}"#, None)]
#[case(
    r#"{"quant_method": "bitsandbytes", "load_in_4bit": true, "bnb_4bit_use_double_quant": false}"#,
    Some(6_396_930_048)
)]
#[case(r#"{"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}"#, Some(6_396_930_048))]
#[case(
    r#"{"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": ["lm_head", "*self_attn*"]}"#,
    Some(10_945_652_736)
)]
#[case(
    r#"{"quant_method": "fp8", "modules_to_not_convert": ["model.layers.0.self_attn", "model.layers.0.mlp"]}"#,
    Some(9_628_641_280)
)]
#[case(r#"{"quant_method": "fp8", "modules_to_not_convert": ["model.layers.0.mlp.down_proj"]}"#, None)]
#[case(r#"{"quant_method": "hqq"}"#, None)]
fn quantised_weights_take_what_their_scheme_says_of_their_modules(#[case] section: &str, #[case] bytes: Option<u64>) {
    let changes = format!(r#"{{"quantization_config": {section}}}"#);
    let model = read(&changed("Qwen__Qwen3-8B", &changes), &[]).unwrap();
    assert_eq!(model.info.weights.map(|weights| weights.bytes), bytes, "{:?}", model.weights_unknown);
}

#[rstest]
#[case("nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", r#"{"n_groups": 7}"#, "64 heads of states cannot share 7")]
#[case("Qwen__Qwen3-Next-80B-A3B-Thinking", r#"{"linear_num_value_heads": 31}"#, "31 heads of states cannot share 16")]
fn heads_of_states_share_whole_groups(#[case] model: &str, #[case] changes: &str, #[case] expected: &str) {
    let mut model = read(&changed(model, changes), &[]).unwrap();
    let error = model.graph.collect(&PassContext::default()).unwrap_err();
    assert!(format!("{error:?}").contains(expected), "{error:?}");
}

#[test]
fn weights_of_eight_bits_whose_scheme_nobody_states_are_not_known() {
    let model = read(&changed("Qwen__Qwen3-8B", r#"{"torch_dtype": "float8_e4m3fn"}"#), &[]).unwrap();
    assert_eq!(model.info.weights, None);
    assert!(model.weights_unknown.unwrap().contains("`torch_dtype` has 8 bits"));
}

#[rstest]
#[case(r#"["Linear"]"#, r#"["re:.*lm_head", "re:.*self_attn.*"]"#, Some(8_312_678_400))]
#[case(r#"["re:.*mlp\\.(gate|up|down)_proj$"]"#, "[]", Some(8_312_678_400))]
#[case(r#"["Linear"]"#, r#"["re:(?!.*mlp).*"]"#, None)]
fn groups_of_compressed_tensors_have_their_targets(
    #[case] targets: &str,
    #[case] ignored: &str,
    #[case] bytes: Option<u64>,
) {
    let weights = r#"{"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": true}"#;
    let group = format!(r#"{{"group_0": {{"targets": {targets}, "weights": {weights}}}}}"#);
    let changes = format!(
        r#"{{"quantization_config": {{"quant_method": "compressed-tensors", "config_groups": {group}, "ignore": {ignored}}}}}"#
    );
    let weights = read(&changed("Qwen__Qwen3-8B", &changes), &[]).unwrap().info.weights;
    assert_eq!(weights.map(|weights| weights.bytes), bytes);
}

/// As many as transformers counts on the meta device: two blocks with adapters of attention too; keys that the last ten
/// layers read of earlier ones, with blocks twice as wide; a size of shared experts that is that of all of them.
#[rstest]
#[case("nemotron_h", r#"{"n_shared_experts": 2}"#, 1_968_355_712)]
#[case("zamba2", r#"{"num_mem_blocks": 2, "use_shared_attention_adapter": true}"#, 2_687_639_056)]
#[case("gemma4_text", r#"{"num_kv_shared_layers": 10, "use_double_wide_mlp": true}"#, 5_657_561_600)]
fn weights_that_layers_share_count_once(#[case] model_type: &str, #[case] changes: &str, #[case] parameters: u64) {
    let table = std::fs::read_to_string(support::fixture("transformers/parameters.tsv")).unwrap();
    let row = table.lines().find(|row| row.starts_with(&format!("{model_type}\t"))).unwrap();
    let mut config: Map<String, Value> = serde_json::from_str(row.split('\t').nth(2).unwrap()).unwrap();
    config.extend(serde_json::from_str::<Map<String, Value>>(changes).unwrap());
    let weights = read(&Value::Object(config).to_string(), &[]).unwrap().info.weights.unwrap();
    assert_eq!(weights.bytes, 2 * parameters);
}

/// A null says as many key heads as heads, or no window; a key that is not there says the architecture's default.
#[rstest]
#[case(r#"{"num_key_value_heads": 2, "sliding_window": 100}"#, 2, Some(100))]
#[case(r#"{"num_key_value_heads": null, "sliding_window": null}"#, 32, None)]
#[case("{}", 8, Some(4096))]
fn a_null_is_not_an_absent_key(#[case] keys: &str, #[case] heads: u64, #[case] window: Option<u32>) {
    let mut config: Map<String, Value> = serde_json::from_str(keys).unwrap();
    let sizes = r#"{"model_type": "mistral", "hidden_size": 4096, "num_hidden_layers": 1, "num_attention_heads": 32}"#;
    config.extend(serde_json::from_str::<Map<String, Value>>(sizes).unwrap());
    let mut model = read(&serde_json::to_string(&config).unwrap(), &[]).unwrap();
    assert_eq!(model.facts.iter().any(|fact| fact.assumed && fact.what.ends_with("num_kv_heads")), keys == "{}");
    let resources = model.graph.collect(&PassContext::default()).unwrap().resources;
    assert_eq!(resources.get("kv_cache_0").unwrap().handler.dim("num_kv_heads"), Some(heads));
    assert_eq!(windows(&resources), [window]);
}

/// The same Gemma 4 as newer versions of transformers save it.
#[test]
fn keys_of_one_layer_count_in_that_layer() {
    let per_layer: Map<String, Value> = (5..30)
        .step_by(6)
        .map(|layer| (format!("{layer:02}"), serde_json::json!({"head_dim": 512, "num_key_value_heads": 2})))
        .collect();
    let moved = serde_json::json!({
        "global_head_dim": null, "num_global_key_value_heads": null, "per_layer_config": per_layer
    });
    let newer = resources("google__gemma-4-26B-A4B", &moved.to_string());
    let older = resources("google__gemma-4-26B-A4B", "{}");
    assert_eq!(support::essence(&newer), support::essence(&older));
}

/// As transformers saves one whose layers are all alike: what it states besides of some layers counts only where the key
/// is not there.
#[rstest]
#[case::empty("{}")]
#[case::null("null")]
fn keys_of_no_layer_leave_every_layer_the_models_own(#[case] none: &str) {
    let same: Map<String, Value> = (5..30)
        .step_by(6)
        .map(|layer| (layer.to_string(), serde_json::json!({"head_dim": 256, "num_key_value_heads": 8})))
        .collect();
    let stated = resources("google__gemma-4-26B-A4B", &serde_json::json!({ "per_layer_config": same }).to_string());
    let found = resources("google__gemma-4-26B-A4B", &format!(r#"{{"per_layer_config": {none}}}"#));
    assert_eq!(support::essence(&found), support::essence(&stated));
    let heads = |resource: &str| found.get(resource).unwrap().handler.dim("head_dim");
    assert_eq!((heads("kv_cache_4"), heads("kv_cache_5")), (Some(256), Some(256)));
}

#[rstest]
#[case(r#"{"30": {}}"#, "the model has 30 layers")]
#[case(r#"{"3": {"skip": ["mlp"]}}"#, "layers without some of their blocks are not understood")]
fn keys_of_a_layer_that_cannot_be_are_refused(#[case] per_layer: &str, #[case] expected: &str) {
    let changes = format!(r#"{{"per_layer_config": {per_layer}}}"#);
    let error = read(&changed("google__gemma-4-26B-A4B", &changes), &[]).unwrap_err();
    assert!(error.to_string().contains(expected), "{error}");
}

#[rstest]
#[case(r#"{"indexer_types": null, "index_topk_pattern": "FSS"}"#, 26)]
#[case(r#"{"indexer_types": null, "index_topk_freq": 4, "index_skip_topk_offset": 3}"#, 21)]
#[case(r#"{"indexer_types": null, "index_topk_pattern": null, "index_topk_freq": null}"#, 78)]
fn glm_chooses_tokens_anew_in_the_layers_that_its_keys_say(#[case] changes: &str, #[case] indexers: usize) {
    let changes = changes.replace("\"FSS\"", &format!("\"{}\"", "FSS".repeat(26)));
    let resources = resources("zai-org__GLM-5.2", &changes);
    let found = resources.iter().filter(|resource| resource.name.starts_with("index_cache")).count();
    assert_eq!(found, indexers);
}

/// Ratios by the names of layers, as newer versions of transformers save them.
#[test]
fn deepseek_v4_has_the_same_caches_in_both_spellings() {
    let file = std::fs::read(support::fixture("configs/deepseek-ai__DeepSeek-V4-Flash.json")).unwrap();
    let config: Value = serde_json::from_slice(&file).unwrap();
    let names = |ratio: &Value| match ratio.as_u64().unwrap() {
        0 => "sliding_attention",
        4 => "compressed_sparse_attention",
        _ => "heavily_compressed_attention",
    };
    let layers = config["num_hidden_layers"].as_u64().unwrap() as usize;
    let kinds: Vec<&str> = config["compress_ratios"].as_array().unwrap()[..layers].iter().map(names).collect();
    let newer = serde_json::json!({"layer_types": kinds, "compress_ratios": null});
    let older = resources("deepseek-ai__DeepSeek-V4-Flash", "{}");
    assert_eq!(
        support::essence(&resources("deepseek-ai__DeepSeek-V4-Flash", &newer.to_string())),
        support::essence(&older)
    );
    let neither = read(&changed("deepseek-ai__DeepSeek-V4-Flash", r#"{"compress_ratios": null}"#), &[]).unwrap_err();
    assert!(matches!(neither, FrontendError::Missing { .. }), "{neither}");
}

#[test]
fn an_unknown_wrapper_is_read_as_the_decoder_that_it_wraps() {
    let text = r#"{"model_type": "picture_llama", "text_config": {"model_type": "llama", "hidden_size": 64,
        "num_hidden_layers": 2, "num_attention_heads": 4}}"#;
    let model = read(text, &[]).unwrap();
    assert_eq!((model.info.model_type.as_str(), model.info.layers), ("llama", 2));
    let unknown = text.replace("\"llama\"", "\"lama\"");
    assert!(read(&unknown, &[]).unwrap_err().to_string().contains("picture_llama"));
}

#[test]
fn an_assumption_replaces_a_key_even_inside_an_object() {
    let mut model = read(&changed("state-spaces__mamba2-2.7b", "{}"), &["ssm_cfg.d_state=64"]).unwrap();
    let resources = model.graph.collect(&PassContext::default()).unwrap().resources;
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
    use cacheplan_transforms::{GraphBuilder, layers::Attention};
    let mut builder = GraphBuilder::new("test", 64, DType::F32);
    builder.layer();
    builder.layer();
    builder.attention(&Attention { shares_layer: Some(0), ..Attention::grouped(4, 2, 16) });
    let mut model = builder.build();
    let error = model.graph.collect(&PassContext::default()).unwrap_err();
    assert!(matches!(&error, PassError::Alias { .. }));
    assert!(error.to_string().contains("`layers.0`: that layer comes later or caches nothing of the kind"), "{error}");
}

/// gpt-oss-120b: 36 layers of 128 experts, 3 matrices of 2,880 x 2,880 in blocks of 32 that take 17 bytes; everything else in bf16.
#[test]
fn experts_in_mxfp4_are_counted_in_blocks_and_the_rest_as_it_is() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/configs/openai__gpt-oss-120b.json");
    let model = Model::read(std::path::Path::new(file), &ReadOptions::default()).unwrap();
    let classes = model.info.weights.unwrap().classes.unwrap();
    assert_eq!(classes.routed, 36 * 128 * 3 * 2880 * (2880 / 32 * 17));
    // 64 query heads, 8 of keys and of values, all 64 wide, and back.
    assert_eq!(classes.attention, 36 * (2880 * (64 + 2 * 8) * 64 + 64 * 64 * 2880) * 2);
    assert_eq!(classes.embeddings, 2 * 201_088 * 2880 * 2);
}

/// Python writes `true`, which is 1 to it; no size is.
#[rstest]
#[case("num_key_value_heads", "true")]
#[case("num_hidden_layers", "true")]
#[case("head_dim", "false")]
fn a_flag_is_no_number(#[case] key: &str, #[case] value: &str) {
    let text = changed("Qwen__Qwen3-8B", &format!(r#"{{"{key}": {value}}}"#));
    let error = read(&text, &[]).unwrap_err().to_string();
    assert!(error.contains(&format!("`{key}` is {value}")), "{error}");
}

#[test]
fn a_convolution_of_no_width_is_refused() {
    let text = changed("Qwen__Qwen3-Next-80B-A3B-Thinking", r#"{"linear_conv_kernel_dim": 0}"#);
    let error = read(&text, &[]).unwrap_err().to_string();
    assert!(error.contains("`linear_conv_kernel_dim` is 0; at least 1 was expected"), "{error}");
}

/// A published config as it was written: a text of one period in place of a number.
#[test]
fn a_pattern_of_windows_may_be_a_text() {
    let mut model = support::read("published/exaone4_nolt.json");
    let resources = model.graph.collect(&PassContext::default()).unwrap().resources;
    let expected: Vec<Option<u32>> = (1..=64).map(|layer| (layer % 4 != 0).then_some(4096)).collect();
    assert_eq!(windows(&resources), expected);
}

#[test]
fn a_list_of_ones_says_that_all_layers_of_minimax_m2_attend() {
    let text = std::fs::read_to_string(support::fixture("published/minimax_m2.json")).unwrap();
    assert_eq!(read(&text, &[]).unwrap().layers.len(), 62);
    let mut other: Map<String, Value> = serde_json::from_str(&text).unwrap();
    other["attn_type_list"][3] = 0.into();
    assert!(read(&serde_json::to_string(&other).unwrap(), &[]).unwrap_err().to_string().contains("layer 3"));
}

/// However an architecture calls the number of experts that a token goes to.
#[rstest]
#[case("ernie45_300b", 8)]
#[case("b_hunyuan_a13b", 8)]
#[case("dbrx", 4)]
fn a_token_goes_to_as_many_experts_as_the_config_says(#[case] config: &str, #[case] expected: u64) {
    let model = support::read(&format!("published/{config}.json"));
    let blocks = model.layers.iter().flat_map(|layer| &layer.blocks);
    let per_token = blocks.filter_map(|block| match block {
        BlockSpec::FeedForward(dims) if dims.experts > 0 => Some(dims.experts_per_token),
        _ => None,
    });
    assert!(per_token.eq(model.layers.iter().filter(|layer| has_experts(layer)).map(|_| expected)));
    assert!(model.layers.iter().any(has_experts));
}

fn has_experts(layer: &LayerSpec) -> bool {
    layer.blocks.iter().any(|block| matches!(block, BlockSpec::FeedForward(dims) if dims.experts > 0))
}

/// What a tower's config leaves out is its class's default.
#[rstest]
#[case("gemma3", Some(2_723_312_896))]
#[case("somebody_vl", None)]
fn towers_count_or_the_weights_are_not_known(#[case] wrapper: &str, #[case] parameters: Option<u64>) {
    let decoder =
        r#"{"model_type": "gemma3_text", "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26}"#;
    let text = format!(r#"{{"model_type": "{wrapper}", "text_config": {decoder}, "vision_config": {{}}}}"#);
    let model = read(&text, &[]).unwrap();
    assert_eq!(model.info.weights.map(|weights| weights.bytes / 2), parameters);
    assert_eq!(model.weights_unknown.is_some(), parameters.is_none());
}

/// One number for all layers is not the first of a list, and a switch is no size.
#[rstest]
#[case("\"num_hidden_layers\": [36, 48]", "num_hidden_layers")]
#[case("\"hidden_size\": [4096]", "hidden_size")]
#[case("\"use_sliding_window\": true, \"max_window_layers\": 0, \"sliding_window\": true", "sliding_window")]
fn a_list_or_a_switch_is_no_size(#[case] changed: &str, #[case] key: &str) {
    let mut config: serde_json::Map<String, serde_json::Value> = serde_json::from_str(
        r#"{"model_type": "qwen3", "num_hidden_layers": 2, "hidden_size": 512, "num_attention_heads": 8,
            "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 1024, "vocab_size": 100}"#,
    )
    .unwrap();
    let changed: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&format!("{{{changed}}}")).unwrap();
    config.extend(changed);
    let error = read(&serde_json::to_string(&config).unwrap(), &[]).unwrap_err().to_string();
    assert!(error.contains(key), "{error}");
}

/// Layers of 8 heads and a latent draft as they attend; a matrix of twice the width joins row and embedding.
#[test]
fn a_prediction_layer_weighs_as_the_last_layer_and_what_joins_it() {
    let model = support::read("configs/deepseek-ai__DeepSeek-V3.json");
    let hidden = 7168u64;
    let draft = model.prediction.weights.unwrap();
    let classes = draft.classes.unwrap();
    assert_eq!(classes.routed, 256 * 3 * 2048 * hidden);
    assert_eq!(classes.embeddings, 0);
    assert!((11.6e9..11.8e9).contains(&(draft.bytes as f64)), "{draft:?}");
}

const LLAMA: &str = r#""hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32"#;

#[rstest]
#[case(r#""model_type": "cohere", "max_position_embeddings": 8192, "model_max_length": 131072"#, 131_072)]
#[case(r#""model_type": "cohere", "max_position_embeddings": 131072, "model_max_length": 8192"#, 8192)]
#[case(r#""model_type": "llama", "max_position_embeddings": 131072, "max_sequence_length": 4096"#, 4096)]
#[case(r#""model_type": "llama", "max_position_embeddings": 131072, "seq_length": 8192"#, 8192)]
#[case(r#""model_type": "llama", "max_position_embeddings": 4096, "model_max_length": 1e30"#, 4096)]
#[case(r#""model_type": "llama""#, 2048)]
#[case(r#""model_type": "llava", "text_config": {"model_type": "mistral"}"#, 131_072)]
#[case(r#""model_type": "llava", "text_config": {"model_type": "llama"}"#, 2048)]
fn the_longest_sequence_is_found_as_engines_find_it(#[case] keys: &str, #[case] tokens: u64) {
    let text = if keys.contains("text_config") {
        format!("{{{}}}", keys.replace("text_config\": {", &format!("text_config\": {{{LLAMA}, ")))
    } else {
        format!("{{{keys}, {LLAMA}}}")
    };
    assert_eq!(read(&text, &[]).unwrap().info.max_position_embeddings, Some(tokens), "{text}");
}

#[rstest]
#[case("float8_e4m3fn")]
#[case("torch.float8_e5m2")]
fn nothing_is_cached_in_the_8_bits_of_weights(#[case] dtype: &str) {
    let model = read(&changed("Qwen__Qwen3-8B", &format!(r#"{{"torch_dtype": "{dtype}"}}"#)), &[]).unwrap();
    assert_eq!(model.info.dtype, DType::Bf16);
    assert!(model.facts.iter().any(|fact| fact.what == "dtype" && fact.assumed), "{:?}", model.facts);
}

#[test]
fn llama_4_without_chunks_sees_everything() {
    let windows =
        windows(&resources("meta-llama__Llama-4-Scout-17B-16E-Instruct", r#"{"attention_chunk_size": null}"#));
    assert_eq!(windows, vec![None; 48]);
}

#[test]
fn the_window_and_the_key_heads_that_a_class_has_are_taken_where_none_are_stated() {
    let windows = |text: &str| {
        let mut model = read(text, &[]).unwrap();
        windows(&model.graph.collect(&PassContext::default()).unwrap().resources)
    };
    let cohere2 = windows(&format!(r#"{{"model_type": "cohere2", {LLAMA}}}"#));
    assert_eq!(cohere2[..4], [Some(4096), Some(4096), Some(4096), None]);
    assert!(
        windows(&format!(r#"{{"model_type": "cohere2", "sliding_window": null, {LLAMA}}}"#))
            .iter()
            .all(Option::is_none)
    );
    let gemma = read(&format!(r#"{{"model_type": "gemma", {LLAMA}}}"#), &[]).unwrap();
    assert!(
        gemma.facts.iter().any(|fact| fact.what.contains("num_kv_heads") && fact.value == "16"),
        "{:?}",
        gemma.facts
    );
}

#[rstest]
#[case(r#"{"model_type": "llama", "vocab_size": 32064}"#, "32", 32)]
#[case(r#"{"model_type": "mistral", "sliding_window": null}"#, "8", 32)]
#[case(r#"{"model_type": "llama", "num_hidden_layers": 40, "hidden_size": 5120, "num_attention_heads": 40}"#, "40", 40)]
fn a_decoder_in_a_wrapper_has_the_sizes_of_its_class(#[case] text: &str, #[case] heads: &str, #[case] layers: usize) {
    let mut model = read(&format!(r#"{{"model_type": "llava", "text_config": {text}}}"#), &[]).unwrap();
    assert!(
        model.facts.iter().any(|fact| fact.what.contains("num_kv_heads") && fact.value == heads),
        "{:?}",
        model.facts
    );
    assert_eq!(model.graph.collect(&PassContext::default()).unwrap().resources.len(), layers);
}

#[rstest]
#[case(
    "Qwen__Qwen3-8B",
    r#"{"num_key_value_heads": null, "num_key_value_head": 2}"#,
    "it is nearly `num_key_value_heads`"
)]
#[case("google__gemma-4-26B-A4B", r#"{"per_layer_config": {"5": {"head_dimm": 4}}}"#, "no block reads it")]
#[case("google__gemma-4-26B-A4B", r#"{"per_layer_config": [{"layer": 5}]}"#, "an object of keys by layer was expected")]
fn a_key_that_a_letter_or_a_layer_keeps_from_being_read_is_refused(
    #[case] config: &str,
    #[case] changes: &str,
    #[case] said: &str,
) {
    let error = read(&changed(config, changes), &[]).unwrap_err().to_string();
    assert!(error.contains(said), "{error}");
}
