//! What is exported of a model computes what the model does.

use std::path::{Path, PathBuf};

use cacheplan_planner::Unit;
use cacheplan_runtime::{GraphExport, RuntimeError, Session, SessionOptions};
use cacheplan_transforms::ReadOptions;
use rstest::rstest;

use crate::{fixture, generated, options, request};

pub(crate) fn export(
    model: &Path,
    buckets: &[Option<u64>],
    max_cache_len: u64,
    out: &Path,
) -> Result<Vec<PathBuf>, RuntimeError> {
    GraphExport { buckets: buckets.to_vec(), max_cache_len, read: ReadOptions::default() }.write(model, out)
}

/// Whichever buckets there are.
#[rstest]
#[case("models/llama", 96)]
#[case("models/qwen3", 320)]
#[case("variants/qwen2_window", 32)]
#[case("variants/mistral_window", 32)]
#[case::a_hybrid("static_cache/nemotron_h", 96)]
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

#[rstest]
#[case::a_layer_of_another_kind("models/nemotron_h", &[None], 64, 4, "Moe: a layer of this kind is not exported")]
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
