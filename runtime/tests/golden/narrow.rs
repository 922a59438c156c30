//! Weights stored in 16 bits: computed with as they are stored.

use std::collections::HashMap;

use candle_core::{DType, Device, Tensor};
use rstest::rstest;
use tempfile::TempDir;

use crate::harness::{Driven, Golden, assert_close, folder};

const PREFILL: usize = 21;
const DECODE_STEPS: usize = 6;

/// A copy of a fixture whose weights are what `change` makes of them.
fn copy(model: &str, change: impl Fn(&Tensor) -> Tensor) -> TempDir {
    let copy = TempDir::new().unwrap();
    std::fs::copy(folder(model).join("config.json"), copy.path().join("config.json")).unwrap();
    let weights = candle_core::safetensors::load(folder(model).join("model.safetensors"), &Device::Cpu).unwrap();
    let weights: HashMap<String, Tensor> =
        weights.iter().map(|(name, tensor)| (name.clone(), change(tensor))).collect();
    candle_core::safetensors::save(&weights, copy.path().join("model.safetensors")).unwrap();
    copy
}

/// The logits of a prefill and of each decode step, `[tokens, vocab_size]`.
fn logits(copy: &TempDir, ids: &[u32]) -> Tensor {
    let mut driven = Driven::open_in(copy.path());
    let sequence = driven.admit(PREFILL);
    let mut steps = vec![driven.step(&[(sequence, &ids[..PREFILL])])];
    steps.extend((0..DECODE_STEPS).map(|step| driven.step(&[(sequence, &ids[PREFILL + step..][..1])])));
    Tensor::cat(&steps, 0).unwrap()
}

over_models_with_steps!(narrow_weights_give_the_logits_of_the_same_numbers_in_f32);

/// The way of a narrow weight through prefill and decode adds nothing to what rounding it once did.
fn narrow_weights_give_the_logits_of_the_same_numbers_in_f32(model: &str) {
    let ids = Golden::load(model).ids("ids");
    for dtype in [DType::BF16, DType::F16] {
        let narrow = |tensor: &Tensor| tensor.to_dtype(dtype).unwrap();
        let stored = logits(&copy(model, narrow), &ids);
        let widened = logits(&copy(model, |tensor| narrow(tensor).to_dtype(DType::F32).unwrap()), &ids);
        assert_close(&stored, &widened, model);
    }
}

/// Rounded to bf16, weights still give Hugging Face's float32 within the two bytes they have.
#[rstest]
fn bf16_weights_stay_near_the_golden_logits(#[values("llama", "mamba2", "gemma3", "falcon_h1", "bamba")] model: &str) {
    let golden = Golden::load(model);
    let found = logits(&copy(model, |tensor| tensor.to_dtype(DType::BF16).unwrap()), &golden.ids("ids"));
    let mut expected = vec![golden.get("prefill_logits")];
    expected.extend((0..DECODE_STEPS).map(|step| golden.get(&format!("decode{step}_logits"))));
    let expected = Tensor::cat(&expected, 0).unwrap();
    let values = |tensor: &Tensor| -> Vec<f64> {
        tensor.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
    };
    let (found, expected) = (values(&found), values(&expected));
    let largest = expected.iter().fold(0f64, |most, x| most.max(x.abs()));
    let error = found.iter().zip(&expected).fold(0f64, |most, (found, x)| most.max((found - x).abs())) / largest;
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let cosine = dot(&found, &expected) / (dot(&found, &found) * dot(&expected, &expected)).sqrt();
    assert!(error <= 2e-2 && cosine >= 0.9999, "{model}: off by {error:.1e}, cosine {cosine}");
}
