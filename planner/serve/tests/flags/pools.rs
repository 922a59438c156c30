//! What flags make of an engine's pools, and which serve no sequence.

use cacheplan_planner::logs::Fact;
use cacheplan_serve::{Answer, Starts, answer};
use rstest::rstest;

use super::common::{launch, models, on};
use super::{SERVE, SGLANG, told};

/// As the loggers of these versions write it: keys and values apart, latents as one.
#[rstest]
#[case("Qwen__Qwen3-8B", "0.5.12", "KV Cache is allocated. #tokens: 145635, K size: 10.00 GB, V size: 10.00 GB")]
#[case(
    "Qwen__Qwen3-8B",
    "0.5.13",
    "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 145635, K size: 10.00 GB, V size: 10.00 GB"
)]
#[case("deepseek-ai__DeepSeek-V2-Lite", "0.5.12", "KV Cache is allocated. #tokens: ")]
#[case("deepseek-ai__DeepSeek-V2-Lite", "0.5.23", "KV Cache is allocated. dtype: torch.bfloat16, #tokens: ")]
#[case("Qwen__Qwen3-Next-80B-A3B-Thinking", "0.5.23", "Mamba Cache is allocated. max_mamba_cache_size: ")]
fn sglang_logs_the_sizes_of_its_pools_as_its_version_does(
    #[case] model: &str,
    #[case] version: &str,
    #[case] expected: &str,
) {
    let found = told(SGLANG, model, version).unwrap();
    let lines: Vec<&String> = found.lines.iter().filter(|line| line.starts_with(expected)).collect();
    let [line] = lines.as_slice() else { panic!("{:?}", found.lines) };
    let is_latent = model.starts_with("deepseek");
    let is_of_states = expected.starts_with("Mamba");
    assert_eq!(line.contains(", KV size: "), is_latent, "{line}");
    assert_eq!(line.contains(" K size: ") && line.contains(" V size: "), !is_latent && !is_of_states, "{line}");
    // `{:.2f}GB` there, and `{:.2f} GB` elsewhere.
    assert_eq!(line.contains(" GB"), !is_of_states, "{line}");
}

#[test]
fn a_connector_that_does_not_know_groups_costs_blocks() {
    let of = |command: &str| told(command, "google__gemma-3-1b-it", "0.24.0").unwrap().facts[&Fact::Concurrency].low;
    assert!(
        of(r#"vllm serve m --kv-transfer-config {"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}"#)
            < of(SERVE)
    );
}

#[test]
fn a_replica_of_the_attention_holds_whole_heads_and_its_part_of_a_step() {
    let of = |command: &str| told(command, "Qwen__Qwen3-30B-A3B", "0.5.23").unwrap();
    let (whole, replicas) = (
        of("sglang serve --model-path m --tp 4"),
        of("sglang serve --model-path m --tp 4 --dp 4 --enable-dp-attention"),
    );
    let tokens = |answer: &Answer| answer.facts[&Fact::Tokens].low;
    assert!(tokens(&whole).abs_diff(4 * tokens(&replicas)) < 64, "{} {}", tokens(&whole), tokens(&replicas));
    assert_eq!(whole.limits.max_num_tokens, 4 * replicas.limits.max_num_tokens);
}

#[rstest]
#[case(
    "1000",
    "0.33.0",
    Err("(5.62 GiB KV cache is needed, which is larger than the available KV cache memory (2.20 GiB)")
)]
#[case("1000", "0.20.0", Err("its pool of 16000 tokens is smaller than one sequence of 40960"))]
#[case("3000", "0.33.0", Ok(()))]
#[case("10000000", "0.33.0", Err("CUDA out of memory"))]
fn blocks_that_are_stated_hold_one_sequence_and_lie_on_the_device(
    #[case] blocks: &str,
    #[case] version: &str,
    #[case] expected: Result<(), &str>,
) {
    let answer = told(&format!("{SERVE} --num-gpu-blocks-override {blocks}"), "Qwen__Qwen3-8B", version).unwrap();
    match expected {
        Ok(()) => assert_eq!((answer.starts, answer.reason), (Starts::Yes, None)),
        Err(said) => {
            assert_eq!(answer.starts, Starts::No);
            assert!(answer.reason.as_ref().is_some_and(|reason| reason.contains(said)), "{:?}", answer.reason);
        }
    }
}

#[rstest]
#[case("--chunked-prefill-size -1", 16_384)]
#[case("--chunked-prefill-size -1 --max-prefill-tokens 4096", 4096)]
#[case("--chunked-prefill-size 1024", 1024)]
fn prompts_that_are_not_cut_take_what_a_prefill_does(#[case] flags: &str, #[case] tokens: u64) {
    assert_eq!(told(&format!("{SGLANG} {flags}"), "Qwen__Qwen3-8B", "0.5.23").unwrap().limits.max_num_tokens, tokens);
}

/// Counts with which no bytes do.
#[rstest]
#[case(
    "vllm serve m --spec-method mtp --spec-tokens 2",
    "mistralai__Mistral-7B-v0.1",
    "0.33.0",
    "Unsupported speculative method"
)]
#[case(
    "sglang serve --model-path m --max-total-tokens 10000",
    "meta-llama__Llama-4-Scout-17B-16E-Instruct",
    "0.5.23",
    "`max_total_tokens` is stated too small"
)]
#[case(
    "sglang serve --model-path m --max-mamba-cache-size 1",
    "Qwen__Qwen3-Next-80B-A3B-Thinking",
    "0.5.23",
    "1 slots for states are stated"
)]
fn what_serves_no_sequence_does_not_start(
    #[case] command: &str,
    #[case] model: &str,
    #[case] version: &str,
    #[case] expected: &str,
) {
    let error = told(command, model, version).unwrap_err();
    assert!(error.to_string().contains(expected), "{error}");
    assert_eq!(error.exit_code(), 3, "{error}");
}

#[test]
fn states_may_get_more_than_tokens() {
    let slots = |ratio: &str| {
        let command = format!("{SGLANG} --mamba-full-memory-ratio {ratio}");
        told(&command, "Qwen__Qwen3-Next-80B-A3B-Thinking", "0.5.23").unwrap().facts[&Fact::StateSlots].low
    };
    // Of 5 to 1 instead of 9 to 10: 5/6 instead of 9/19 of the bytes.
    let (more, usual) = (slots("5"), slots("0.9"));
    assert!((more * 6 * 9).abs_diff(usual * 5 * 19) < 20 * usual, "{more} {usual}");
}

#[test]
fn stated_bytes_lie_beside_the_weights() {
    let of =
        |command: &str| answer(&launch(command), models("meta-llama__Llama-3.1-70B-Instruct"), &on("h100")).unwrap();
    let found = of("vllm serve m --kv-cache-memory-bytes 10G --max-model-len 4096");
    assert_eq!(found.starts, Starts::No);
    assert!(found.reason.is_some_and(|reason| reason.contains("CUDA out of memory")));
    assert_eq!(of("vllm serve m --kv-cache-memory-bytes 10G --max-model-len 4096 -tp 4").starts, Starts::Yes);
}

#[test]
fn a_share_that_leaves_nothing_is_refused_in_sglangs_words() {
    let command = format!("{SGLANG} --context-length 8192 --chunked-prefill-size 16384");
    let error = answer(&launch(&command), models("Qwen__Qwen3-0.6B"), &on("24GiB")).unwrap_err();
    assert!(error.to_string().contains("Not enough memory"), "{error}");
    assert_eq!(error.exit_code(), 3);
}
