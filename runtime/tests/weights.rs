//! Weights that are not what the config asks for are refused by name.

use std::collections::HashMap;
use std::path::Path;

use cacheplan_runtime::{WeightError, Weights};
use candle_core::{DType, Device, Tensor};
use tempfile::TempDir;

fn tensor(values: &[f32]) -> Tensor {
    Tensor::new(values, &Device::Cpu).unwrap()
}

fn save(folder: &Path, file: &str, tensors: &[(&str, Tensor)]) {
    let tensors: HashMap<&str, Tensor> = tensors.iter().cloned().collect();
    candle_core::safetensors::save(&tensors, folder.join(file)).unwrap();
}

fn open(folder: &TempDir) -> Result<Weights, WeightError> {
    Weights::open(folder.path(), DType::F32, &Device::Cpu)
}

fn single() -> TempDir {
    let folder = TempDir::new().unwrap();
    save(folder.path(), "model.safetensors", &[("model.layers.0.norm.weight", tensor(&[1.0, 2.0]))]);
    folder
}

#[test]
fn a_tensor_is_found_under_its_scope_and_converted() {
    let folder = TempDir::new().unwrap();
    let half = tensor(&[1.0, 2.0]).to_dtype(DType::BF16).unwrap();
    save(folder.path(), "model.safetensors", &[("model.layers.0.norm.weight", half)]);
    let weights = open(&folder).unwrap();
    let read = weights.scope("model").enter("layers").enter(0).enter("norm").get("weight", 2).unwrap();
    assert_eq!(read.to_vec1::<f32>().unwrap(), [1.0, 2.0]);
}

#[test]
fn shards_are_read_through_their_index() {
    let folder = TempDir::new().unwrap();
    save(folder.path(), "a.safetensors", &[("x", tensor(&[1.0]))]);
    save(folder.path(), "b.safetensors", &[("y", tensor(&[2.0]))]);
    let index = r#"{"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}"#;
    std::fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
    let weights = open(&folder).unwrap();
    assert_eq!(weights.get("y", 1).unwrap().to_vec1::<f32>().unwrap(), [2.0]);
    assert_eq!(weights.get("x", 1).unwrap().to_vec1::<f32>().unwrap(), [1.0]);
}

/// Whatever other weights lie beside it.
#[test]
fn the_file_that_is_named_is_read() {
    let folder = single();
    let of = |name: &str| Weights::of_model(&folder.path().join(name), DType::F32, &Device::Cpu).unwrap();
    save(folder.path(), "tuned.safetensors", &[("x", tensor(&[1.0]))]);
    save(folder.path(), "b.safetensors", &[("x", tensor(&[2.0]))]);
    std::fs::write(folder.path().join("b.safetensors.index.json"), r#"{"weight_map": {"x": "b.safetensors"}}"#)
        .unwrap();
    for (name, expected) in [("tuned.safetensors", 1.0), ("b.safetensors", 2.0), ("b.safetensors.index.json", 2.0)] {
        assert_eq!(of(name).get("x", 1).unwrap().to_vec1::<f32>().unwrap(), [expected], "{name}");
    }
    assert!(matches!(of("tuned.safetensors").get("model.layers.0.norm.weight", 2), Err(WeightError::Missing { .. })));
    assert!(of("config.json").get("model.layers.0.norm.weight", 2).is_ok());
}

#[test]
fn a_shard_outside_the_folder_is_refused() {
    let folder = TempDir::new().unwrap();
    let index = r#"{"weight_map": {"x": "../a.safetensors"}}"#;
    std::fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
    assert!(open(&folder).unwrap_err().to_string().contains("shard `../a.safetensors` is not a plain file name"));
}

#[test]
fn a_folder_without_weights_is_refused() {
    let folder = TempDir::new().unwrap();
    assert!(matches!(open(&folder), Err(WeightError::NoFile { .. })));
}

#[test]
fn a_missing_tensor_is_named_with_what_is_near() {
    let folder = single();
    let error = open(&folder).unwrap().get("model.layers.0.mlp.weight", (2, 3)).unwrap_err();
    let message = error.to_string();
    assert!(message.contains("`model.layers.0.mlp.weight` of shape [2, 3] is missing"), "{message}");
    assert!(message.contains("model.layers.0.norm.weight"), "{message}");
}

#[test]
fn a_tensor_of_another_shape_is_named_with_both_shapes() {
    let folder = single();
    match open(&folder).unwrap().get("model.layers.0.norm.weight", 3) {
        Err(WeightError::Shape { file, name, found, expected }) => {
            assert!(file.ends_with("model.safetensors"), "{file}");
            assert_eq!((name.as_str(), found, expected), ("model.layers.0.norm.weight", vec![2], vec![3]));
        }
        other => panic!("expected a shape error, got {other:?}"),
    }
}

#[test]
fn a_file_that_is_cut_off_anywhere_is_refused() {
    let folder = single();
    let file = folder.path().join("model.safetensors");
    let whole = std::fs::read(&file).unwrap();
    for bytes in 0..whole.len() {
        std::fs::write(&file, &whole[..bytes]).unwrap();
        assert!(matches!(open(&folder), Err(WeightError::Malformed { .. })), "{bytes} bytes");
    }
}

#[test]
fn a_header_that_claims_to_be_longer_than_the_file_is_refused() {
    let folder = single();
    let file = folder.path().join("model.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    std::fs::write(&file, bytes).unwrap();
    assert!(matches!(open(&folder), Err(WeightError::Malformed { .. })));
}

#[test]
fn numbers_that_need_a_scale_are_refused() {
    let folder = TempDir::new().unwrap();
    let scaled = tensor(&[1.0, 2.0]).to_dtype(DType::F8E4M3).unwrap();
    save(folder.path(), "model.safetensors", &[("q_proj.weight", scaled), ("q_proj.weight_scale_inv", tensor(&[0.5]))]);
    let error = open(&folder).unwrap().get("q_proj.weight", 2).unwrap_err();
    assert!(matches!(&error, WeightError::DType { name, .. } if name == "q_proj.weight"), "{error}");
}

/// What products read stays in its 16 bits, what else is computed with does not.
#[test]
fn a_narrow_matrix_stays_as_it_is_stored() {
    let folder = TempDir::new().unwrap();
    let wide = Tensor::new(&[[1f32, 2.0], [3.0, 4.0]], &Device::Cpu).unwrap();
    let stored = [("half", DType::F16), ("brain", DType::BF16), ("single", DType::F32), ("double", DType::F64)];
    let tensors = stored.map(|(name, dtype)| (name, wide.to_dtype(dtype).unwrap()));
    save(folder.path(), "model.safetensors", &tensors);
    let weights = open(&folder).unwrap();
    let kept = stored.map(|(name, _)| weights.matrix(name, (2, 2)).unwrap().dtype());
    assert_eq!(kept, [DType::F16, DType::BF16, DType::F32, DType::F32]);
    assert!(stored.iter().all(|(name, _)| weights.get(name, (2, 2)).unwrap().dtype() == DType::F32));
}

#[test]
fn numbers_that_are_none_name_file_and_tensor() {
    let folder = TempDir::new().unwrap();
    for (at, dtype) in [DType::F32, DType::F16, DType::BF16, DType::F64].into_iter().enumerate() {
        let broken = tensor(&[1.0, if at % 2 == 0 { f32::NAN } else { f32::INFINITY }]).to_dtype(dtype).unwrap();
        save(folder.path(), "model.safetensors", &[("norm.weight", broken)]);
        let error = open(&folder).unwrap().get("norm.weight", 2).unwrap_err();
        assert!(matches!(&error, WeightError::NotFinite { name, .. } if name == "norm.weight"), "{dtype:?}: {error}");
        assert!(error.to_string().contains("model.safetensors: tensor `norm.weight`"), "{error}");
    }
}

#[test]
fn a_missing_shard_is_named() {
    let folder = TempDir::new().unwrap();
    save(folder.path(), "a.safetensors", &[("x", tensor(&[1.0]))]);
    let index = r#"{"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}"#;
    std::fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
    let error = open(&folder).unwrap_err().to_string();
    assert!(error.contains("b.safetensors: No such file"), "{error}");
}
