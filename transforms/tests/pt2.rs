//! Programs of torch.export, as `tests/fixtures/pt2/make.py` wrote them.

use std::path::{Path, PathBuf};

use cacheplan_transforms::{FrontendError, Model, PassContext, ReadOptions};
use rstest::rstest;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/pt2").join(name)
}

fn read(path: &Path) -> Result<Model, FrontendError> {
    Model::read(path, &ReadOptions::default())
}

/// Name, layer and sizes of each cache.
fn caches(model: &mut Model) -> Vec<(String, Option<u32>, Vec<u64>)> {
    let collected = model.graph.collect(&PassContext::default()).unwrap();
    let sizes =
        |resource: &cacheplan_transforms::Resource| resource.handler.shape().iter().map(|dim| dim.size).collect();
    collected.resources.iter().map(|found| (found.name.clone(), found.layer, sizes(found))).collect()
}

/// Whether buffers are written in place, or the signature says what takes their place.
#[rstest]
#[case::in_place("llama.pt2")]
#[case::functional("llama_functional.pt2")]
fn static_keys_and_values_are_told_by_the_attention_that_reads_them(#[case] file: &str) {
    let mut model = read(&fixture(file)).unwrap();
    assert_eq!((model.info.layers, model.info.max_position_embeddings, model.info.step_tokens), (2, Some(32), Some(1)));
    assert_eq!(model.info.weights.as_ref().map(|weights| (weights.bytes, weights.exact)), Some((22_848, true)));
    assert!(model.facts.iter().all(|fact| !fact.assumed), "{:?}", model.facts);
    let of_layer = |part: &str, layer: u32| (format!("{part}_cache_{layer}"), Some(layer), vec![2, 8]);
    let expected = [0, 1].map(|layer| ["key", "value"].map(|part| of_layer(part, layer)));
    assert_eq!(caches(&mut model), expected.concat());
}

#[test]
fn what_else_a_program_renews_is_a_state_of_its_shape() {
    let mut model = read(&fixture("hybrid.pt2")).unwrap();
    let assumed: Vec<&str> = model.facts.iter().filter(|fact| fact.assumed).map(|fact| fact.what.as_str()).collect();
    assert_eq!(assumed, ["conv_state_0", "ssm_state_0"]);
    assert!(model.source.contains("torch.export, schema 8."), "{}", model.source);
    let mut found = caches(&mut model);
    found.sort();
    let expected = [
        ("conv_state_0".to_owned(), Some(0), vec![24, 3]),
        ("key_cache_1".to_owned(), Some(1), vec![1, 8]),
        ("ssm_state_0".to_owned(), Some(0), vec![2, 8, 4]),
        ("value_cache_1".to_owned(), Some(1), vec![1, 8]),
    ];
    assert_eq!(found, expected);
}

/// Members are stored as they are, so that text of the same length can take the place of text.
fn replaced(file: &str, from: &str, to: &str) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let mut bytes = std::fs::read(fixture(file)).unwrap();
    let mut count = 0;
    while let Some(at) = bytes.windows(from.len()).position(|text| text == from.as_bytes()) {
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        count += 1;
    }
    assert!(count > 0, "{file} has no `{from}`");
    bytes
}

#[rstest]
#[case::another_schema("\"major\": 8", "\"major\": 9", "its schema is 9.")]
#[case::another_attention("aten.scaled_dot", "aten.Scaled_dot", "an attention of this kind is not known")]
#[case::keys_of_nowhere("aten.index_put", "aten.index_pux", "it was exported without a cache")]
#[case::several_sequences(
    "[{\"as_int\": 1}, {\"as_int\": 24}, {\"as_int\": 3}]",
    "[{\"as_int\": 2}, {\"as_int\": 24}, {\"as_int\": 3}]",
    "conv_state_0: it holds 2 sequences"
)]
#[case::of_another_type("\"dtype\": 7", "\"dtype\": 8", "no cache has its element type")]
#[case::control_flow("torch.ops.aten.linear.default", "torch.ops.higher_order.cond_0", "what it keeps cannot be told")]
#[case::no_program("models/model.json", "models/model.jsox", "there is no program in it")]
#[case::no_archive("PK\u{5}\u{6}", "PK\u{5}\u{7}", "it is no zip archive")]
fn a_program_beyond_that_is_refused_by_name(#[case] from: &str, #[case] to: &str, #[case] message: &str) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.pt2");
    std::fs::write(&file, replaced("hybrid.pt2", from, to)).unwrap();
    let error = read(&file).unwrap_err().to_string();
    assert!(error.contains("model.pt2: ") && error.contains(message), "{error}");
}

#[test]
fn a_program_that_keeps_nothing_is_refused() {
    let error = read(&fixture("linear.pt2")).unwrap_err().to_string();
    assert!(error.contains("it renews no buffer"), "{error}");
}

#[test]
fn a_compressed_program_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.pt2");
    let mut bytes = std::fs::read(fixture("hybrid.pt2")).unwrap();
    let name = bytes.windows(24).rposition(|text| text == b"hybrid/models/model.json").unwrap();
    // Of its entry in the directory, 46 bytes in front of the name.
    bytes[name - 46 + 10] = 8;
    std::fs::write(&file, bytes).unwrap();
    assert!(read(&file).unwrap_err().to_string().contains("it is compressed"));
}

/// Whatever is in it: what would do is named instead of what is wrong with its bytes.
#[test]
fn a_program_of_executorch_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("llama.pte");
    std::fs::write(&file, b"\x1c\0\0\0ET12").unwrap();
    let error = read(&file).unwrap_err().to_string();
    assert!(error.contains("llama.pte: the program: programs of ExecuTorch") && error.contains(".pt2"), "{error}");
}
