//! GGUF files of every architecture give what transformers computes with the numbers of their blocks.

use std::path::PathBuf;

use cacheplan_runtime::{RuntimeError, Session, SessionOptions, WeightError};
use cacheplan_transforms::Model;
use candle_core::{DType, Device, Tensor};
use rstest::rstest;
use tempfile::TempDir;

use crate::harness::Driven;

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/gguf/models").join(name)
}

/// The token ids of a golden file and the logits behind each.
fn golden(name: &str) -> (Vec<u32>, Tensor) {
    let mut tensors =
        candle_core::safetensors::load(file(&format!("{name}.golden.safetensors")), &Device::Cpu).unwrap();
    let ids = tensors.remove("ids").unwrap().to_dtype(DType::U32).unwrap().to_vec1().unwrap();
    (ids, tensors.remove("logits").unwrap())
}

/// Fails unless all are within 1e-4 of the largest.
#[track_caller]
fn assert_near(ours: &Tensor, theirs: &Tensor, what: &str) {
    assert_eq!(ours.dims(), theirs.dims(), "{what}");
    let values = |tensor: &Tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let theirs = values(theirs);
    let largest = theirs.iter().fold(0f32, |most, value| most.max(value.abs()));
    for (at, (ours, theirs)) in values(ours).into_iter().zip(theirs).enumerate() {
        // Written so that NaN fails.
        assert!((ours - theirs).abs() <= 1e-4 * largest, "{what}: element {at} is {ours}, expected {theirs}");
    }
}

/// A prefill of more rows than are streamed, a chunk of a few, then single rows.
#[rstest]
fn a_file_gives_the_golden_logits(
    #[values(
        "llama",
        "llama.k",
        "qwen2",
        "qwen3",
        "qwen3moe",
        "gemma3",
        "gpt-oss",
        "mamba2",
        "nemotron_h",
        "nemotron_h_moe",
        "granitehybrid",
        "lfm2",
        "qwen3next",
        "falcon-h1"
    )]
    name: &str,
) {
    let (ids, expected) = golden(name);
    // Quantised files are planned with caches of 16 bits, which would round.
    let mut driven = Driven::open_assuming(&file(&format!("{name}.gguf")), "dtype=f32");
    let sequence = driven.admit(13);
    let mut logits = vec![driven.step(&[(sequence, &ids[..13])])];
    logits.push(driven.step(&[(sequence, &ids[13..18])]));
    logits.extend((18..ids.len()).map(|at| driven.step(&[(sequence, &ids[at..at + 1])])));
    assert_near(&Tensor::cat(&logits, 0).unwrap(), &expected, name);
}

/// What opening a changed copy of a file says.
fn refused(name: &str, change: impl FnOnce(&mut Vec<u8>)) -> RuntimeError {
    let mut bytes = std::fs::read(file(&format!("{name}.gguf"))).unwrap();
    change(&mut bytes);
    let folder = TempDir::new().unwrap();
    let copy = folder.path().join("changed.gguf");
    std::fs::write(&copy, bytes).unwrap();
    Session::open(&copy, SessionOptions::default()).unwrap_err()
}

/// Where the header describes a tensor, behind its name.
fn described(bytes: &[u8], tensor: &str) -> usize {
    let at = bytes.windows(tensor.len()).position(|window| window == tensor.as_bytes());
    at.unwrap() + tensor.len()
}

#[test]
fn a_file_that_is_cut_off_names_the_tensor_that_is_gone() {
    let error = refused("llama", |bytes| bytes.truncate(bytes.len() - 40));
    let message = error.to_string();
    assert!(matches!(error, RuntimeError::Weights(WeightError::Malformed { .. })), "{message}");
    assert!(message.contains("changed.gguf: the file ends at byte") && message.contains("its tensor `"), "{message}");
}

#[test]
fn numbers_that_are_none_name_file_and_tensor() {
    let files = Model::gguf_files(&file("llama.gguf")).unwrap().files;
    let norm = files[0].tensors.iter().find(|tensor| tensor.name == "output_norm.weight").unwrap();
    let at = norm.offset as usize;
    let error = refused("llama", |bytes| bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes()));
    let message = error.to_string();
    assert!(
        matches!(&error, RuntimeError::Weights(WeightError::NotFinite { name, .. }) if name == "output_norm.weight"),
        "{message}"
    );
    assert!(
        message.contains("changed.gguf: tensor `output_norm.weight` has numbers that are infinite or none"),
        "{message}"
    );
}

#[test]
fn a_tensor_of_another_shape_names_both() {
    let error = refused("llama", |bytes| {
        let at = described(bytes, "output_norm.weight");
        bytes[at + 4] = 16;
    });
    let message = error.to_string();
    assert!(
        message.contains("changed.gguf: tensor `output_norm.weight` has shape [16], the config asks for [32]"),
        "{message}"
    );
}

#[test]
fn a_type_that_is_not_run_is_refused_by_its_name() {
    let error = refused("llama", |bytes| {
        let at = described(bytes, "output_norm.weight");
        bytes[at + 12] = 20;
    });
    let message = error.to_string();
    assert!(
        matches!(&error, RuntimeError::Weights(WeightError::Blocks { found, .. }) if found == "IQ4_NL"),
        "{message}"
    );
    assert!(message.contains("`output_norm.weight` is IQ4_NL") && message.contains("it runs F32"), "{message}");
}

#[test]
fn a_missing_tensor_is_named_as_the_file_would() {
    let error = refused("llama", |bytes| {
        let at = described(bytes, "output_norm.weight");
        bytes[at - 1] = b'x';
    });
    let message = error.to_string();
    assert!(message.contains("tensor `model.norm.weight` of shape [32] is missing"), "{message}");
    assert!(message.contains("has no `output_norm.weight`"), "{message}");
}

#[test]
fn a_missing_file_of_a_split_is_named() {
    let folder = TempDir::new().unwrap();
    let first = folder.path().join("m-00001-of-00002.gguf");
    let mut bytes = std::fs::read(file("qwen3.gguf")).unwrap();
    // One more key behind the counts: of how many files this is the first.
    let keys = u64::from_le_bytes(bytes[16..24].try_into().unwrap()) + 1;
    bytes[16..24].copy_from_slice(&keys.to_le_bytes());
    let mut key = 11u64.to_le_bytes().to_vec();
    key.extend(b"split.count");
    key.extend([2, 0, 0, 0, 2, 0]);
    bytes.splice(24..24, key);
    std::fs::write(&first, bytes).unwrap();
    let message = Session::open(&first, SessionOptions::default()).unwrap_err().to_string();
    assert!(message.contains("file 2 of 2 is absent") && message.contains("m-00002-of-00002.gguf"), "{message}");
}

/// Of what a plan is not made of, a run does not guess.
#[test]
fn an_architecture_without_a_decoder_is_refused_by_name() {
    let error = refused("llama", |bytes| {
        let names: Vec<usize> = (0..bytes.len() - 5).filter(|&at| &bytes[at..at + 5] == b"llama").collect();
        names.into_iter().for_each(|at| bytes[at..at + 5].copy_from_slice(b"arcee"));
    });
    assert!(error.to_string().contains("gguf:arcee") && error.exit_code() == 4, "{error}");
}
