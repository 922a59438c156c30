//! Kernels of attention of vLLM 0.33.0: which it chooses, and which that are named it refuses, by GPU, dtype, heads, block and ranks.

mod common;

use cacheplan_planner::logs::Fact;
use cacheplan_serve::{Answer, Options, ServeError, answer};
use rstest::rstest;

use common::{changed, launch, models, on};

const LLAMA: &str = "meta-llama__Llama-3.1-8B-Instruct";
const OSS: &str = "openai__gpt-oss-120b";
const GEMMA: &str = "google__gemma-4-26B-A4B";
const V3: &str = "deepseek-ai__DeepSeek-V3";
const V32: &str = "deepseek-ai__DeepSeek-V3.2";
const MIXTURE: &str = "Qwen__Qwen3-235B-A22B";

fn asked(device: &str, model: &str, flags: &str, env: &[(&str, &str)]) -> Result<Answer, ServeError> {
    let options = Options { version: Some("0.33.0".into()), ..on(device) };
    let words: Vec<&str> = flags.split_whitespace().collect();
    let mut launch = launch(["vllm serve m --max-model-len 2048", &words.join(" ")].join(" ").trim_end());
    launch.env.extend(env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    answer(&launch, models(model), &options)
}

fn said(device: &str, model: &str, flags: &str) -> Option<String> {
    match asked(device, model, flags, &[]) {
        Err(ServeError::Engine { said, .. }) => Some(said),
        Err(error) => panic!("{device} {model} {flags}: {error}"),
        Ok(_) => None,
    }
}

#[rstest]
#[case::too_old("t4", "Qwen__Qwen3-0.6B", "FLASH_ATTN", "", "'compute capability not supported'")]
#[case::too_old_for_another("t4", "Qwen__Qwen3-0.6B", "FLASHINFER", "", "'compute capability not supported'")]
#[case::eight_bits_on_ampere(
    "a100-80gb",
    LLAMA,
    "FLASH_ATTN",
    "--kv-cache-dtype fp8",
    "'kv_cache_dtype not supported'"
)]
#[case::eight_bits_on_ada("l40s", LLAMA, "FLASH_ATTN", "--kv-cache-dtype fp8", "'kv_cache_dtype not supported'")]
#[case::sinks_on_ampere("a100-80gb", OSS, "FLASHINFER", "", "'attention sinks not supported'")]
#[case::sinks("8xh100", OSS, "FLEX_ATTENTION", "-tp 8", "'attention sinks not supported'")]
#[case::wide_heads_on_ampere("a100-80gb", GEMMA, "FLASH_ATTN", "", "'head_size not supported'")]
#[case::eight_bits("h100", LLAMA, "FLEX_ATTENTION", "--kv-cache-dtype fp8", "'kv_cache_dtype not supported'")]
#[case::four_bits("h100", LLAMA, "TRITON_ATTN", "--kv-cache-dtype nvfp4", "'kv_cache_dtype not supported'")]
#[case::per_head("h100", LLAMA, "FLASHINFER", "--kv-cache-dtype int8_per_token_head", "'kv_cache_dtype not supported'")]
#[case::of_another_dtype("h100", LLAMA, "TURBOQUANT", "", "'kv_cache_dtype not supported'")]
#[case::of_another_gpu("a100-80gb", LLAMA, "HPC_ATTN", "", "'compute capability not supported'")]
#[case::of_towers("h100", LLAMA, "TORCH_SDPA", "", "must be registered before use")]
#[case::of_nothing("h100", LLAMA, "NO_ATTENTION", "", "ModuleNotFoundError")]
#[case::several_reasons("h100", LLAMA, "FLASHMLA", "", "['head_size not supported', 'non-MLA not supported']")]
fn a_kernel_that_is_named_is_refused_for_what_it_lacks(
    #[case] device: &str,
    #[case] model: &str,
    #[case] kernel: &str,
    #[case] flags: &str,
    #[case] reason: &str,
) {
    for naming in ["--attention-backend", "--attention-config.backend"] {
        let found = said(device, model, &format!("{flags} {naming} {kernel}")).unwrap();
        assert!(found.contains(reason), "{found}");
    }
}

#[rstest]
#[case::sinks_on_hopper("h100", OSS, "--attention-backend FLASHINFER")]
#[case::eight_bits_on_hopper("h100", LLAMA, "--attention-backend FLASH_ATTN --kv-cache-dtype fp8")]
#[case::wide_heads_on_hopper("h100", GEMMA, "--attention-backend FLASH_ATTN")]
#[case::eight_bits_by_another("a100-80gb", LLAMA, "--kv-cache-dtype fp8")]
#[case::by_triton("t4", "Qwen__Qwen3-0.6B", "--attention-backend TRITON_ATTN")]
#[case::another_version_is_told(
    "h100",
    GEMMA,
    "--attention-config {\"flash_attn_version\":4,\"backend\":\"FLASH_ATTN\"}"
)]
fn what_kernels_take_starts(#[case] device: &str, #[case] model: &str, #[case] flags: &str) {
    assert_eq!(said(device, model, flags), None);
}

/// Ranks that divide tokens need a kernel that says what it left out.
#[rstest]
#[case::records_of_16_bits("8xh200", V32, "-tp 8 -dcp 8", Some("requires an fp8_ds_mla kv-cache"))]
#[case::records_of_8("8xh200", V32, "-tp 8 -dcp 8 --kv-cache-dtype fp8", None)]
#[case::latents("8xh200", V3, "-tp 8 -dcp 8", None)]
#[case::keys("8xh200", MIXTURE, "-tp 8 -dcp 2", None)]
#[case::keys_on_amd("8xmi300x", MIXTURE, "-tp 8 -dcp 2", Some("DCP not supported"))]
#[case::latents_on_amd("8xmi300x", V3, "-tp 8 -dcp 8", None)]
#[case::records_on_amd("8xmi300x", V32, "-tp 8 -dcp 8", Some("DCP not supported"))]
fn tokens_are_divided_where_a_kernel_does(
    #[case] device: &str,
    #[case] model: &str,
    #[case] flags: &str,
    #[case] reason: Option<&str>,
) {
    let found = said(device, model, flags);
    assert_eq!(found.is_some(), reason.is_some(), "{found:?}");
    assert!(found.unwrap_or_default().contains(reason.unwrap_or_default()));
}

#[test]
fn kernels_of_amd_have_blocks_and_words_of_their_own() {
    const BY_AITER: [(&str, &str); 1] = [("VLLM_ROCM_USE_AITER", "1")];
    let refusal = |result: Result<Answer, ServeError>| match result {
        Err(ServeError::Engine { said, .. }) => said,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it starts"),
    };
    let of = |model: &str, flags: &str| asked("8xmi300x", model, &format!("-tp 8 {flags}"), &[]);
    // Triton's blocks are of 16, AITER's of any.
    assert!(refusal(of(V3, "--block-size 1")).contains("TRITON_MLA: [block_size not supported]"));
    asked("8xmi300x", V3, "-tp 8 --block-size 1", &BY_AITER).unwrap();
    of(V3, "--block-size 1 --attention-backend ROCM_AITER_MLA").unwrap();
    of(V32, "--block-size 1").unwrap();
    of(V32, "--block-size 16").unwrap();
    // Records in 8 bits are latents of that width there, without scales.
    let tokens =
        |flags: &str| of(V32, &format!("{flags} --kv-cache-memory-bytes 40G")).unwrap().facts[&Fact::Tokens].low;
    assert_eq!(tokens("--kv-cache-dtype fp8"), {
        let layer = 576 + 128 + 4;
        (40_u64 << 30) / (61 * layer) / 16 * 16
    });
    let fp8 = of(V32, "--kv-cache-dtype fp8").unwrap();
    assert!(!fp8.notes.iter().any(|note| note.contains("fp8_ds_mla")), "{:?}", fp8.notes);
    assert!(refusal(of(V32, "--kv-cache-dtype fp8_ds_mla")).contains("kv_cache_dtype not supported"));
    let nvfp4 = refusal(asked("mi300x", "Qwen__Qwen3-32B", "--kv-cache-dtype nvfp4", &[]));
    assert!(nvfp4.contains("found for rocm"), "{nvfp4}");
}

/// A command starts where it names no kernel if one of those that vLLM asks takes all when it is named, and only then.
#[test]
fn the_choice_and_the_check_of_a_name_agree() {
    const KERNELS: [&str; 5] = ["FLASHINFER", "FLASH_ATTN", "TRITON_ATTN", "FLEX_ATTENTION", "TURBOQUANT"];
    let (mut started, mut refused) = (0, 0);
    for device in ["t4", "a100-80gb", "l40s", "h100", "b200", "rtx-5090"] {
        for model in ["Qwen__Qwen3-0.6B", "google__gemma-3-1b-it", OSS] {
            for flags in
                ["", "--kv-cache-dtype fp8", "--kv-cache-dtype nvfp4", "--kv-cache-dtype fp8_e5m2", "--block-size 24"]
            {
                let starts = |naming: String| {
                    let flags = format!("{flags} --kv-cache-memory-bytes 4G {naming}");
                    !matches!(asked(device, model, &flags, &[]), Err(ServeError::Engine { .. }))
                };
                let any = KERNELS.iter().any(|kernel| starts(format!("--attention-backend {kernel}")));
                assert_eq!(starts(String::new()), any, "{device} {model} {flags}");
                *(if any { &mut started } else { &mut refused }) += 1;
            }
        }
    }
    assert!(started > 40 && refused > 10, "{started} {refused}");
}

/// Without bfloat16 `auto` is float16, and float32 of models that do not take that.
#[test]
fn a_gpu_without_bfloat16_runs_a_model_in_another_float() {
    let mxfp4 = said("8xt4", OSS, "-tp 8").unwrap();
    assert!(mxfp4.contains("The quantization method mxfp4 is not supported for the current GPU"), "{mxfp4}");
    const GEMMA_3: &str = "google__gemma-3-1b-it";
    let tokens = |device: &str| {
        asked(device, GEMMA_3, "--kv-cache-memory-bytes 4G", &[]).unwrap().facts[&Fact::Tokens].low as f64
    };
    let ratio = tokens("l4") / tokens("t4");
    assert!((ratio - 2.0).abs() < 0.01, "{ratio}");
    // 4.3e9 weights of 4 bytes are more than there is, those of 2 are not.
    let large = changed(GEMMA_3, |config| {
        let sizes = [("hidden_size", 2560), ("num_hidden_layers", 34), ("num_attention_heads", 8)];
        let more = [("num_key_value_heads", 4), ("intermediate_size", 10_240), ("vocab_size", 262_208)];
        sizes.into_iter().chain(more).for_each(|(key, size)| config[key] = size.into());
    });
    let starts = |device: &str| {
        let options = Options { version: Some("0.33.0".into()), ..on(device) };
        let found = answer(&launch("vllm serve m --max-model-len 2048"), large.clone(), &options);
        !matches!(found, Err(ServeError::Engine { .. })) && found.unwrap().admits()
    };
    assert!(starts("l4") && !starts("t4"));
    // `half` is refused of it by name.
    assert!(said("t4", GEMMA_3, "--dtype half").unwrap().contains("does not support float16"));
}
