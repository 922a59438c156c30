//! Bytes agree with what engines logged for the same models, per layer or in all.

mod support;

use cacheplan_handlers::{DType, Kind};
use cacheplan_transforms::{CacheDTypes, PassContext, Resources};
use rstest::rstest;

use support::{bytes_per_token, read, state_bytes};

const KIB: f64 = 1024.0;
const MIB: f64 = 1024.0 * KIB;

fn resources(config: &str, dtypes: CacheDTypes) -> Resources {
    let mut model = read(&format!("configs/{config}.json"));
    let context = PassContext { dtypes, ..PassContext::default() };
    model.graph.collect(&context).unwrap().resources
}

fn kv(dtype: DType) -> CacheDTypes {
    CacheDTypes { kv: Some(dtype), ..CacheDTypes::default() }
}

/// Shapes of the published configs: state heads x head_dim x d_state x 4 bytes x layers, and KV bytes per token.
#[rstest]
#[case("nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 64 * 64 * 128 * 4 * 23, 6_144)]
#[case("nvidia__NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16", 256 * 64 * 128 * 4 * 48, 12_288)]
#[case("nvidia__Nemotron-H-56B-Base-8K", 256 * 64 * 256 * 4 * 54, 40_960)]
#[case("state-spaces__mamba2-2.7b", 80 * 64 * 128 * 4 * 64, 0)]
#[case("Qwen__Qwen3.5-35B-A3B", 32 * 128 * 128 * 4 * 30, 20_480)]
#[case("nvidia__Qwen3.6-35B-A3B-NVFP4", 32 * 128 * 128 * 4 * 30, 20_480)]
#[case("Qwen__Qwen3.5-27B", 48 * 128 * 128 * 4 * 48, 65_536)]
#[case("Qwen__Qwen3.5-122B-A10B", 64 * 128 * 128 * 4 * 36, 24_576)]
#[case("deepseek-ai__DeepSeek-V3", 0, 70_272)]
#[case("moonshotai__Kimi-K2-Instruct", 0, 70_272)]
#[case("deepseek-ai__DeepSeek-V2-Lite", 0, 27 * 576 * 2)]
fn states_and_keys_follow_from_the_published_shapes(#[case] config: &str, #[case] state: u64, #[case] per_token: u64) {
    let resources = resources(config, CacheDTypes::default());
    assert_eq!((state_bytes(&resources, &Kind::Ssm), bytes_per_token(&resources)), (state, per_token));
}

/// llama.cpp prints the conv states (R) and recurrent states (S) of a sequence in MiB, all float32.
#[rstest]
#[case("Qwen__Qwen3.5-9B", 2.25, 48.0)]
#[case("Qwen__Qwen3.5-4B", 2.25, 48.0)]
#[case("nvidia__Qwen3.6-35B-A3B-NVFP4", 2.812_5, 60.0)]
#[case("Qwen__Qwen3.5-27B", 5.625, 144.0)]
#[case("Qwen__Qwen3.5-2B", 5.062_5 / 4.0, 72.0 / 4.0)]
fn llama_cpp_logged_these_states_per_sequence(#[case] config: &str, #[case] conv_mib: f64, #[case] state_mib: f64) {
    let resources = resources(config, CacheDTypes { conv: Some(DType::F32), ..CacheDTypes::default() });
    assert_eq!(state_bytes(&resources, &Kind::CausalConv) as f64 / MIB, conv_mib);
    assert_eq!(state_bytes(&resources, &Kind::Ssm) as f64 / MIB, state_mib);
}

/// KV MiB and the number of tokens that llama.cpp logged it for.
#[rstest]
#[case("Qwen__Qwen3.5-9B", DType::F16, 8_192.0, 256.0)]
#[case("Qwen__Qwen3.5-27B", DType::F16, 131_072.0, 8_192.0)]
#[case("Qwen__Qwen3.5-2B", DType::F16, 262_144.0, 3_072.0)]
#[case::both_pools("google__gemma-2-2b", DType::F16, 8_192.0, 2.0 * 416.0)]
fn llama_cpp_logged_these_keys(#[case] config: &str, #[case] dtype: DType, #[case] tokens: f64, #[case] mib: f64) {
    assert_eq!(bytes_per_token(&resources(config, kv(dtype))) as f64 * tokens / MIB, mib);
}

/// Bytes per token over all ranks that explain the token counts of vLLM, SGLang and TensorRT-LLM.
#[rstest]
#[case("deepseek-ai__DeepSeek-R1", DType::Bf16, 70_272)]
#[case("deepseek-ai__DeepSeek-R1", DType::F8E4m3, 35_136)]
#[case("meta-llama__Llama-3.1-70B-Instruct", DType::Bf16, 4 * 81_920)]
#[case("meta-llama__Llama-3.1-8B-Instruct", DType::F8E4m3, 65_536)]
#[case("Qwen__Qwen3-0.6B", DType::Bf16, 114_688)]
#[case("Qwen__Qwen3-32B", DType::Bf16, 8 * 32_768)]
#[case("Qwen__Qwen3-30B-A3B", DType::F8E4m3, 49_152)]
#[case("Qwen__Qwen3-235B-A22B", DType::Bf16, 4 * 48_128)]
#[case("nvidia__NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4", DType::Bf16, 6_144)]
fn engines_logged_these_bytes_per_token(#[case] config: &str, #[case] dtype: DType, #[case] bytes: u64) {
    assert_eq!(bytes_per_token(&resources(config, kv(dtype))), bytes);
}

/// vLLM logs the bytes of one layer's whole state (recurrent and convolution) and of one layer's keys per token.
#[rstest]
#[case("ibm-granite__granite-4.0-h-350m", DType::Bf16, 403_968, None)]
#[case("nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", DType::F32, 2_134_016, Some(1_024))]
#[case("Qwen__Qwen3.5-27B", DType::F32, 3_207_168, Some(4_096))]
#[case("Qwen__Qwen3.5-35B-A3B", DType::F32, 2_146_304, Some(2_048))]
fn vllm_logged_these_pages(
    #[case] config: &str,
    #[case] state: DType,
    #[case] state_page: u64,
    #[case] kv_bytes: Option<u64>,
) {
    let resources = resources(config, CacheDTypes { state: Some(state), ..CacheDTypes::default() });
    let first = |kind: Kind| resources.of_kind(&kind).next().map(|resource| resource.handler.unit_bytes());
    assert_eq!(first(Kind::Ssm).unwrap() + first(Kind::CausalConv).unwrap(), state_page);
    assert_eq!(first(Kind::KvPaged), kv_bytes);
}

/// gpt-oss in vLLM: pages of 16 tokens take 32,768 bytes, window or not.
#[test]
fn gpt_oss_has_equal_pages_in_both_pools() {
    let resources = resources("openai__gpt-oss-120b", CacheDTypes::default());
    assert!(resources.iter().all(|resource| resource.handler.unit_bytes() * 16 == 32_768));
    assert_eq!(resources.len(), 36);
}

/// What llama.cpp's DeepSeek-V4 keeps per layer with 128 tokens an entry: 256 KiB of values, 256 KiB of scores.
#[test]
fn deepseek_v4_keeps_the_tokens_of_the_entry_being_formed() {
    let resources = resources("deepseek-ai__DeepSeek-V4-Flash", CacheDTypes::default());
    let state = &resources.get("compressor_state_3").unwrap().handler;
    assert_eq!(state.unit_bytes() as f64, 2.0 * 256.0 * KIB);
}

/// SGLang logs its state pools in GiB, rounded to hundredths; they have one slot more than requested.
#[rstest]
#[case("ibm-granite__granite-4.0-h-small", 218, 30.80, Some(0.37))]
#[case("Qwen__Qwen3.5-27B", 22, 3.23, None)]
fn sglang_logged_these_pools(
    #[case] config: &str,
    #[case] slots: u64,
    #[case] state_gib: f64,
    #[case] conv_gib: Option<f64>,
) {
    let resources = resources(config, CacheDTypes::default());
    let gib = |kind: Kind| (state_bytes(&resources, &kind) * (slots + 1)) as f64 / (1024.0 * MIB);
    assert!((gib(Kind::Ssm) - state_gib).abs() < 0.006, "{}", gib(Kind::Ssm));
    assert!(conv_gib.is_none_or(|conv| (gib(Kind::CausalConv) - conv).abs() < 0.006), "{}", gib(Kind::CausalConv));
}

/// Falcon-Mamba in llama.cpp takes 38 MiB per sequence, all float32: `expand` says twice as much.
#[test]
fn falcon_mamba_is_as_wide_as_its_intermediate_size() {
    let resources =
        resources("tiiuae__falcon-mamba-7b", CacheDTypes { conv: Some(DType::F32), ..CacheDTypes::default() });
    let bytes = state_bytes(&resources, &Kind::Ssm) + state_bytes(&resources, &Kind::CausalConv);
    assert_eq!(bytes as f64 / MIB, 38.0);
}
