//! Published configs of the architectures that there are decoders for reach the point where weights are read.

use std::path::Path;

use cacheplan_runtime::{ConfigError, RuntimeError, WeightError, Weights, load};
use cacheplan_transforms::{ReadOptions, read_model};
use candle_core::{DType, Device};
use serde_json::Value;

#[test]
fn published_configs_give_their_decoders_all_they_need() {
    let folder = tempfile::TempDir::new().unwrap();
    // A safetensors file without tensors.
    std::fs::write(folder.path().join("model.safetensors"), b"\x02\0\0\0\0\0\0\0{}").unwrap();
    let no_weights = Weights::open(folder.path(), DType::F32, &Device::Cpu).unwrap();
    let configs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/configs");
    let mut decoders = 0;
    for entry in std::fs::read_dir(configs).unwrap() {
        let path = entry.unwrap().path();
        let Ok(model) = read_model(&path, &ReadOptions::default()) else { continue };
        if model.config.contains_key("_zoo_note") {
            // Reconstructed: it has the fields that decide cache sizes and no others.
            continue;
        }
        match load(&Value::Object(model.config), &no_weights) {
            Err(RuntimeError::Weights(WeightError::Missing { .. })) => decoders += 1,
            Err(RuntimeError::Config(ConfigError::Unsupported { .. } | ConfigError::Missing { key: "model_type" })) => {
            }
            other => panic!("{}: {other:?}", path.display()),
        }
    }
    assert!(decoders >= 12, "{decoders} configs have a decoder");
}
