//! What single flags say of caches, by the engines' own rules.

mod common;

use cacheplan_planner::logs::{Fact, Logged};
use cacheplan_serve::{Answer, Launch, Models, Options, Refusal, ServeError, Starts, answer};
use cacheplan_transforms::{Model, ReadOptions};
use rstest::rstest;
use serde_json::{Map, Value};

use common::{launch, models, on};

/// The answer of a version that has 20 GiB for caches.
fn told(command: &str, model: &str, version: &str) -> Result<Answer, ServeError> {
    let cache_bytes = Some(Logged::exact(20 << 30));
    answer(&launch(command), models(model), &Options { version: Some(version.into()), cache_bytes, ..on("h100") })
}

const SERVE: &str = "vllm serve m";
const SGLANG: &str = "sglang serve --model-path m";

/// Flags that say what others say.
#[rstest]
#[case::mtp_by_shortcuts(
    "vllm serve m --spec-method mtp --spec-tokens 1",
    "vllm serve m --speculative-config {\"method\":\"mtp\",\"num_speculative_tokens\":1}",
    "Qwen__Qwen3-Next-80B-A3B-Thinking",
    "0.33.0"
)]
#[case::a_level_that_stands_apart("vllm serve m -O 0", "vllm serve m -O0", "Qwen__Qwen3-8B", "0.33.0")]
#[case::the_only_flag_that_begins_so("vllm serve m -t 2", "vllm serve m -tp 2", "Qwen__Qwen3-8B", "0.33.0")]
#[case::units_of_1024(
    "sglang serve --model-path m --context-length 8Ki",
    "sglang serve --model-path m --context-length 8192",
    "Qwen__Qwen3-8B",
    "0.5.23"
)]
#[case::units_of_1000(
    "sglang serve --model-path m --context-length 1.5k --max-total-tokens 8k",
    "sglang serve --model-path m --context-length 1500 --max-total-tokens 8000",
    "Qwen__Qwen3-8B",
    "0.5.10"
)]
#[case::a_count_as_a_text(
    r#"vllm serve m --speculative-config {"method":"ngram","num_speculative_tokens":"3"}"#,
    r#"vllm serve m --speculative-config {"method":"ngram","num_speculative_tokens":3}"#,
    "Qwen__Qwen3-8B",
    "0.33.0"
)]
#[case::pages_of_kernels(
    "sglang serve --model-path m --decode-attention-backend flashmla --page-size 16",
    "sglang serve --model-path m --page-size 64",
    "deepseek-ai__DeepSeek-V2-Lite",
    "0.5.23"
)]
#[case::a_level_of_compilation("vllm serve m -O3", SERVE, "Qwen__Qwen3-8B", "0.11.0")]
#[case::parts_stand_above_the_whole(
    "vllm serve m --speculative-config.method ngram --speculative-config.num_speculative_tokens 3 --speculative-config {}",
    "vllm serve m --speculative-config {\"method\":\"ngram\",\"num_speculative_tokens\":3}",
    "Qwen__Qwen3-8B",
    "0.33.0"
)]
#[case::longer_than_a_model_of_tensorrt_llm(
    "trtllm-serve m --max_seq_len 262144",
    "trtllm-serve m --max_seq_len 40960",
    "Qwen__Qwen3-8B",
    "1.2.0"
)]
#[case::cells_on_the_host(
    "llama-server -m m -c 4096 --device none",
    "llama-server -m m -c 4096 -ngl 0",
    "Qwen__Qwen3-8B",
    "b11549"
)]
#[case::experts_by_batches(
    "vllm serve m -dp 8 --enable-expert-parallel --all2all-backend deepep_low_latency",
    "vllm serve m -dp 8 --enable-expert-parallel --max-num-batched-tokens 256",
    "Qwen__Qwen3-30B-A3B",
    "0.33.0"
)]
#[case::a_connector_that_knows_groups(
    r#"vllm serve m --kv-transfer-config {"kv_connector":"NixlConnector","kv_role":"kv_both"}"#,
    SERVE,
    "google__gemma-3-1b-it",
    "0.24.0"
)]
#[case::a_connector_that_does_not(
    r#"vllm serve m --kv-transfer-config {"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}"#,
    "vllm serve m --disable-hybrid-kv-cache-manager",
    "google__gemma-3-1b-it",
    "0.24.0"
)]
#[case::one_of_several_that_does_not(r#"vllm serve m --kv-transfer-config {"kv_connector":"MultiConnector","kv_role":"kv_both","kv_connector_extra_config":{"connectors":[{"kv_connector":"NixlConnector"},{"kv_connector":"LMCacheConnectorV1"}]}}"#, "vllm serve m --disable-hybrid-kv-cache-manager", "google__gemma-3-1b-it", "0.24.0")]
#[case::any_connector_before(
    r#"vllm serve m --kv-transfer-config {"kv_connector":"NixlConnector","kv_role":"kv_both"}"#,
    "vllm serve m --disable-hybrid-kv-cache-manager",
    "google__gemma-3-1b-it",
    "0.11.0"
)]
#[case::an_offloading_that_knows_groups(
    "vllm serve m --kv-offloading-size 8",
    SERVE,
    "google__gemma-3-1b-it",
    "0.24.0"
)]
#[case::an_offloading_that_does_not(
    "vllm serve m --kv-offloading-size 8 --kv-offloading-backend lmcache",
    "vllm serve m --disable-hybrid-kv-cache-manager",
    "google__gemma-3-1b-it",
    "0.33.0"
)]
#[case::states_as_their_convolutions(
    "vllm serve m --mamba-cache-dtype float32",
    "vllm serve m --mamba-cache-dtype float32 --mamba-ssm-cache-dtype float32",
    "Qwen__Qwen3-Next-80B-A3B-Thinking",
    "0.33.0"
)]
#[case::states_as_the_model_says_in_any_case(
    "vllm serve m --mamba-cache-dtype float16",
    "vllm serve m --mamba-cache-dtype float16 --mamba-ssm-cache-dtype float32",
    "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "0.33.0"
)]
#[case::states_of_linear_attention(
    "vllm serve m --mamba-cache-dtype float32 --max-model-len 8192 --mamba-ssm-cache-dtype float16",
    "vllm serve m --mamba-cache-dtype float32 --max-model-len 8192",
    "MiniMaxAI__MiniMax-Text-01",
    "0.33.0"
)]
#[case::a_chain_of_drafts_as_long_as_its_steps(
    "sglang serve --model-path m --speculative-algorithm NEXTN --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 6",
    "sglang serve --model-path m --speculative-algorithm NEXTN --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4",
    "Qwen__Qwen3-Next-80B-A3B-Thinking",
    "0.5.23"
)]
#[case::a_model_by_its_place("sglang serve m --tp 2", "sglang serve --model-path m --tp 2", "Qwen__Qwen3-8B", "0.5.23")]
#[case::blocks_of_states("vllm serve m --mamba-block-size 16", SERVE, "Qwen__Qwen3.5-9B", "0.33.0")]
#[case::a_shorter_model(
    r#"vllm serve m --hf-overrides {"max_position_embeddings":8192}"#,
    "vllm serve m --max-model-len 8192",
    "Qwen__Qwen3-8B",
    "0.33.0"
)]
#[case::yarn_by_its_factor(r#"vllm serve m --max-model-len 131072 --hf-overrides {"rope_scaling":{"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":32768}}"#, r#"vllm serve m --hf-overrides {"rope_scaling":{"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":32768}}"#, "Qwen__Qwen3-8B", "0.24.0")]
#[case::a_server_that_decodes(
    "sglang serve --model-path m --disaggregation-mode decode",
    "sglang serve --model-path m --disable-radix-cache",
    "Qwen__Qwen3-Next-80B-A3B-Thinking",
    "0.5.23"
)]
#[case::replicas_of_the_attention(
    "sglang serve --model-path m --tp 8 --attn-dp-size 8",
    "sglang serve --model-path m --tp 8 --dp 8 --enable-dp-attention",
    "deepseek-ai__DeepSeek-V3",
    "0.5.23"
)]
#[case::its_host_tier(
    "sglang serve --model-path m --enable-hierarchical-cache --hicache-ratio 2",
    SGLANG,
    "Qwen__Qwen3-8B",
    "0.5.23"
)]
#[case::python_s_numbers(
    "vllm serve m --max-num-seqs 1_00 --max-num-batched-tokens 08k",
    "vllm serve m --max-num-seqs 100 --max-num-batched-tokens 8000",
    "Qwen__Qwen3-8B",
    "0.33.0"
)]
#[case::python_s_shares(
    "sglang serve --model-path m --max-running-requests 02 --tp-size 0_1 --mem-fraction-static 0.7_5",
    "sglang serve --model-path m --max-running-requests 2 --mem-fraction-static 0.75",
    "Qwen__Qwen3-8B",
    "0.5.23"
)]
#[case::click_s_numbers(
    "trtllm-serve m --max_batch_size 01_6 --max_seq_len 4_096",
    "trtllm-serve m --max_batch_size 16 --max_seq_len 4096",
    "Qwen__Qwen3-8B",
    "1.3.0"
)]
fn a_flag_does_what_another_command_does(
    #[case] command: &str,
    #[case] other: &str,
    #[case] model: &str,
    #[case] version: &str,
) {
    let [found, expected] = [command, other].map(|command| told(command, model, version).unwrap());
    assert_eq!((found.facts, found.sequences), (expected.facts, expected.sequences));
}

/// The server counts in 32 bits without a sign what `std::stoi` reads, in steps of 256 cells.
#[rstest]
#[case("-c 4096abc -np +1 -b 2_048", "-c 4096 -np 1 -b 2")]
#[case("-c 8192 -np 1 -ub 0 -b 1024", "-c 8192 -np 1 -ub 1024 -b 1024")]
#[case("-c 8192 -np 1 -b -1", "-c 8192 -np 1 -b 4294967295")]
fn llama_cpp_s_numbers_are_those_of_its_parser(#[case] flags: &str, #[case] other: &str) {
    let [found, expected] = [flags, other].map(|flags| {
        let command = format!("llama-server -m m {flags}");
        answer(&launch(&command), models("Qwen__Qwen3-8B"), &on("h100"))
    });
    match (found, expected) {
        (Ok(found), Ok(expected)) => assert_eq!(found.facts, expected.facts),
        (Ok(found), Err(_)) => assert_eq!(found.limits.max_num_tokens, u64::from(u32::MAX)),
        (found, _) => panic!("{found:?}"),
    }
}

#[rstest]
#[case("llama-server -m m -c 4294967295", 2, "--ctx-size: invalid value: '4294967295' (a whole number between -2^31")]
#[case("llama-server -m m -c k", 2, "--ctx-size: invalid value: 'k'")]
#[case("llama-server -m m -c -5", 3, "4294967291 cells in steps of 256 are none in 32 bits")]
#[case("vllm serve m --max-num-seqs 1__0", 2, "--max-num-seqs: invalid value: '1__0'")]
#[case("vllm serve m --max-num-seqs 9223372036854775808", 2, "(a whole number below 2^63 was expected)")]
#[case("vllm serve m --max-num-batched-tokens 1e3k", 2, "--max-num-batched-tokens: invalid value: '1e3k'")]
#[case("vllm serve m --tensor-parallel-size -2", 3, "--tensor-parallel-size must not be negative (it is -2)")]
#[case("vllm serve m --gpu-memory-utilization nan", 3, "less than or equal to 1 (it is NaN)")]
#[case("sglang serve --model-path m --tp-size -1", 3, "--tp-size must not be negative (it is -1)")]
#[case("sglang serve --model-path m --mem-fraction-static inf", 3, "must be between 0 and 1 (it is inf)")]
#[case("trtllm-serve m --max_batch_size -4", 3, "--max_batch_size must not be negative (it is -4)")]
fn a_number_that_is_none_there_is_refused_as_there(#[case] command: &str, #[case] code: u8, #[case] expected: &str) {
    let error = answer(&launch(command), models("Qwen__Qwen3-8B"), &on("h100")).unwrap_err();
    assert!(error.to_string().contains(expected), "{error}");
    assert_eq!(error.exit_code(), code);
}

/// So that cells that nobody means are answered, and not left out: 4,294,967,040 of them.
#[test]
fn llama_cpp_takes_a_negative_context_for_a_huge_one() {
    let found = answer(&launch("llama-server -m m -c -300 -np 1"), models("Qwen__Qwen3-8B"), &on("h100")).unwrap();
    assert_eq!(found.limits.max_seq_len, (1 << 32) - 256);
    assert_ne!(found.starts, cacheplan_serve::Starts::Yes);
}

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
    "vllm serve m --no-enable-prefix-caching --mamba-block-size 16",
    "Qwen__Qwen3.5-9B",
    3,
    "can only be set with --enable-prefix-caching"
)]
#[case(
    r#"vllm serve m --hf-overrides {"num_hidden_layers":4}"#,
    "Qwen__Qwen3-8B",
    4,
    "what `num_hidden_layers` does to caches was not read"
)]
#[case(r#"vllm serve m --hf-overrides {"text_config":{"head_dim":4}}"#, "Qwen__Qwen3-8B", 4, "what `head_dim` does")]
#[case("vllm serve m --hf-overrides my.function", "Qwen__Qwen3-8B", 2, "")]
#[case(
    r#"vllm serve m --kv-transfer-config {"kv_connector":"Mine","kv_role":"kv_both","kv_connector_module_path":"mine"}"#,
    "google__gemma-3-1b-it",
    4,
    "whether Mine knows several kinds of layers"
)]
#[case(
    "vllm serve m --spec-method mtp --speculative-config {\"method\":\"mtp\"}",
    "Qwen__Qwen3-8B",
    3,
    "are mutually exclusive"
)]
#[case("vllm serve m --runner pooling", "Qwen__Qwen3-8B", 4, "runs as `pooling`")]
#[case("vllm serve m --disable-sliding-window", "google__gemma-3-1b-it", 4, "layers become full")]
fn what_is_not_read_is_refused_with_its_reason(
    #[case] command: &str,
    #[case] model: &str,
    #[case] code: u8,
    #[case] expected: &str,
) {
    let error = told(command, model, "0.33.0").unwrap_err();
    assert!(error.to_string().contains(expected), "{error}");
    assert_eq!(error.exit_code(), code);
}

#[rstest]
#[case("sglang serve --model-path m --tp 4 --dp 3 --enable-dp-attention", 3, "tp_size must be divisible by")]
#[case("sglang serve --model-path m --device npu", 4, "rules of `npu` were not read")]
#[case("sglang serve --model-path m --enable-hisparse", 4, "decided by its code")]
fn what_sglang_refuses_or_nobody_read(#[case] command: &str, #[case] code: u8, #[case] expected: &str) {
    let error = told(command, "Qwen__Qwen3-30B-A3B", "0.5.23").unwrap_err();
    assert!(error.to_string().contains(expected), "{error}");
    assert_eq!(error.exit_code(), code);
}

#[rstest]
#[case("vllm serve m --kv-cache-dtype bf16", "0.33.0", 3, "Invalid kv_cache_dtype: 'bf16'")]
#[case("vllm serve m --kv-cache-dtype FP8", "0.33.0", 3, "Invalid kv_cache_dtype: 'FP8'")]
#[case("vllm serve m --kv-cache-dtype bf16", "0.32.0", 2, "invalid value: 'bf16'")]
#[case("llama-server -m m -c 4096 -ctk Q8_0", "b11549", 2, "Unsupported cache type: Q8_0")]
#[case("llama-server -m m -c 4096 -ngl abc", "b11549", 2, "error while handling argument")]
#[case("vllm serve m -tp 4294967296", "0.33.0", 3, "must be divisible by tensor parallel size")]
#[case("llama-server -m m -c 4096 -ctv fp16", "b11549", 2, "Unsupported cache type: fp16")]
#[case("vllm serve m -tp 2 --decode-context-parallel-size 4", "0.33.0", 3, "`parallel.dcp` 4 does not divide")]
#[case("sglang serve --model-path m --tp 8 --ep 3", "0.5.23", 3, "`parallel.ep` 3 does not divide")]
#[case("trtllm-serve m --ep_size 4", "1.2.0", 3, "`parallel.ep` 4 does not divide")]
#[case("sglang serve --model-path m --kv-cache-dtype nvfp4", "0.5.23", 3, "requires Blackwell SM100 or SM120")]
#[case("sglang serve --model-path m --context-length 8K", "0.5.23", 2, "invalid value: '8K'")]
#[case("sglang serve --model-path m --chunked-prefill-size 1000 --page-size 64", "0.5.23", 3, "divisible by page_size")]
#[case("sglang serve --model-path m --attention-backend trtllm_mla", "0.5.23", 3, "only supported on Blackwell")]
#[case("sglang serve --model-path m --swa-full-tokens-ratio 2", "0.5.23", 3, "should be in range (0, 1.0]")]
#[case(
    "vllm serve m --attention-backend BOGUS",
    "0.33.0",
    3,
    "Unknown attention backend: 'BOGUS'. Valid options are: FLASH_ATTN, "
)]
#[case("vllm serve m --attention-config.backend bogus", "0.33.0", 3, "Unknown attention backend: 'BOGUS'")]
#[case("vllm serve m --max-model-len auto", "0.13.0", 2, "invalid value: 'auto'")]
#[case("llama-server -m m -c 4096 -md d", "b11549", 4, "the context of a model that drafts was not read")]
#[case(
    r#"vllm serve m --speculative-config {"method":"ngram","num_speculative_tokens":3,"bogus_key":1}"#,
    "0.33.0",
    3,
    "bogus_key: Unexpected keyword argument"
)]
#[case(
    r#"vllm serve m -tp 4 --speculative-config {"model":"d","num_speculative_tokens":5,"draft_tensor_parallel_size":3}"#,
    "0.33.0",
    3,
    "cannot be other value than 1 or target model"
)]
#[case(
    r#"vllm serve m --kv-transfer-config {"kv_connector":"LMCacheConnectorV1","kv_role":"bogus"}"#,
    "0.33.0",
    3,
    "Unsupported kv_role"
)]
#[case(
    r#"vllm serve m --kv-transfer-config {"kv_connector":"LMCacheConnectorV1"}"#,
    "0.33.0",
    3,
    "Please specify kv_role"
)]
fn an_engine_takes_its_own_words_and_layouts_alone(
    #[case] command: &str,
    #[case] version: &str,
    #[case] code: u8,
    #[case] expected: &str,
) {
    let error = told(command, "Qwen__Qwen3-8B", version).unwrap_err();
    assert!(error.to_string().contains(expected), "{error}");
    assert_eq!(error.exit_code(), code, "{error}");
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

/// vLLM finds the length by all blocks before 0.29.0, so that none is left for the null block, and by those that are stated.
#[rstest]
#[case("", "0.19.0", 21_840)]
#[case(" --num-gpu-blocks-override 100", "0.33.0", 99 * 16)]
fn a_length_that_is_found_is_one_that_it_starts_with(#[case] flags: &str, #[case] version: &str, #[case] length: u64) {
    let cache_bytes = Some(Logged::exact(3 << 30));
    let options = Options { version: Some(version.into()), cache_bytes, ..on("h100") };
    let command = format!("{SERVE} --max-model-len auto{flags}");
    let found = answer(&launch(&command), models("Qwen__Qwen3-8B"), &options).unwrap();
    assert_eq!((found.starts, found.facts[&Fact::MaxSeqLen]), (Starts::Yes, Logged::exact(length)));
}

/// The answer under a variable.
fn under(name: &str, value: &str, command: &str, model: &str) -> Result<Answer, ServeError> {
    let mut launch = launch(command);
    launch.env.insert(name.into(), value.into());
    answer(&launch, models(model), &Options { cache_bytes: Some(Logged::exact(20 << 30)), ..on("h100") })
}

#[rstest]
#[case("VLLM_PP_LAYER_PARTITION", "4,32", "vllm serve m -pp 2", "Qwen__Qwen3-8B")]
#[case("VLLM_MLA_DISABLE", "1", "vllm serve m", "deepseek-ai__DeepSeek-V2-Lite")]
#[case("SGLANG_PP_LAYER_PARTITION", "4,32", "sglang serve --model-path m --pp-size 2", "Qwen__Qwen3-8B")]
fn a_variable_that_changes_caches_is_refused_by_its_name(
    #[case] name: &str,
    #[case] value: &str,
    #[case] command: &str,
    #[case] model: &str,
) {
    let error = under(name, value, command, model).unwrap_err();
    assert!(error.to_string().starts_with(name), "{error}");
    assert_eq!(error.exit_code(), 4);
    assert!(under(name, "0", &command.replace(" -pp 2", "").replace(" --pp-size 2", ""), model).is_ok());
}

#[rstest]
#[case(
    "SGLANG_MAMBA_SSM_DTYPE",
    "bfloat16",
    SGLANG,
    "sglang serve --model-path m --mamba-ssm-dtype bfloat16",
    "Qwen__Qwen3-Next-80B-A3B-Thinking"
)]
#[case(
    "SGLANG_MAMBA_SSM_DTYPE",
    "bfloat16",
    "sglang serve --model-path m --mamba-ssm-dtype float32",
    "sglang serve --model-path m --mamba-ssm-dtype float32",
    "Qwen__Qwen3-Next-80B-A3B-Thinking"
)]
#[case(
    "LLAMA_ARG_NO_KV_OFFLOAD",
    "0",
    "llama-server -m m -c 4096",
    "llama-server -m m -c 4096 -nkvo",
    "Qwen__Qwen3-8B"
)]
fn a_variable_says_what_a_flag_does(
    #[case] name: &str,
    #[case] value: &str,
    #[case] command: &str,
    #[case] other: &str,
    #[case] model: &str,
) {
    let (found, expected) = (under(name, value, command, model).unwrap(), under("A", "", other, model).unwrap());
    assert_eq!((found.facts, found.lines), (expected.facts, expected.lines));
}

#[rstest]
#[case("google__gemma-3-1b-it", "kv_cache_config.max_attention_window", "[512,512,512,512,512,32768]", true)]
#[case("google__gemma-3-1b-it", "kv_cache_config.max_attention_window", "[1024]", false)]
#[case("google__gemma-2-2b", "kv_cache_config.max_attention_window", "[4096,8192]", true)]
#[case("Qwen__Qwen3-Next-80B-A3B-Thinking", "kv_cache_config.avg_seq_len", "4096", true)]
fn options_that_plans_are_exported_in_are_read_back(
    #[case] model: &str,
    #[case] key: &str,
    #[case] value: &str,
    #[case] is_own: bool,
) {
    let alone = launch("trtllm-serve m");
    let mut told = alone.clone();
    told.config.push((key.into(), value.into()));
    let options = Options { cache_bytes: Some(Logged::exact(20 << 30)), ..on("h100") };
    match (answer(&told, models(model), &options), is_own) {
        (Ok(found), true) => assert_eq!(found.facts, answer(&alone, models(model), &options).unwrap().facts),
        (Err(error), false) => assert!(error.exit_code() == 4 && error.to_string().starts_with(key), "{error}"),
        (found, _) => panic!("{found:?}"),
    }
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
fn a_slot_of_llama_cpp_is_no_longer_than_the_model_was_trained_for() {
    let of = |command: &str| told(command, "Qwen__Qwen3-8B", "b11549").unwrap().tokens_each;
    assert_eq!(of("llama-server -m m -c 81920 -np 1"), Some(40_960));
    assert_eq!(of("llama-server -m m -c 81920 -np 2"), None);
    assert_eq!(of("llama-server -m m -c 81920 -np 1 --rope-scaling yarn --rope-scale 2"), None);
}

/// Slots that share 100,096 cells, none of which takes more than 40,960.
#[test]
fn slots_of_llama_cpp_that_share_cells_divide_them() {
    let found = told("llama-server -m m -c 100000", "Qwen__Qwen3-8B", "b11549").unwrap();
    assert_eq!((found.tokens_each, found.sequences), (Some(40_960), Some(Logged::exact(2))));
    assert_eq!(found.facts[&Fact::MaxSeqLen], Logged::exact(100_096));
}

#[rstest]
#[case("trtllm-serve disaggregated -c x.yaml")]
#[case("trtllm-serve mm_embedding_serve m")]
fn another_subcommand_is_not_taken_for_a_model(#[case] command: &str) {
    let error = told(command, "Qwen__Qwen3-8B", "1.2.0").unwrap_err();
    assert_eq!(error.exit_code(), 4, "{error}");
}

#[test]
fn changed_commands_keep_the_variables_of_their_engine() {
    let mut launch = launch("vllm serve m --max-model-len 81920");
    launch.env.insert("VLLM_ALLOW_LONG_MAX_MODEL_LEN".into(), "1".into());
    launch.env.insert("PATH".into(), "/bin".into());
    let answer = answer(&launch, models("Qwen__Qwen3-8B"), &on("h100")).unwrap();
    assert!(!answer.changes.is_empty());
    for change in answer.changes {
        assert_eq!(change.command[..3], ["env", "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1", "vllm"]);
    }
}

#[test]
fn a_connector_that_nobody_read_is_noted() {
    let is_noted = |config: &str| {
        let answer = told(&format!("{SERVE} --kv-transfer-config {config}"), "Qwen__Qwen3-8B", "0.32.0").unwrap();
        answer.notes.iter().any(|note| note.contains("was read: vLLM refuses one that it does not know"))
    };
    assert!(is_noted(r#"{"kv_connector":"NixelConnector","kv_role":"kv_both"}"#));
    assert!(!is_noted(r#"{"kv_connector":"NixlConnector","kv_role":"kv_both"}"#));
    assert!(!is_noted(r#"{"kv_connector":"Own","kv_role":"kv_both","kv_connector_module_path":"a.b"}"#));
}

#[test]
fn a_share_that_leaves_nothing_is_refused_in_sglangs_words() {
    let command = format!("{SGLANG} --context-length 8192 --chunked-prefill-size 16384");
    let error = answer(&launch(&command), models("Qwen__Qwen3-0.6B"), &on("24GiB")).unwrap_err();
    assert!(error.to_string().contains("Not enough memory"), "{error}");
    assert_eq!(error.exit_code(), 3);
}

/// A config of its own, whose keys are `changes`.
fn changed(name: &str, changes: &str) -> Models {
    let file = format!("{}/../../tests/fixtures/configs/{name}.json", env!("CARGO_MANIFEST_DIR"));
    let mut config: Map<String, Value> = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    config.extend(serde_json::from_str::<Map<String, Value>>(changes).unwrap());
    let text = serde_json::to_string(&config).unwrap();
    Model::read_config("config.json", &text, &ReadOptions::default()).unwrap().into()
}

const YARN: &str =
    r#"{"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}"#;
const LINEAR: &str = r#"{"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 4.0}}"#;
const LONGROPE: &str = r#"{"max_position_embeddings": 131072, "original_max_position_embeddings": 4096,
    "rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [2.0]}}"#;
const SHORTER: &str = r#"{"max_position_embeddings": 8192, "max_sequence_length": 16384}"#;
const NONE: &str = r#"{"max_position_embeddings": null}"#;
const TRTLLM: &str = "trtllm-serve m";

#[rstest]
#[case(SERVE, "0.24.0", YARN, 131_072)]
#[case(SERVE, "0.33.0", YARN, 40_960)]
#[case(SERVE, "0.24.0", LINEAR, 16_384)]
#[case(SERVE, "0.24.0", LONGROPE, 4096)]
#[case(SERVE, "0.11.0", LONGROPE, 131_072)]
#[case("vllm serve m --max-model-len 131072", "0.24.0", LONGROPE, 131_072)]
#[case(SERVE, "0.24.0", SHORTER, 8192)]
#[case(SERVE, "0.24.0", NONE, 32_768)]
#[case(SGLANG, "0.5.23", YARN, 40_960)]
#[case(SGLANG, "0.5.23", LINEAR, 16_384)]
#[case(SGLANG, "0.5.23", SHORTER, 16_384)]
#[case(TRTLLM, "1.2.0", LINEAR, 16_384)]
#[case(TRTLLM, "1.2.0", YARN, 40_960)]
fn the_longest_sequence_is_the_config_s_by_the_engine_s_rule(
    #[case] command: &str,
    #[case] version: &str,
    #[case] changes: &str,
    #[case] tokens: u64,
) {
    let options = Options { version: Some(version.into()), cache_bytes: Some(Logged::exact(60 << 30)), ..on("h100") };
    let answer = answer(&launch(command), changed("Qwen__Qwen3-8B", changes), &options).unwrap();
    assert_eq!(answer.limits.max_seq_len, tokens);
}

#[rstest]
#[case("vllm serve m -dcp 2 -tp 8", 3, "no")]
#[case("vllm serve m -pp 64", 3, "no")]
#[case("vllm serve m --no-such-flag", 2, "no")]
#[case("vllm serve m --enable-lora", 4, "unknown")]
fn a_command_that_does_not_start_is_told_from_one_of_which_nobody_knows(
    #[case] command: &str,
    #[case] code: u8,
    #[case] starts: &str,
) {
    let error = answer(&launch(command), models("Qwen__Qwen3-8B"), &on("h100")).unwrap_err();
    assert_eq!(error.exit_code(), code, "{error}");
    let refusal = serde_json::to_value(Refusal::of(error, &launch(command), None, &on("h100"))).unwrap();
    assert_eq!(refusal["starts"], starts);
}

#[rstest]
#[case("h100", false)]
#[case("9728MiB", true)]
fn a_part_of_a_device_is_none_that_is_known_by_its_name(#[case] device: &str, #[case] taken: bool) {
    let whole = launch("vllm serve m --max-model-len 8192 --kv-cache-memory-bytes 1G");
    let part = Launch { device: Some("nvidia.com/mig-1g.10gb".into()), gpus: Some(1), ..whole.clone() };
    let asked =
        |launch: &Launch| answer(launch, models("Qwen__Qwen3-0.6B"), &on(device)).map_err(|error| error.to_string());
    assert!(asked(&whole).is_ok());
    let found = asked(&part);
    assert_eq!(found.is_ok(), taken, "{found:?}");
    assert!(taken || found.unwrap_err().starts_with("`nvidia.com/mig-1g.10gb` is a part of a device"));
}

#[test]
fn an_image_that_says_no_version_is_answered_with_a_note() {
    let notes = |command: &str, version: Option<&str>| {
        let options = Options { version: version.map(str::to_owned), ..on("h100") };
        answer(&launch(command), models("Qwen__Qwen3-8B"), &options).unwrap().notes.join("\n")
    };
    let command = "docker run vllm/vllm-openai:latest --model m";
    assert!(notes(command, None).contains("the tag of vllm/vllm-openai:latest does not say the engine's version"));
    assert!(!notes(command, Some("0.33.0")).contains("the tag of"));
    assert!(!notes("docker run vllm/vllm-openai:v0.24.0 --model m", None).contains("the tag of"));
}

#[rstest]
#[case("llama-server -m m -c 4096 -hft sesame -np 300")]
#[case("vllm serve m --api-k sesame -tp 3")]
#[case("vllm serve m --api-k=sesame -tp 3")]
#[case("vllm serve m --api-key=x sesame -tp 3")]
#[case("vllm serve m --ssl-keyfile-p sesame -tp 3")]
#[case("sglang serve --model-path m --admin-api sesame --tp 3")]
#[case("HF_TOKEN=sesame")]
fn no_spelling_of_a_flag_shows_its_secret(#[case] command: &str) {
    let words = command.split(' ').map(str::to_owned).collect();
    let said = match Launch::from_words(words, &Default::default()) {
        Err(error) => error.to_string(),
        Ok(found) => {
            let models = models("Qwen__Qwen3-8B");
            let (launch, options) = (&found[0], on("h100"));
            let answer = answer(launch, models.clone(), &options);
            let said = answer.map(|answer| serde_json::to_string(&answer).unwrap() + &answer.text());
            let said = said.unwrap_or_else(|error| Refusal::of(error, launch, Some(&models), &options).text());
            format!("{said}{launch}{launch:?}")
        }
    };
    assert!(said.contains("<hidden>") && !said.contains("sesame"), "{said}");
}
