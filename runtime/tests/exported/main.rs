//! Exported graphs generate in planned caches as native models do.

mod engines;
mod exporter;
mod families;
mod functions;

use std::path::{Path, PathBuf};

use cacheplan_handlers::Kind;
use cacheplan_managers::book::{SequenceId, StepMetadata, Work};
use cacheplan_planner::{Budget, ManagerKind, Owner, PlannedResource, Unit};
use cacheplan_runtime::{Request, RequestError, RuntimeError, Session, SessionOptions};
use cacheplan_transforms::onnx::{GraphProto, ModelProto, ValueInfo};
use candle_core::{Device, Tensor};
use prost::Message;
use rstest::rstest;

use exporter::export;

/// Room for forks and checkpoints.
const BUDGET: &str = "max_batch_size = 4\n[workload]\ncheckpoints_per_sequence = 1\n";

#[global_allocator]
static ALLOCATOR: cacheplan_managers::CountingAllocator = cacheplan_managers::CountingAllocator;

fn fixture(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(file)
}

fn options(budget: &str) -> SessionOptions {
    let budget = Budget::from_toml(budget, "test").unwrap();
    SessionOptions { budget, ignore_eos: true, ..SessionOptions::default() }
}

fn native(budget: &str) -> Session {
    Session::open(&fixture("static_cache/qwen3"), options(budget)).unwrap()
}

fn with_graphs(folder: &Path, budget: &str) -> Result<Session, RuntimeError> {
    let options = SessionOptions { static_graphs: Some(folder.to_owned()), ..options(budget) };
    Session::open(&fixture("static_cache/qwen3"), options)
}

fn exported(budget: &str) -> Session {
    with_graphs(&fixture("static_cache"), budget).unwrap()
}

/// A hybrid in graphs of these sizes that were exported of it.
fn hybrid(buckets: &[Option<u64>], budget: &str) -> Session {
    let (folder, model) = (tempfile::tempdir().unwrap(), fixture("static_cache/nemotron_h"));
    export(&model, buckets, 64, folder.path()).unwrap();
    let options = SessionOptions { static_graphs: Some(folder.path().to_owned()), ..options(budget) };
    Session::open(&model, options).unwrap()
}

fn ids(file: &str, name: &str) -> Vec<u32> {
    let tensors = candle_core::safetensors::load(fixture(file), &Device::Cpu).unwrap();
    tensors[name].flatten_all().unwrap().to_vec1::<i64>().unwrap().into_iter().map(|id| id as u32).collect()
}

fn request(prompt: &[u32], max_new_tokens: usize) -> Request {
    Request::new(prompt.to_vec(), max_new_tokens)
}

/// Five prompts of different lengths.
fn prompts() -> Vec<Request> {
    let prompt = |start: u32, len: u32| (start..start + len).map(|token| token * 53 % 320).collect::<Vec<_>>();
    [(1, 13), (40, 1), (7, 33), (90, 2), (150, 60)].map(|(start, len)| request(&prompt(start, len), 64)).to_vec()
}

fn generated(session: &mut Session, requests: &[Request]) -> Vec<Vec<u32>> {
    session.generate(requests, false).unwrap().outputs.into_iter().map(|output| output.tokens).collect()
}

#[test]
fn a_static_cache_gives_the_golden_tokens() {
    let prompt = ids("static_cache/golden.safetensors", "input_ids");
    let tokens = generated(&mut exported(""), &[request(&prompt, 24)]);
    assert_eq!(tokens[0], ids("static_cache/golden.safetensors", "greedy"));
}

#[rstest]
#[case::one_at_a_time("")]
#[case::three_at_once("max_batch_size = 3\n")]
#[case::prompts_in_pieces("max_batch_size = 2\nmax_num_tokens = 8\n")]
fn five_prompts_get_the_tokens_of_the_native_model(#[case] budget: &str) {
    let expected = generated(&mut native("max_seq_len = 128\n"), &prompts());
    assert_eq!(generated(&mut exported(budget), &prompts()), expected);
}

/// 128 columns of one sequence in each slot, nothing in pages, and what was planned is what was allocated.
#[test]
fn a_static_cache_is_planned_in_slots() {
    let mut session = exported("");
    let requests = [request(&[1, 2, 3], 4)];
    let generation = session.generate(&requests, false).unwrap();
    let plan = session.plan();
    assert!(plan.pools.iter().all(|pool| pool.unit == Unit::Slot));
    let bytes = 2 * 4 * 2 * 128 * 32 * 4;
    assert_eq!(plan.pools.iter().map(|pool| pool.unit_bytes).sum::<u64>(), bytes);
    assert_eq!((plan.limits.max_seq_len, plan.limits.max_batch_size, plan.limits.max_num_tokens), (128, 1, 128));
    let report = session.report(&requests, &generation).unwrap().report;
    assert!(report.pools.iter().all(|pool| pool.actual_bytes == Some(pool.planned_bytes)));
}

/// Each layer's keys and values are unpaged data of their own, which no manager owns, and lie together all the same.
#[test]
fn a_static_cache_is_unpaged_data_that_nobody_manages() {
    let mut session = exported("");
    let names = ["past_k", "past_v"].map(|name| [0, 1, 2, 3].map(|layer| format!("{name}_{layer}"))).concat();
    assert_eq!(session.parts().1.unmanaged().collect::<Vec<_>>(), names);
    let plan = session.plan();
    assert_eq!(
        plan.pools.iter().map(|pool| (pool.id.as_str(), &*pool.layers)).collect::<Vec<_>>(),
        [("unpaged.0", &[0, 1, 2, 3][..])]
    );
    let unpaged = |resource: &PlannedResource| (resource.owner, resource.kind.as_str()) == (Owner::Local, "unpaged");
    assert!(plan.resources.iter().all(unpaged), "{:?}", plan.resources);
    assert_eq!((plan.manager, plan.totals.managed_bytes), (ManagerKind::KvCacheManager, 0));
}

/// In pools that are shorter than the graph's tensors, and in pools of their own.
#[rstest]
#[case::of_fewer_tokens("max_seq_len = 64\n")]
#[case::of_fewer_tokens_at_once("max_seq_len = 100\nmax_batch_size = 3\n")]
#[case::apart("grouping = 'first-reference'\nmax_batch_size = 2\n")]
fn caches_that_lie_otherwise_than_in_the_graph_are_put_together(#[case] budget: &str) {
    let requests: Vec<Request> =
        prompts().iter().map(|request| self::request(&request.prompt[..1.max(request.prompt.len() / 3)], 20)).collect();
    assert_eq!(generated(&mut exported(budget), &requests), generated(&mut native("max_seq_len = 128\n"), &requests));
}

/// The layer of an attention among others is that of the model, which the graph's nodes tell.
#[test]
fn the_static_cache_of_a_hybrid_is_of_its_attentions_layer() {
    let layers = |session: Session, kind: &str| -> Vec<Option<u32>> {
        session
            .plan()
            .resources
            .iter()
            .filter(|resource| resource.kind == kind)
            .map(|resource| resource.layer)
            .collect()
    };
    let model = fixture("static_cache/nemotron_h");
    let attentions = layers(Session::open(&model, options("max_seq_len = 64\n")).unwrap(), "kv_paged");
    assert!(!attentions.is_empty() && attentions[0] != Some(0), "{attentions:?}");
    assert_eq!(layers(hybrid(&[None, Some(1)], ""), "unpaged"), [attentions.clone(), attentions].concat());
}

#[rstest]
#[case("opset18")]
#[case("opset23")]
#[case::sixteen_bits("f16")]
fn a_hybrid_generates_what_onnx_runtime_did(#[case] name: &str) {
    let golden = format!("onnx/hybrid_{name}.golden.safetensors");
    let prompt = ids(&golden, "prompt");
    for budget in ["max_seq_len = 64\n", "max_seq_len = 64\nmax_num_tokens = 5\ntokens_per_block = 4\n"] {
        let mut session = Session::open(&fixture(&format!("onnx/hybrid_{name}.onnx")), options(budget)).unwrap();
        let other: Vec<u32> = prompt.iter().rev().copied().collect();
        let requests = [request(&prompt, 12), request(&other, 9), request(&prompt, 12)];
        let generation = session.generate(&requests, false).unwrap();
        assert_eq!(generation.outputs[0].tokens, ids(&golden, "greedy"));
        assert_eq!(generation.outputs[2].tokens, ids(&golden, "greedy"));
        let report = session.report(&requests, &generation).unwrap().report;
        assert!(report.pools.iter().all(|pool| pool.actual_bytes == Some(pool.planned_bytes)));
    }
}

/// Caches of an export whose attentions are plugins are pages of f16, and its rope table follows from the model's config.
#[test]
fn attention_plugins_generate_what_the_model_did() {
    let prompt = ids("onnx/edge_attention/golden.safetensors", "prompt");
    let expected = ids("static_cache/golden.safetensors", "greedy");
    for budget in ["max_seq_len = 64\n", "max_seq_len = 64\nmax_num_tokens = 5\ntokens_per_block = 4\n"] {
        let mut session = with_graphs(&fixture("onnx/edge_attention"), budget).unwrap();
        let requests = [request(&prompt, 24), request(&prompt[..4], 9), request(&prompt, 24)];
        let generation = session.generate(&requests, false).unwrap();
        assert_eq!(generation.outputs[0].tokens, expected);
        assert_eq!(generation.outputs[2].tokens, expected);
        assert!(session.plan().pools.iter().all(|pool| pool.id.starts_with("kv_paged")));
        let report = session.report(&requests, &generation).unwrap().report;
        assert!(report.pools.iter().all(|pool| pool.actual_bytes == Some(pool.planned_bytes)));
    }
    let error = Session::open(&fixture("onnx/edge_attention/model.onnx"), options("")).unwrap_err().to_string();
    assert!(error.contains("rope_rotary_cos_sin: its angles follow from the model's config"), "{error}");
}

/// Each has a position and rows of its own: those with as many tokens behind them go in one call.
#[test]
fn a_graph_of_two_sequences_gives_what_it_gives_for_one() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("two.onnx");
    rewrite("onnx/hybrid_opset18.onnx", &file, |graph| {
        for port in graph.input.iter_mut().chain(&mut graph.output) {
            resize(port, |axis, _| (axis == 0).then_some(2));
        }
    });
    let prompts: [&[u32]; 5] = [&[3, 1, 4, 1, 5], &[92, 65, 35, 89, 79], &[32, 38], &[46], &[7, 8, 9, 10, 11]];
    let requests = prompts.map(|prompt| request(prompt, 10));
    for budget in ["max_seq_len = 64\n", "max_seq_len = 64\nmax_num_tokens = 3\nmax_batch_size = 3\n"] {
        let expected =
            generated(&mut Session::open(&fixture("onnx/hybrid_opset18.onnx"), options(budget)).unwrap(), &requests);
        assert_eq!(generated(&mut Session::open(&file, options(budget)).unwrap(), &requests), expected);
    }
}

/// The logits behind the last of `tokens`.
fn step(session: &mut Session, sequence: SequenceId, tokens: &[u32]) -> Vec<f32> {
    let (decoder, caches) = session.parts();
    let caches = caches.manager_mut().unwrap();
    let mut metadata = StepMetadata::default();
    caches.step(&[Work { sequence, tokens: tokens.len() as u32 }], &mut metadata).unwrap();
    let logits: Tensor = decoder.forward(tokens, &[tokens.len() as u32 - 1], caches, &metadata).unwrap();
    logits.flatten_all().unwrap().to_vec1().unwrap()
}

fn admit(session: &mut Session, tokens: usize) -> SequenceId {
    session.parts().1.manager_mut().unwrap().admit(tokens as u32).unwrap()
}

#[rstest]
#[case::static_cache(exported(BUDGET))]
#[case::a_hybrid(hybrid(&[None, Some(1)], BUDGET))]
fn pieces_dirt_forks_and_restores_change_no_bit(#[case] mut session: Session) {
    let prompt: Vec<u32> = (0..13).map(|n| n * 37 % 96).collect();
    let whole = admit(&mut session, 13);
    let expected = step(&mut session, whole, &prompt);
    let next = step(&mut session, whole, &[5]);
    session.parts().1.manager_mut().unwrap().finish(whole).unwrap();

    session.parts().1.manager().unwrap().fill_free(1e3).unwrap();
    let cut = admit(&mut session, 13);
    step(&mut session, cut, &prompt[..8]);
    let kept = session.parts().1.manager_mut().unwrap().checkpoint(cut).unwrap();
    assert_eq!(step(&mut session, cut, &prompt[8..]), expected, "in pieces, over dirt");
    let fork = session.parts().1.manager_mut().unwrap().fork(cut).unwrap();
    step(&mut session, cut, &[6]);
    assert_eq!(step(&mut session, fork, &[5]), next, "a fork");
    session.parts().1.manager_mut().unwrap().rewind(cut, kept, 8).unwrap();
    assert_eq!(step(&mut session, cut, &prompt[8..]), expected, "restored");
    assert_eq!(step(&mut session, cut, &[5]), next, "restored, one more");
}

/// A graph of one size pads; what it pads with is written nowhere.
fn padded() -> Session {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(fixture("static_cache/decode.onnx"), folder.path().join("decode.onnx")).unwrap();
    rewrite("static_cache/prefill.onnx", &folder.path().join("prefill_64.onnx"), |graph| {
        for port in &mut graph.input {
            resize(port, |_, size| size.is_none().then_some(64));
        }
    });
    with_graphs(folder.path(), "").unwrap()
}

#[rstest]
#[case::static_cache(padded(), exported(""))]
#[case::a_hybrid(hybrid(&[Some(16), Some(1)], ""), hybrid(&[None, Some(1)], ""))]
fn padded_prompts_change_no_bit(#[case] mut padded: Session, #[case] mut exact: Session) {
    let prompt: Vec<u32> = (0..13).map(|n| n * 37 % 96).collect();
    let sequences = [admit(&mut padded, 13), admit(&mut exact, 13)];
    for tokens in [&prompt[..], &[3], &[4, 5, 6]] {
        assert_eq!(step(&mut padded, sequences[0], tokens), step(&mut exact, sequences[1], tokens));
    }
}

#[test]
fn what_the_caches_have_no_room_for_is_refused_before_anything_is_written() {
    let mut session = exported("");
    let long = request(&[1; 120], 9);
    let error = session.generate(&[long], false).unwrap_err();
    assert!(matches!(error, RuntimeError::Request(RequestError::TooLong { limit: 128, .. })), "{error}");
    let error = with_graphs(&fixture("static_cache"), "max_seq_len = 129\n").unwrap_err();
    assert!(matches!(error, RuntimeError::BeyondGraph { tokens: 129, limit: 128 }), "{error}");
}

/// In a step of two sequences the first could be computed.
#[test]
fn a_step_that_no_graph_takes_leaves_all_caches_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    export(&fixture("static_cache/qwen3"), &[Some(16)], 128, folder.path()).unwrap();
    let mut session = with_graphs(folder.path(), "max_batch_size = 2\nmax_num_tokens = 128\n").unwrap();
    let [first, second] = [admit(&mut session, 16), admit(&mut session, 120)];
    step(&mut session, second, &[7; 120]);
    let before = state(&mut session);
    let (decoder, caches) = session.parts();
    let caches = caches.manager_mut().unwrap();
    let mut metadata = StepMetadata::default();
    let work = [(first, 16), (second, 5)].map(|(sequence, tokens)| Work { sequence, tokens });
    caches.step(&work, &mut metadata).unwrap();
    let error = decoder.forward(&[3; 21], &[20], caches, &metadata).unwrap_err();
    assert!(matches!(error, RuntimeError::NoBucket { tokens: 5, past: 120, .. }), "{error}");
    assert_eq!(state(&mut session), before);
}

/// The pool that all keys and values are in.
fn state(session: &mut Session) -> Vec<f32> {
    let caches = session.parts().1.manager().unwrap();
    let layer = caches.state_layer(caches.route(0, &Kind::Unpaged).unwrap()).unwrap();
    layer.pool.flatten_all().unwrap().to_vec1().unwrap()
}

/// The graphs have the layers' own.
#[test]
fn of_the_model_only_the_weights_around_its_layers_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let (model, path) = (fixture("static_cache/qwen3"), folder.path());
    std::fs::copy(model.join("config.json"), path.join("config.json")).unwrap();
    let mut tensors = candle_core::safetensors::load(model.join("model.safetensors"), &Device::Cpu).unwrap();
    tensors.retain(|name, _| !name.contains("layers."));
    candle_core::safetensors::save(&tensors, path.join("model.safetensors")).unwrap();
    let options = SessionOptions { static_graphs: Some(fixture("static_cache")), ..options("") };
    let prompt = ids("static_cache/golden.safetensors", "input_ids");
    let tokens = generated(&mut Session::open(path, options).unwrap(), &[request(&prompt, 24)]);
    assert_eq!(tokens[0], ids("static_cache/golden.safetensors", "greedy"));
}

fn rewrite(from: &str, to: &Path, change: impl FnOnce(&mut GraphProto)) {
    let mut model = ModelProto::decode(std::fs::read(fixture(from)).unwrap().as_slice()).unwrap();
    change(model.graph.as_mut().unwrap());
    std::fs::write(to, model.encode_to_vec()).unwrap();
}

/// Sets the sizes of axes for which `to` gives one.
fn resize(port: &mut ValueInfo, to: impl Fn(usize, Option<i64>) -> Option<i64>) {
    let shape = port.r#type.as_mut().unwrap().tensor_type.as_mut().unwrap().shape.as_mut().unwrap();
    for (axis, dim) in shape.dim.iter_mut().enumerate() {
        if let Some(size) = to(axis, dim.dim_value) {
            (dim.dim_value, dim.dim_param) = (Some(size), None);
        }
    }
}

#[rstest]
#[case::an_unknown_operator("hybrid", |graph: &mut GraphProto| {
    let node = graph.node.iter_mut().find(|node| node.op_type == "Sigmoid").unwrap();
    (node.op_type, node.name) = ("Mish".to_owned(), "gate".to_owned());
}, "node `gate` (Mish): this operator is not run")]
#[case::a_value_that_nobody_makes("hybrid", |graph: &mut GraphProto| {
    let node = graph.node.iter_mut().find(|node| node.op_type == "Sigmoid").unwrap();
    (node.input[0], node.name) = ("nobody".to_owned(), "gate".to_owned());
}, "node `gate` (Sigmoid): it reads `nobody`, which nothing before it makes")]
#[case::an_input_of_unknown_use("hybrid", |graph: &mut GraphProto| {
    graph.input[0].name = "tokens".to_owned();
    graph.node.iter_mut().flat_map(|node| &mut node.input).filter(|name| *name == "input_ids").for_each(|name| {
        *name = "tokens".to_owned();
    });
}, "tokens: nobody knows what to give it")]
#[case::several_sequences("static", |graph: &mut GraphProto| {
    for port in graph.input.iter_mut().chain(&mut graph.output).filter(|port| port.name.ends_with("_k") || port.name.ends_with("_v")) {
        resize(port, |axis, _| (axis == 1).then_some(2));
    }
}, "state `past_k`: it holds 2 sequences, which would share one position")]
fn a_graph_that_cannot_run_says_which_part_of_it(
    #[case] which: &str,
    #[case] change: fn(&mut GraphProto),
    #[case] message: &str,
) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("graph.onnx");
    let opened = if which == "hybrid" {
        rewrite("onnx/hybrid_opset18.onnx", &file, change);
        Session::open(&file, options(""))
    } else {
        rewrite("static_cache/decode.onnx", &file, change);
        with_graphs(folder.path(), "")
    };
    let error = opened.unwrap_err();
    assert!(error.to_string().contains(message), "{error}");
    if which == "hybrid" {
        assert_eq!(error.exit_code(), 4);
    }
}

#[test]
fn graphs_of_another_model_are_refused() {
    let options = SessionOptions { static_graphs: Some(fixture("static_cache")), ..options("") };
    let error = Session::open(&fixture("models/llama"), options).unwrap_err();
    assert_eq!(error.exit_code(), 4, "{error}");
    let error = with_graphs(&fixture("static_cache/qwen3"), "").unwrap_err();
    assert!(error.to_string().contains("there is no .onnx file in this folder"), "{error}");
}
