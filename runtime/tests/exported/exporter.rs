//! What is exported of a model computes what the model does.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use cacheplan_graphs::{GraphEngine, Input, Runner, Slice, SliceMut};
use cacheplan_handlers::DType;
use cacheplan_planner::Unit;
use cacheplan_runtime::{GraphDType, GraphExport, RuntimeError, Session, SessionOptions};
use cacheplan_transforms::ReadOptions;
use cacheplan_transforms::onnx::{ModelProto, TensorProto, ValueInfo};
use candle_core::Device;
use prost::Message;
use rstest::rstest;

use crate::{admit, fixture, generated, ids, options, request, step};

/// The export of these buckets, of one sequence, in the model's own numbers.
pub(crate) fn as_said(buckets: &[Option<u64>], max_cache_len: u64) -> GraphExport {
    let (buckets, read) = (buckets.to_vec(), ReadOptions::default());
    GraphExport { buckets, max_cache_len, max_batch_size: 1, dtype: None, random: None, read }
}

pub(crate) fn export(
    model: &Path,
    buckets: &[Option<u64>],
    max_cache_len: u64,
    out: &Path,
) -> Result<Vec<PathBuf>, RuntimeError> {
    as_said(buckets, max_cache_len).write(model, out)
}

/// Whichever buckets there are.
#[rstest]
#[case("models/llama", 96)]
#[case("models/qwen3", 320)]
#[case("variants/qwen2_window", 32)]
#[case("variants/mistral_window", 32)]
#[case::a_hybrid("static_cache/nemotron_h", 96)]
#[case::a_hybrid_with_experts("models/nemotron_h", 96)]
#[case::gated_delta_nets("models/qwen3_next", 96)]
#[case::latents("models/deepseek_v3", 96)]
#[case::mamba_1("models/jamba", 96)]
#[case::short_convolutions("models/lfm2", 320)]
fn what_is_exported_gives_the_native_tokens(#[case] model: &str, #[case] vocab_size: u32) {
    let model = fixture(model);
    let prompt = |len: u32| (0..len).map(|token| (token * 29 + len) % vocab_size).collect::<Vec<_>>();
    let requests = [request(&prompt(5), 12), request(&prompt(23), 12), request(&prompt(1), 12)];
    let expected = generated(&mut Session::open(&model, options("max_seq_len = 48\n")).unwrap(), &requests);
    for buckets in [&[None, Some(1)][..], &[Some(16), Some(1)], &[Some(8)], &[Some(64), None, Some(1)]] {
        let folder = tempfile::tempdir().unwrap();
        let files = export(&model, buckets, 64, folder.path()).unwrap();
        assert_eq!(files.len(), buckets.len());
        let options =
            SessionOptions { static_graphs: Some(folder.path().to_owned()), ..options("max_batch_size = 2\n") };
        let mut session = Session::open(&model, options).unwrap();
        assert!(session.plan().pools.iter().all(|pool| pool.unit == Unit::Slot));
        let generation = session.generate(&requests, false).unwrap();
        let report = session.report(&requests, &generation).unwrap().report;
        assert!(report.pools.iter().all(|pool| pool.actual_bytes == Some(pool.planned_bytes)));
        let tokens: Vec<Vec<u32>> = generation.outputs.into_iter().map(|output| output.tokens).collect();
        assert_eq!(tokens, expected, "{buckets:?}");
    }
}

/// A decoding step over a cache that is lent takes as many bytes from place to place, however long the cache is.
#[test]
fn a_token_does_not_move_more_where_the_cache_is_longer() {
    let moved = [64, 2048].map(|max_cache_len| {
        let folder = tempfile::tempdir().unwrap();
        let files = export(&fixture("models/qwen3"), &[Some(1)], max_cache_len, folder.path()).unwrap();
        let mut runner = Runner::open(&files[0], &GraphEngine::Interpreter).unwrap();
        let ports = runner.inputs().to_vec();
        let shapes: Vec<Vec<usize>> = ports.iter().map(|port| port.shape.iter().flatten().copied().collect()).collect();
        let lens = shapes.iter().map(|shape| shape.iter().product());
        let mut floats: Vec<Vec<f32>> = lens.clone().map(|len| vec![0.0; len]).collect();
        let ints: Vec<Vec<i64>> = lens.map(|len| vec![1; len]).collect();
        let of = ports.iter().zip(&shapes).zip(floats.iter_mut().zip(&ints));
        let mut inputs: Vec<Input<'_>> = of
            .map(|((port, shape), (floats, ints))| match port.element.is_float() {
                true => Input::scratch(SliceMut::Float(floats), shape.clone()),
                false => Input::new(Slice::Int(ints), shape.clone()),
            })
            .collect();
        drop(runner.run(&mut inputs).unwrap());
        runner.moved_bytes().unwrap()
    });
    assert_eq!(moved[0], moved[1]);
}

#[rstest]
#[case::a_bucket_beyond_the_cache("models/qwen3", &[Some(1), Some(65)], 64, 2, "a bucket of 65 tokens cannot be exported; it must be from 1 to 64")]
#[case::a_bucket_of_nothing("models/qwen3", &[Some(0)], 64, 2, "a bucket of 0 tokens")]
#[case::a_cache_of_nothing("models/qwen3", &[None], 0, 2, "a cache of 0 tokens")]
#[case::a_cache_beyond_all("models/qwen3", &[None], u64::MAX, 2, "it must be from 1 to 1048576")]
fn what_cannot_be_exported_is_named(
    #[case] model: &str,
    #[case] buckets: &[Option<u64>],
    #[case] max_cache_len: u64,
    #[case] exit_code: u8,
    #[case] message: &str,
) {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("graphs");
    let error = export(&fixture(model), buckets, max_cache_len, &out).unwrap_err();
    assert!(error.to_string().contains(message), "{error}");
    assert_eq!((error.exit_code(), out.join("prefill.onnx").exists()), (exit_code, false));
}

/// The model of a file.
fn read(file: &Path) -> ModelProto {
    ModelProto::decode(std::fs::read(file).unwrap().as_slice()).unwrap()
}

fn kind(port: &ValueInfo) -> i32 {
    port.r#type.as_ref().unwrap().tensor_type.as_ref().unwrap().elem_type
}

/// The sizes of a port's axes; `None` for open ones.
fn shape(port: &ValueInfo) -> Vec<Option<i64>> {
    let tensor = port.r#type.as_ref().unwrap().tensor_type.as_ref().unwrap();
    tensor.shape.iter().flat_map(|shape| &shape.dim).map(|dim| dim.dim_value).collect()
}

/// As the plugin for Mamba-2 takes it: its decay rates in f32, everything else of floats in 16 bits.
#[rstest]
#[case(GraphDType::F16, TensorProto::FLOAT16)]
#[case(GraphDType::Bf16, TensorProto::BFLOAT16)]
fn sixteen_bits_are_what_the_file_holds(#[case] dtype: GraphDType, #[case] narrow: i32) {
    let folder = tempfile::tempdir().unwrap();
    let form = GraphExport { dtype: Some(dtype), ..as_said(&[Some(1)], 64) };
    let files = form.write(&fixture("models/nemotron_h"), folder.path()).unwrap();
    let graph = read(&files[0]).graph.unwrap();
    let whole = [TensorProto::INT32, TensorProto::INT64];
    let floats = graph.input.iter().chain(&graph.output).map(kind).filter(|kind| !whole.contains(kind));
    assert!(floats.clone().count() > 4 && floats.clone().all(|kind| kind == narrow));
    let constant = |name: &str| graph.initializer.iter().find(|tensor| tensor.name == name).unwrap().data_type;
    let scans = graph.node.iter().filter(|node| node.op_type == "update_ssm_state");
    for node in scans.clone() {
        let [a, d, dt_bias] = [1, 4, 6].map(|at| constant(&node.input[at]));
        assert_eq!((a, d, dt_bias), (TensorProto::FLOAT, narrow, narrow));
    }
    assert!(scans.count() > 0);
}

/// Pools of f16, whose rows are written where they lie; the tokens of this model are not close enough to change.
#[test]
fn a_graph_in_f16_runs_in_pools_of_f16() {
    let (folder, model) = (tempfile::tempdir().unwrap(), fixture("static_cache/qwen3"));
    let form = GraphExport { dtype: Some(GraphDType::F16), ..as_said(&[None, Some(1)], 64) };
    form.write(&model, folder.path()).unwrap();
    let prompt = ids("static_cache/golden.safetensors", "input_ids");
    let options = SessionOptions { static_graphs: Some(folder.path().to_owned()), ..options("") };
    let mut session = Session::open(&model, options).unwrap();
    assert!(session.plan().pools.iter().all(|pool| pool.dtype == DType::F16));
    let tokens = generated(&mut session, &[request(&prompt, 24)]);
    assert_eq!(tokens[0], ids("static_cache/golden.safetensors", "greedy"));
}

/// Its caches are bf16 too, and its logits differ from the model's by what 8 bits leave.
#[rstest]
#[case("static_cache/qwen3")]
#[case::with_states("static_cache/nemotron_h")]
fn a_graph_in_bf16_runs_in_pools_of_bf16(#[case] model: &str) {
    let (folder, model) = (tempfile::tempdir().unwrap(), fixture(model));
    let form = GraphExport { dtype: Some(GraphDType::Bf16), ..as_said(&[None, Some(1)], 64) };
    form.write(&model, folder.path()).unwrap();
    let options = |static_graphs| SessionOptions { static_graphs, ..options("max_seq_len = 64\n") };
    let mut graphs = Session::open(&model, options(Some(folder.path().to_owned()))).unwrap();
    assert!(graphs.plan().pools.iter().all(|pool| pool.dtype == DType::Bf16), "{:?}", graphs.plan().pools);
    let mut native = Session::open(&model, options(None)).unwrap();
    let sequences = [admit(&mut graphs, 13), admit(&mut native, 13)];
    for tokens in [&[3, 14, 15, 9, 26, 5, 35, 89, 7, 9, 32, 38, 46][..], &[26]] {
        let (found, exact) = (step(&mut graphs, sequences[0], tokens), step(&mut native, sequences[1], tokens));
        let largest = exact.iter().fold(0f32, |most, x| most.max(x.abs()));
        let error = found.iter().zip(&exact).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
        assert!(error > 0.0 && error < 0.05 * largest, "{error} of {largest}");
    }
}

/// What is 16 bits wide stays so, unless f32 is asked for.
#[rstest]
#[case::of_16_bits("bfloat16", None, TensorProto::FLOAT16)]
#[case::asked_for("bfloat16", Some(GraphDType::F32), TensorProto::FLOAT)]
#[case::of_32_bits("float32", None, TensorProto::FLOAT)]
fn a_graph_has_the_width_of_its_model(#[case] stated: &str, #[case] dtype: Option<GraphDType>, #[case] expected: i32) {
    let folder = tempfile::tempdir().unwrap();
    let config = std::fs::read_to_string(fixture("models/llama/config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
    config.as_object_mut().unwrap().remove("torch_dtype");
    config["dtype"] = stated.into();
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let files = GraphExport { dtype, ..as_said(&[Some(1)], 16) }.write(folder.path(), &folder.path().join("out"));
    let graph = read(&files.unwrap()[0]).graph.unwrap();
    assert_eq!(kind(graph.output.iter().find(|port| port.name == "new_k").unwrap()), expected);
}

/// What f16 has no number for is not written as infinity.
#[test]
fn a_weight_beyond_f16_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let model = fixture("models/llama");
    std::fs::copy(model.join("config.json"), folder.path().join("config.json")).unwrap();
    let mut tensors = candle_core::safetensors::load(model.join("model.safetensors"), &Device::Cpu).unwrap();
    let norm = tensors.get_mut("model.norm.weight").unwrap();
    *norm = (&*norm * 1e6).unwrap();
    candle_core::safetensors::save(&tensors, folder.path().join("model.safetensors")).unwrap();
    let out = folder.path().join("out");
    let export = |dtype| GraphExport { dtype: Some(dtype), ..as_said(&[Some(1)], 16) }.write(folder.path(), &out);
    let error = export(GraphDType::F16).unwrap_err();
    assert!(error.to_string().contains("is beyond f16, whose largest number is 65504; export f32"), "{error}");
    assert!(export(GraphDType::F32).is_ok());
}

/// Each sequence has its own positions and lengths.
#[test]
fn several_sequences_have_positions_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let form = GraphExport { max_batch_size: 3, ..as_said(&[None], 64) };
    let files = form.write(&fixture("static_cache/nemotron_h"), folder.path()).unwrap();
    let graph = read(&files[0]).graph.unwrap();
    let found: BTreeMap<&str, _> = graph.input.iter().map(|port| (port.name.as_str(), shape(port))).collect();
    for (name, expected) in [
        ("input_ids", vec![Some(3), None]),
        ("cache_position", vec![Some(3), None]),
        ("attention_mask", vec![Some(3), Some(64)]),
        ("context_lengths", vec![Some(3)]),
    ] {
        assert_eq!(found[name], expected, "{name}");
    }
    let states = found.iter().filter(|(name, _)| name.contains("_state_"));
    assert!(states.clone().count() > 1 && states.clone().all(|(_, shape)| shape[0] == Some(3)));
    assert_eq!(found["past_k"][1], Some(3));
    let error = export_of(0).unwrap_err();
    assert!(error.to_string().contains("a batch of 0 sequences cannot be exported"), "{error}");
}

fn export_of(max_batch_size: u64) -> Result<Vec<PathBuf>, RuntimeError> {
    let folder = tempfile::tempdir().unwrap();
    GraphExport { max_batch_size, ..as_said(&[None], 64) }.write(&fixture("models/llama"), folder.path())
}

/// The seed decides, and nothing else does.
#[rstest]
#[case("models/llama")]
#[case("static_cache/nemotron_h")]
fn random_weights_give_the_same_tokens_native_and_exported(#[case] model: &str) {
    let (folder, source) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::copy(fixture(model).join("config.json"), source.path().join("config.json")).unwrap();
    let verified = [0, 1, 1].into_iter().enumerate().map(|(number, seed)| {
        let out = folder.path().join(number.to_string());
        let export = GraphExport { random: Some(seed), ..as_said(&[None, Some(1)], 64) };
        export.write(source.path(), &out).unwrap();
        let verified = export.verify(source.path(), &out, None, 16).unwrap();
        assert!(verified.matches() && verified.native.len() == 16, "{verified:?}");
        (verified, std::fs::read(out.join("model.safetensors")).unwrap())
    });
    let [zero, one, again] = verified.collect::<Vec<_>>().try_into().unwrap();
    assert_eq!(one, again);
    assert_ne!(zero.1, one.1);
    assert!(!source.path().join("model.safetensors").exists());
}

#[test]
fn random_weights_never_take_the_place_of_a_model() {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(fixture("models/llama").join(file), folder.path().join(file)).unwrap();
    }
    let trained = std::fs::read(folder.path().join("model.safetensors")).unwrap();
    let export = GraphExport { random: Some(0), ..as_said(&[Some(1)], 64) };
    let error = export.write(folder.path(), folder.path()).unwrap_err();
    assert!(error.to_string().contains("would take the place of the model's own"), "{error}");
    assert_eq!(std::fs::read(folder.path().join("model.safetensors")).unwrap(), trained);
}
