//! Kernels of attention in SGLang 0.5.23: those that it chooses on a device, which set pages and a part of the share, and those that it
//! refuses there or of a model; and servers that are not whole.

mod common;

use cacheplan_planner::logs::{Fact, Logged};
use cacheplan_serve::{Answer, Options, ServeError, answer};
use rstest::rstest;

use common::{launch, models, on};

const DENSE: &str = "meta-llama__Llama-3.1-8B-Instruct";
const LATENTS: &str = "deepseek-ai__DeepSeek-V2-Lite";

fn told(model: &str, device: &str, flags: &str) -> Result<Answer, ServeError> {
    let options = Options { version: Some("0.5.23".into()), ..on(device) };
    answer(&launch(&format!("sglang serve --model-path m {flags}")), models(model), &options)
}

fn tokens(device: &str, flags: &str) -> Logged {
    told(DENSE, device, flags).unwrap().facts[&Fact::Tokens]
}

#[rstest]
#[case("--context-length 16384", "--context-length 8192 --mem-fraction-static 0.73695")]
#[case("--context-length 8192", "--context-length 8192 --mem-fraction-static 0.867")]
#[case("--context-length 16384 --mem-fraction-static 0.8", "--context-length 8192 --mem-fraction-static 0.68")]
#[case("--context-length 16384 --attention-backend triton", "--context-length 8192 --mem-fraction-static 0.867")]
fn kernels_of_amd_take_their_part_of_the_share(#[case] flags: &str, #[case] same: &str) {
    assert_eq!(tokens("mi300x", flags), tokens("mi300x", same));
}

#[test]
fn kernels_of_amd_take_nothing_of_other_devices() {
    let of = |length| tokens("h200", &format!("--context-length {length}"));
    assert_eq!(of(16_384), of(8192));
}

#[rstest]
#[case::as_if_named("b200", "--context-length 100", "--context-length 100 --attention-backend trtllm_mha")]
#[case::page_is_kept(
    "b200",
    "--context-length 100 --page-size 32",
    "--context-length 100 --page-size 32 --attention-backend trtllm_mha"
)]
#[case::not_of_other_devices("h100", "--context-length 100", "--context-length 100 --page-size 1")]
fn kernels_that_it_chooses_take_pages_of_their_own(#[case] device: &str, #[case] flags: &str, #[case] same: &str) {
    let (found, expected) = (told(DENSE, device, flags).unwrap(), told(DENSE, device, same).unwrap());
    assert_eq!(found.facts[&Fact::Tokens], expected.facts[&Fact::Tokens]);
    assert_eq!(found.sequences, expected.sequences);
}

/// Sparse latents have pages of its own size whatever is stated, and MiniMax-M3's kernels take 128.
#[rstest]
#[case("deepseek-ai__DeepSeek-V3.2", "8xh200", "--page-size 1", "")]
#[case("deepseek-ai__DeepSeek-V3.2", "8xh200", "--page-size 128", "")]
#[case("zai-org__GLM-5.2", "8xb200", "--page-size 16", "")]
#[case("MiniMaxAI__MiniMax-M3", "8xh200", "", "--page-size 128")]
#[case("MiniMaxAI__MiniMax-M3", "8xb200", "", "--page-size 128")]
fn pages_of_sparse_attention_are_of_its_own_size(
    #[case] model: &str,
    #[case] device: &str,
    #[case] flags: &str,
    #[case] same: &str,
) {
    let of = |flags: &str| told(model, device, format!("--tp 8 --context-length 100 {flags}").trim_end());
    let [found, expected] = [flags, same].map(|flags| of(flags).unwrap());
    assert_eq!(found.facts, expected.facts);
    assert_eq!(found.sequences, expected.sequences);
}

#[rstest]
#[case("deepseek-ai__DeepSeek-V3.2", "8xh200", "fp8_e5m2", Some("only supports bf16/bfloat16 or fp8_e4m3"))]
#[case("deepseek-ai__DeepSeek-V3.2", "8xh200", "fp8_e4m3", None)]
#[case(
    "deepseek-ai__DeepSeek-V3",
    "8xb200",
    "fp8_e5m2",
    Some("only supports kv-cache-dtype of fp8_e4m3, bf16, or auto")
)]
#[case(
    "deepseek-ai__DeepSeek-V3",
    "8xb200",
    "bfloat16",
    Some("only supports kv-cache-dtype of fp8_e4m3, bf16, or auto")
)]
#[case("deepseek-ai__DeepSeek-V3", "8xb200", "bf16", None)]
#[case("deepseek-ai__DeepSeek-V3", "8xh200", "fp8_e5m2", None)]
fn kernels_of_latents_take_some_dtypes_alone(
    #[case] model: &str,
    #[case] device: &str,
    #[case] dtype: &str,
    #[case] refused: Option<&str>,
) {
    let found = told(model, device, &format!("--tp 8 --context-length 8192 --kv-cache-dtype {dtype}"));
    match (found.map_err(|error| error.to_string()), refused) {
        (Ok(_), None) => {}
        (Err(said), Some(expected)) => assert!(said.contains(expected), "{said}"),
        (found, _) => panic!("{:?}", found.map(drop)),
    }
}

/// With states too, whatever is kept of these.
#[rstest]
fn kernels_of_nemotron_h_take_pages_on_blackwell(
    #[values("nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "nvidia__Nemotron-H-8B-Base-8K")] model: &str,
    #[values("", " --disable-radix-cache", " --speculative-algorithm EAGLE")] more: &str,
) {
    let of = |device, flags: &str| told(model, device, &format!("--context-length 4096{more}{flags}")).unwrap();
    let tokens = |device, flags: &str| of(device, flags).facts[&Fact::Tokens];
    let own = tokens("b200", "");
    assert_eq!(own, tokens("b200", " --attention-backend trtllm_mha"));
    assert_eq!((own.low % 64, own.high % 64), (0, 0));
    assert_eq!(tokens("h100", ""), tokens("h100", " --page-size 1"));
    assert_ne!(tokens("h100", "").high % 64, 0);
}

#[rstest]
#[case(DENSE, "b200", "--attention-backend fa3", "requires SM>=80 and SM<=90")]
#[case(DENSE, "b200", "--decode-attention-backend fa3", "requires SM>=80 and SM<=90")]
#[case(LATENTS, "a100-80gb", "--attention-backend fa3", "requires SM>=80 and SM<=90")]
#[case(DENSE, "rtx-4090", "--attention-backend trtllm_mha", "TRTLLM MHA backend for prefill requires Hopper")]
#[case(DENSE, "a100-80gb", "--decode-attention-backend trtllm_mha", "TRTLLM MHA backend for decode is only supported")]
#[case(LATENTS, "h100", "--attention-backend trtllm_mha", "can only be used with non-MLA models")]
#[case(LATENTS, "h100", "--attention-backend hpc_ops", "can only be used with non-MLA models")]
#[case(DENSE, "b200", "--attention-backend trtllm_mla", "can only be used with MLA models")]
#[case(DENSE, "b200", "--attention-backend cutedsl_mla", "can only be used with MLA models")]
#[case(DENSE, "h100", "--language-only", "is not supported for encoder disaggregation")]
#[case("Qwen__Qwen3.5-27B", "h100", "--language-model-only", "--language-model-only does not support")]
#[case("Qwen__Qwen3-8B", "h100", "--enable-mis", "Multi-item scoring requires flashinfer")]
#[case(DENSE, "b200", "--linear-attn-backend flashinfer", "requires --mamba-ssm-dtype bfloat16")]
#[case(LATENTS, "b200", "--kv-cache-dtype nvfp4", "can only be used with non-MLA models")]
#[case(DENSE, "b200", "--kv-cache-dtype nvfp4 --attention-backend triton", "NVFP4 prefill supports")]
#[case(DENSE, "b200", "--kv-cache-dtype nvfp4 --decode-attention-backend flashinfer", "NVFP4 decode requires")]
#[case(DENSE, "rtx-5090", "--attention-backend trtllm_mha --kv-cache-dtype fp8_e4m3", "FMHAv2 prefill on SM120")]
#[case(LATENTS, "rtx-5090", "--decode-attention-backend cutedsl_mla", "only supported on Blackwell GPUs (SM100)")]
#[case("openai__gpt-oss-120b", "b200", "--enable-deterministic-inference", "supported for deterministic inference")]
#[case(LATENTS, "a100-80gb", "--enable-deterministic-inference", "requires SM>=80 and SM<=90")]
#[case("deepseek-ai__DeepSeek-V4-Flash", "h200", "--dsv4-attn-backend trtllm", "requires an SM100/SM103")]
#[case("deepseek-ai__DeepSeek-V4-Flash", "h200", "--speculative-algorithm EAGLE", "topk == 1")]
#[case("deepseek-ai__DeepSeek-V4-Flash", "h200", "--speculative-algorithm NEXTN", "Only EAGLE and DSPARK")]
fn what_a_device_or_a_model_does_not_take_is_refused(
    #[case] model: &str,
    #[case] device: &str,
    #[case] flags: &str,
    #[case] said: &str,
) {
    let error = told(model, device, &format!("--context-length 4096 {flags}")).unwrap_err();
    assert_eq!(error.exit_code(), 3, "{error}");
    assert!(error.to_string().contains(said), "{error}");
}

#[rstest]
#[case(DENSE, "h100", "--attention-backend fa3")]
#[case(DENSE, "a100-80gb", "--attention-backend fa3")]
#[case(DENSE, "b200", "--attention-backend fa3 --kv-cache-dtype fp8_e5m2")]
#[case(LATENTS, "h100", "--attention-backend fa3")]
#[case(DENSE, "h100", "--attention-backend trtllm_mha")]
#[case(DENSE, "b200", "--kv-cache-dtype nvfp4")]
#[case(DENSE, "b200", "--enable-deterministic-inference")]
#[case(DENSE, "l4", "--enable-deterministic-inference --context-length 1024 --max-total-tokens 2048")]
#[case("Qwen__Qwen3.5-27B", "h100", "--language-only")]
fn what_they_take_is_not_refused(#[case] model: &str, #[case] device: &str, #[case] flags: &str) {
    told(model, device, &format!("--context-length 4096 {flags}")).unwrap();
}

/// Kernels of FlashInfer keep none where answers are alike in any batch, and items that are scored at once come whole.
#[rstest]
#[case("b200", "--enable-deterministic-inference", false)]
#[case("b200", "--enable-deterministic-inference --attention-backend triton", true)]
#[case("h100", "--enable-deterministic-inference", true)]
#[case("h100", "--rl-on-policy-target fsdp --attention-backend flashinfer", false)]
#[case("h100", "--enable-mis --attention-backend flashinfer", false)]
fn some_servers_keep_no_prefixes(#[case] device: &str, #[case] flags: &str, #[case] keeps: bool) {
    let options = Options { version: Some("0.5.23".into()), ..on(device) };
    let command = launch(&format!("sglang serve --model-path m --context-length 4096 {flags}"));
    let (_, asked) = cacheplan_serve::request(&command, &models(DENSE), &options).unwrap();
    assert_eq!(asked.config().budget.engine.prefix_caching, Some(keeps));
    let scores = flags.contains("--enable-mis");
    let step =
        told(DENSE, device, &format!("--context-length 4096 {flags}")).unwrap().facts.get(&Fact::MaxNumTokens).copied();
    assert_eq!(step == Some(Logged::exact(16_384)), scores || device == "b200", "{step:?}");
}

/// Chosen since long before they were read first.
#[rstest]
fn older_versions_choose_these_pages_on_blackwell_too(#[values("0.5.10", "0.5.18", "0.5.23")] version: &str) {
    let page = |flags: &str| {
        let options = Options { version: Some(version.into()), ..on("8xb200") };
        let model = if flags.is_empty() { DENSE } else { "deepseek-ai__DeepSeek-V3" };
        let command = format!("sglang serve --model-path m --context-length 4096{flags}");
        answer(&launch(&command), models(model), &options)
            .unwrap()
            .facts
            .get(&Fact::TokensPerBlock)
            .map(|page| page.low)
    };
    assert_eq!((page(""), page(" --tp-size 8")), (Some(64), Some(64)));
}

#[test]
fn a_server_of_encoders_has_no_caches() {
    let error = told("Qwen__Qwen3.5-27B", "h100", "--context-length 4096 --encoder-only").unwrap_err();
    assert_eq!(error.exit_code(), 4, "{error}");
}

#[rstest]
#[case("--pp-size 2 --pp-max-micro-batch-size 4", 8)]
#[case("--tp-size 2 --pp-max-micro-batch-size 4", 4)]
fn steps_of_stages_have_room_for_so_many(#[case] flags: &str, #[case] sequences: u64) {
    let found = told("Qwen__Qwen3-32B", "2xh100", &format!("--context-length 4096 {flags}")).unwrap();
    assert_eq!(found.sequences, Some(Logged::exact(sequences)));
}
