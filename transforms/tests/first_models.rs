//! The models that the main job runs first.

mod support;

use cacheplan_handlers::{DType, Kind};
use rstest::rstest;

use support::{bytes_per_token, collected, count, state_bytes};

#[test]
fn nemotron_3_nano_has_the_caches_of_its_layers() {
    let (model, collected) = collected("configs/nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16.json");
    let resources = &collected.resources;
    assert_eq!(model.info.layers, 52);
    assert_eq!([Kind::Ssm, Kind::CausalConv, Kind::KvPaged].map(|kind| count(resources, &kind)), [23, 23, 6]);
    assert_eq!(bytes_per_token(resources), 6_144);
    assert_eq!(state_bytes(resources, &Kind::Ssm), 48_234_496);
    assert_eq!(state_bytes(resources, &Kind::CausalConv), 847_872);
    assert_eq!(resources.get("kv_cache_5").unwrap().layer, Some(5));
    assert_eq!(resources.get("ssm_state_0").unwrap().handler.dtype(), DType::F32);
    assert_eq!(resources.get("conv_state_0").unwrap().handler.dtype(), DType::Bf16);
}

#[rstest]
#[case("nemotron_h", 1, 2, 2, 0)]
#[case("llama", 2, 0, 0, 0)]
#[case("qwen3", 4, 0, 0, 0)]
#[case("mamba2", 0, 2, 2, 0)]
#[case("deepseek_v3", 0, 0, 0, 2)]
fn the_tiny_models_read_in_their_saved_spelling(
    #[case] name: &str,
    #[case] kv: usize,
    #[case] ssm: usize,
    #[case] conv: usize,
    #[case] mla: usize,
) {
    let (model, collected) = collected(&format!("models/{name}"));
    let kinds = [Kind::KvPaged, Kind::Ssm, Kind::CausalConv, Kind::MlaPaged];
    assert_eq!(kinds.map(|kind| count(&collected.resources, &kind)), [kv, ssm, conv, mla]);
    assert_eq!(model.info.model_type, name);
    assert_eq!(model.info.dtype, DType::F32);
}

#[test]
fn deepseek_v3_keeps_576_numbers_per_token_and_layer() {
    let (_, collected) = collected("configs/deepseek-ai__DeepSeek-V3.json");
    assert_eq!(bytes_per_token(&collected.resources), 61 * 576 * 2);
}
