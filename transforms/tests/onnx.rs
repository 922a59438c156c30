//! Real exports are walked, whatever the exporter made of their attention and state.

mod support;

use std::fs;
use std::path::PathBuf;

use cacheplan_handlers::{DType, DecayKind, Growth, Kind, Recurrence};
use cacheplan_transforms::{
    FrontendError, GraphBuilder, Model, PassContext, ReadOptions, Resources, StatePart,
    layers::{Attention, Mamba2},
};
use rstest::rstest;

use support::{collected, essence, fixture};

/// The config of the exported hybrid decoder.
const HYBRID: &str = r#"{
    "model_type": "nemotron_h", "dtype": "float32", "hidden_size": 64, "vocab_size": 128,
    "layers_block_type": ["mamba", "attention", "mamba"],
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 2, "conv_kernel": 4,
    "mamba_ssm_cache_dtype": "float32"
}"#;

fn resources(mut model: Model) -> Resources {
    model.graph.collect(&PassContext::default()).unwrap().resources
}

fn built() -> Model {
    let mamba =
        Mamba2 { num_heads: 8, head_dim: 16, d_state: 16, n_groups: 2, d_conv: 4, state_dtype: Some(DType::F32) };
    let mut builder = GraphBuilder::new("hybrid", 64, DType::F32);
    builder.layer();
    builder.mamba2(&mamba);
    builder.layer();
    builder.attention(&Attention::grouped(4, 2, 16));
    builder.layer();
    builder.mamba2(&mamba);
    builder.build()
}

#[test]
fn export_config_and_builder_agree_to_the_last_provenance() {
    let config = resources(Model::read_config("config.json", HYBRID, &ReadOptions::default()).unwrap());
    assert_eq!(config.len(), 5);
    assert_eq!(resources(built()), config);
    for file in ["onnx/hybrid_opset18.onnx", "onnx/hybrid_opset23.onnx"] {
        assert_eq!(collected(file).1.resources, config, "{file}");
    }
}

#[test]
fn both_opsets_give_the_same_layers_and_weights() {
    let [old, new] = ["18", "23"].map(|opset| support::read(&format!("onnx/hybrid_opset{opset}.onnx")));
    assert_eq!(support::layer_kinds(&old), ["mamba", "attention", "mamba"]);
    assert_eq!((old.layers, old.info.layers, old.info.dtype), (new.layers, new.info.layers, new.info.dtype));
}

#[test]
fn the_wider_convolution_state_of_the_export_is_reported() {
    let model = support::read("onnx/hybrid_opset23.onnx");
    let fact = model.facts.iter().find(|fact| fact.what == "conv_state_0").unwrap();
    assert_eq!(fact.value, "4 columns in the export, 3 in the cache");
}

/// The export reads and writes whole tensors of a fixed shape, which no page is.
#[rstest]
#[case("decode", 1)]
#[case("prefill", 128)]
fn a_static_cache_is_unpaged_data_of_each_layer_under_the_graphs_names(#[case] half: &str, #[case] tokens: u64) {
    let (model, collected) = collected(&format!("static_cache/{half}.onnx"));
    let found: Vec<_> = collected.resources.iter().map(|found| (found.name.clone(), found.layer)).collect();
    let expected = ["past_k", "past_v"].map(|name| [0, 1, 2, 3].map(|layer| (format!("{name}_{layer}"), Some(layer))));
    assert_eq!(found, expected.concat());
    for resource in &collected.resources {
        let handler = &resource.handler;
        assert_eq!((handler.kind(), handler.growth()), (&Kind::Unpaged, Growth::PerSlotToken));
        assert_eq!(handler.allocation_shape(2, 128), [2, 2, 128, 32]);
    }
    assert_eq!(model.info.layers, 4);
    assert_eq!(model.info.max_position_embeddings, Some(128));
    assert_eq!(model.info.step_tokens, Some(tokens));
    let parts: Vec<_> = model.states.iter().map(|state| (state.input.as_str(), state.part)).collect();
    assert_eq!(parts, [("past_k", StatePart::Fixed), ("past_v", StatePart::Fixed)]);
    assert_eq!(model.states[0].layers, [0, 1, 2, 3]);
    assert!(model.facts.iter().all(|fact| !fact.assumed), "{:?}", model.facts);
}

#[rstest]
#[case("18")]
#[case("23")]
fn every_state_of_a_hybrid_is_bound_to_its_cache(#[case] opset: &str) {
    let model = support::read(&format!("onnx/hybrid_opset{opset}.onnx"));
    let mut bound: Vec<_> =
        model.states.iter().map(|state| (state.layers[0], state.part, state.output.as_str())).collect();
    bound.sort_by_key(|(layer, _, output)| (*layer, *output));
    let expected = [
        (0, StatePart::Convolution, "conv_state_0_out"),
        (0, StatePart::Recurrence, "ssm_state_0_out"),
        (1, StatePart::Keys, "present_key_1"),
        (1, StatePart::Values, "present_value_1"),
        (2, StatePart::Convolution, "conv_state_2_out"),
        (2, StatePart::Recurrence, "ssm_state_2_out"),
    ];
    assert_eq!(bound, expected);
    assert_eq!(model.vocab_size, Some(128));
}

/// The config of the exported decoder with a sliding window.
const SLIDING: &str = r#"{
    "model_type": "gemma3_text", "dtype": "float32", "hidden_size": 16, "vocab_size": 16, "intermediate_size": 16,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "sliding_window": 32,
    "layer_types": ["sliding_attention", "full_attention"]
}"#;

#[rstest]
#[case("18")]
#[case("23")]
fn a_mask_that_the_graph_computes_tells_the_window(#[case] opset: &str) {
    let (model, from_export) = collected(&format!("onnx/sliding_opset{opset}.onnx"));
    let from_config = resources(Model::read_config("config.json", SLIDING, &ReadOptions::default()).unwrap());
    assert_eq!(essence(&from_export.resources), essence(&from_config));
    assert_eq!(support::layer_kinds(&model), ["sliding_attention", "attention"]);
    assert!(model.facts.iter().all(|fact| !fact.assumed));
}

/// The comparisons of positions joined by something else than And.
#[test]
fn a_mask_that_tells_nothing_is_full_attention_by_assumption() {
    let (_folder, path) = patched("onnx/sliding_opset23.onnx", b"\x22\x03And", b"\x22\x03Xor");
    let model = Model::read(&path, &ReadOptions::default()).unwrap();
    let assumed: Vec<&str> = model.facts.iter().filter(|fact| fact.assumed).map(|fact| fact.what.as_str()).collect();
    assert_eq!(assumed, ["layer 1: tokens that attention sees"]);
    assert_eq!(resources(model).get("kv_cache_1").unwrap().handler.growth(), Growth::Paged { stride: 1, window: None });
}

#[test]
fn group_query_attention_tells_heads_and_window() {
    let resources = collected("onnx/group_query_attention.onnx").1.resources;
    let growth = |name: &str| resources.get(name).unwrap().handler.growth();
    assert_eq!(growth("kv_cache_0"), Growth::Paged { stride: 1, window: Some(128) });
    assert_eq!(growth("kv_cache_1"), Growth::Paged { stride: 1, window: None });
    assert!(resources.iter().all(|resource| resource.handler.unit_bytes() == 2 * 2 * 64 * 2));
}

#[rstest]
#[case("multi_head_attention", 8)]
#[case("packed_attention_without_past", 2)]
fn other_spellings_of_attention_tell_their_heads(#[case] file: &str, #[case] heads: u64) {
    let resources = collected(&format!("onnx/{file}.onnx")).1.resources;
    let handler = &resources.get("kv_cache_0").unwrap().handler;
    assert_eq!((handler.dim("num_kv_heads"), handler.dim("head_dim")), (Some(heads), Some(64)));
}

#[rstest]
#[case("linear_attention")]
#[case("linear_attention_contrib")]
fn linear_attention_and_its_convolution_are_states(#[case] file: &str) {
    let (model, collected) = collected(&format!("onnx/{file}.onnx"));
    let resources = collected.resources;
    let state = &resources.get("ssm_state_3").unwrap().handler;
    assert_eq!((state.unit_bytes(), state.dtype()), (4 * 16 * 32 * 4, DType::F32));
    // The export does not tell the shape of the decay, so that the larger one is assumed.
    let delta = Recurrence::LinearAttention { num_k_heads: 4, delta_rule: true, decay: DecayKind::PerChannel };
    assert_eq!(state.recurrence(), Some(delta));
    assert!(model.facts.iter().any(|fact| fact.assumed && fact.what == "layer 3: decay of linear attention"));
    let conv = &resources.get("conv_state_3").unwrap().handler;
    assert_eq!((conv.unit_bytes(), conv.dtype()), (192 * 3 * 2, DType::F16));
}

#[test]
fn names_pair_states_that_no_op_tells() {
    let (model, collected) = collected("onnx/past_and_present_only.onnx");
    let resources = &collected.resources;
    assert_eq!(resources.get("kv_cache_0").unwrap().handler.unit_bytes(), 2 * 2 * 16 * 2);
    let state = resources.get("retention_state_1").unwrap();
    assert_eq!((state.handler.kind(), state.handler.unit_bytes()), (&Kind::State, 4 * 8 * 8 * 4));
    assert_eq!(model.facts.iter().filter(|fact| fact.assumed).count(), 2);
}

/// A copy of an export with one byte sequence replaced by another of the same length.
fn patched(file: &str, from: &[u8], to: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let mut bytes = fs::read(fixture(file)).unwrap();
    let at = bytes.windows(from.len()).position(|window| window == from).unwrap();
    bytes[at..at + to.len()].copy_from_slice(to);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("patched.onnx");
    fs::write(&path, bytes).unwrap();
    (folder, path)
}

/// The attribute `dstate` of the first `update_ssm_state`: name, then the number as a varint of field 3.
#[test]
fn an_attribute_that_contradicts_the_shapes_is_refused() {
    let (_folder, path) = patched("onnx/hybrid_opset23.onnx", b"\x0a\x06dstate\x18\x10", b"\x0a\x06dstate\x18\x11");
    let error = Model::read(&path, &ReadOptions::default()).unwrap_err();
    assert!(matches!(error, FrontendError::Onnx { .. }));
    assert!(error.to_string().contains("attribute dstate is 17, the shapes say 16"), "{error}");
}

/// A convolution of 208 channels beside a state update of 128 + 2 * 2 * 16 is right by itself: who places them judges.
#[test]
fn a_convolution_of_other_channels_than_the_state_beside_it_needs_is_read() {
    let mut bytes = fs::read(fixture("onnx/hybrid_opset23.onnx")).unwrap();
    // Every extent of 192, the channels, becomes 208.
    for at in 0..bytes.len() {
        if bytes[at..].starts_with(&[0x08, 0xc0, 0x01]) {
            bytes[at + 1] = 0xd0;
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wide.onnx");
    fs::write(&path, bytes).unwrap();
    let resources = resources(Model::read(&path, &ReadOptions::default()).unwrap());
    let conv = &resources.get("conv_state_0").unwrap().handler;
    assert_eq!(conv.shape().iter().map(|dim| dim.size).collect::<Vec<_>>(), [208, 3]);
    assert_eq!(resources.get("ssm_state_0").unwrap().handler.unit_bytes(), 8 * 16 * 16 * 4);
}

/// The contrib op renamed in place: nothing else in the graph tells that it keeps keys.
#[test]
fn an_unknown_attention_is_refused_with_what_is_near() {
    let file = "onnx/packed_attention_without_past.onnx";
    let (_folder, path) = patched(file, b"GroupQueryAttention", b"GroopQueryAttention");
    let error = Model::read(&path, &ReadOptions::default()).unwrap_err();
    assert!(error.is_unsupported());
    assert!(error.to_string().contains("near: com.microsoft.GroupQueryAttention"), "{error}");
}

#[test]
fn an_assumption_about_a_graph_is_refused() {
    let options = ReadOptions { assume: vec!["head_dim=8".parse().unwrap()], ..ReadOptions::default() };
    let error = Model::read(&fixture("onnx/hybrid_opset23.onnx"), &options).unwrap_err();
    assert!(matches!(error, FrontendError::Assumption { .. }), "{error}");
}

#[test]
fn a_cut_export_is_an_error() {
    let bytes = fs::read(fixture("onnx/hybrid_opset23.onnx")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut.onnx");
    for length in [3, 100, bytes.len() / 2, bytes.len() - 1] {
        fs::write(&path, &bytes[..length]).unwrap();
        assert!(Model::read(&path, &ReadOptions::default()).is_err(), "{length}");
    }
}

#[test]
fn the_exporters_runtime_config_gives_the_same_caches() {
    let runtime = collected("edge_llm/config.json").1.resources;
    assert_eq!(essence(&runtime), essence(&resources(built())));
}

/// Keys and values of each layer in one tensor: pages, in the type that the export keeps them in.
#[test]
fn attention_plugins_are_planned_as_the_attention_they_are() {
    let (model, collected) = collected("onnx/edge_attention/model.onnx");
    assert_eq!(support::layer_kinds(&model), ["attention"; 4]);
    assert_eq!(collected.resources.len(), 4);
    for layer in 0..4 {
        let handler = &collected.resources.get(&format!("kv_cache_{layer}")).unwrap().handler;
        assert_eq!(
            (handler.kind(), handler.dtype(), handler.bytes_per_token()),
            (&Kind::KvPaged, DType::F16, Some((256, 1)))
        );
    }
    let bound: Vec<_> = model.states.iter().map(|state| (state.layers[0], state.part, state.output.as_str())).collect();
    assert_eq!(bound[3], (3, StatePart::KeysAndValues, "present_key_values_3"));
    assert_eq!(bound.len(), 4);
}

#[rstest]
#[case(b"trt_edgellm", b"_rt_edgellm", "`_rt_edgellm`; the operator of this name is of `trt_edgellm`")]
#[case(b"chunk_size", b"chunk_side", "attribute chunk_side is not known, and could change what is computed")]
fn what_the_plugins_would_not_run_is_not_planned(#[case] from: &[u8], #[case] to: &[u8], #[case] message: &str) {
    let (_folder, path) = patched("onnx/hybrid_opset18.onnx", from, to);
    let error = Model::read(&path, &ReadOptions::default()).unwrap_err().to_string();
    assert!(error.contains(message), "{error}");
}
