//! GGUF headers tell the same caches as the configs they were converted from.

mod support;

use std::fs;

use cacheplan_transforms::{FrontendError, PassContext, ReadOptions, collect, read_model};
use rstest::rstest;

use support::{essence, fixture};

#[rstest]
#[case("llama", "llama")]
#[case("qwen3", "qwen3")]
#[case("gemma3", "gemma3")]
#[case("gpt-oss", "gpt_oss")]
#[case("deepseek2", "deepseek_v3")]
#[case("mamba", "mamba")]
#[case("mamba2", "mamba2")]
#[case("jamba", "jamba")]
#[case("granitehybrid", "granitemoehybrid")]
#[case("nemotron_h", "nemotron_h")]
#[case("lfm2", "lfm2")]
#[case("qwen3next", "qwen3_next")]
fn a_header_gives_the_resources_of_its_config(#[case] gguf: &str, #[case] config: &str) {
    let (model, from_gguf) = support::collected(&format!("gguf/{gguf}.gguf"));
    let (original, from_config) = support::collected(&format!("models/{config}"));
    assert_eq!(essence(&from_gguf.resources), essence(&from_config.resources));
    assert_eq!(model.info.layers, original.info.layers);
    assert_eq!(model.info.model_type, format!("gguf:{gguf}"));
    assert!(model.info.weights.unwrap().exact);
}

#[test]
fn a_header_cut_anywhere_is_an_error_and_no_panic() {
    let whole = fs::read(fixture("gguf/nemotron_h.gguf")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut.gguf");
    for length in (0..whole.len() - 64).step_by(13) {
        fs::write(&path, &whole[..length]).unwrap();
        let error = read_model(&path, &ReadOptions::default()).unwrap_err();
        assert!(matches!(error, FrontendError::Truncated { .. }), "{length}: {error}");
    }
}

#[test]
fn an_unknown_architecture_is_unsupported() {
    let mut file = fs::read(fixture("gguf/llama.gguf")).unwrap();
    let position = file.windows(5).position(|window| window == b"llama").unwrap();
    file[position] = b'x';
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    fs::write(&path, file).unwrap();
    let error = read_model(&path, &ReadOptions::default()).unwrap_err();
    assert!(error.is_unsupported() && error.to_string().contains("gguf:xlama"), "{error}");
}

/// A quantised cache is the budget's choice: llama.cpp's q8_0 keeps 34 bytes per 32 numbers.
#[test]
fn a_quantised_cache_keeps_its_scales() {
    let mut model = support::read("gguf/qwen3.gguf");
    let dtypes = cacheplan_transforms::CacheDTypes { kv: Some(cacheplan_handlers::DType::Q8_0), ..Default::default() };
    let resources = collect(&mut model.graph, &PassContext { dtypes, ..PassContext::default() }).unwrap().resources;
    assert_eq!(resources.get("kv_cache_0").unwrap().handler.unit_bytes(), 2 * 2 * 34);
}
