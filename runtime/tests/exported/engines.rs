//! The same tokens, whatever computes them.

use std::path::Path;

use cacheplan_graphs::GraphEngine;
use cacheplan_runtime::{Request, Sampling, Session, SessionOptions};
use rstest::rstest;

use crate::exporter::export;
use crate::{exported, fixture, generated, ids, native, options, prompts, request};

/// 24 tokens that transformers chose, 64 behind each of five prompts, and 64 that are drawn.
fn gives_the_native_tokens(session: &mut Session) {
    let prompt = ids("static_cache/golden.safetensors", "input_ids");
    assert_eq!(generated(session, &[request(&prompt, 24)])[0], ids("static_cache/golden.safetensors", "greedy"));
    let mut expected = native("max_seq_len = 128\n");
    assert_eq!(generated(session, &prompts()), generated(&mut expected, &prompts()));
    let drawn = generated(session, &sampled());
    assert_eq!(drawn, generated(&mut expected, &sampled()));
    assert_ne!(drawn, generated(session, &prompts()));
}

fn sampled() -> Vec<Request> {
    let draw = |(seed, request)| Request {
        sampling: Sampling { temperature: 0.8, top_p: 0.9, seed, ..Sampling::default() },
        ..request
    };
    (11..).zip(prompts()).map(draw).collect()
}

fn ours(engine: &GraphEngine) -> Session {
    let (folder, model) = (tempfile::tempdir().unwrap(), fixture("static_cache/qwen3"));
    export(&model, &[Some(64), None, Some(1)], 128, folder.path()).unwrap();
    with_engine(folder.path(), engine)
}

fn with_engine(graphs: &Path, engine: &GraphEngine) -> Session {
    let graphs = Some(graphs.to_owned());
    let options = SessionOptions { static_graphs: graphs, graph_engine: engine.clone(), ..options("") };
    Session::open(&fixture("static_cache/qwen3"), options).unwrap()
}

#[rstest]
#[case::native_in_one_block_of_fixed_shape(native("max_seq_len = 128\nmax_batch_size = 1\ntokens_per_block = 128\n"))]
#[case::exported_by_pytorch(exported(""))]
#[case::exported_by_us(ours(&GraphEngine::Interpreter))]
fn every_way_gives_the_native_tokens(#[case] mut session: Session) {
    gives_the_native_tokens(&mut session);
}

#[cfg_attr(not(feature = "ort"), ignore = "built without the feature `ort`")]
#[test]
fn onnx_runtime_gives_the_native_tokens() {
    let Some(engine) = onnx_runtime("onnx_runtime_gives_the_native_tokens") else { return };
    for mut session in [with_engine(&fixture("static_cache"), &engine), ours(&engine)] {
        gives_the_native_tokens(&mut session);
        // What it allocates is counted by nobody, and nobody says it was.
        assert!(session.profile().is_err());
        assert_eq!(session.generate(&prompts()[..1], false).unwrap().peak_bytes, None);
    }
}

/// Whatever is exported, padded and not.
#[cfg_attr(not(feature = "ort"), ignore = "built without the feature `ort`")]
#[test]
fn onnx_runtime_runs_what_is_exported_of_a_hybrid() {
    let Some(engine) = onnx_runtime("onnx_runtime_runs_what_is_exported_of_a_hybrid") else { return };
    let model = fixture("static_cache/nemotron_h");
    let requests = [request(&[5, 9, 2, 77, 31], 24), request(&[1; 13], 24)];
    let expected = generated(&mut Session::open(&model, options("max_seq_len = 64\n")).unwrap(), &requests);
    for buckets in [&[None, Some(1)][..], &[Some(16), Some(1)]] {
        let folder = tempfile::tempdir().unwrap();
        export(&model, buckets, 64, folder.path()).unwrap();
        let graphs = Some(folder.path().to_owned());
        let options = SessionOptions { static_graphs: graphs, graph_engine: engine.clone(), ..options("") };
        assert_eq!(generated(&mut Session::open(&model, options).unwrap(), &requests), expected, "{buckets:?}");
    }
}

#[cfg_attr(not(feature = "ort"), ignore = "built without the feature `ort`")]
#[test]
fn what_onnx_runtime_does_not_know_is_named() {
    let Some(engine) = onnx_runtime("what_onnx_runtime_does_not_know_is_named") else { return };
    let open = |engine| {
        let options = SessionOptions { graph_engine: engine, ..options("") };
        Session::open(&fixture("onnx/hybrid_opset18.onnx"), options).unwrap_err()
    };
    let error = open(engine);
    assert!(error.to_string().contains("trt_edgellm:causal_conv1d"), "{error}");
    assert_eq!(error.exit_code(), 4);
    let error = open(GraphEngine::OnnxRuntime("elsewhere.so".into()));
    assert!(error.to_string().contains("is in use already"), "{error}");
    assert_eq!(error.exit_code(), 1);
}

#[cfg_attr(feature = "ort", ignore = "built with the feature `ort`")]
#[test]
fn a_build_without_onnx_runtime_says_so() {
    let graph_engine = GraphEngine::OnnxRuntime("libonnxruntime.so".into());
    let static_graphs = Some(fixture("static_cache"));
    let options = SessionOptions { static_graphs, graph_engine, ..options("") };
    let error = Session::open(&fixture("static_cache/qwen3"), options).unwrap_err();
    assert!(error.to_string().contains("rebuild with `--features ort`"), "{error}");
}

/// ONNX Runtime's library, which `ORT_DYLIB_PATH` names; says on stderr, whatever is captured, which test goes without.
fn onnx_runtime(test: &str) -> Option<GraphEngine> {
    let library = std::env::var_os("ORT_DYLIB_PATH").filter(|path| !path.is_empty());
    if library.is_none() {
        use std::io::Write;
        let skipped = format!("skipped: {test}: ORT_DYLIB_PATH names no library\n");
        std::io::stderr().write_all(skipped.as_bytes()).unwrap();
    }
    library.map(|path| GraphEngine::OnnxRuntime(path.into()))
}
