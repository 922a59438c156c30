//! A flag does what another command says in other words: another flag, a key, a variable.

use cacheplan_planner::logs::{Fact, Logged};
use cacheplan_serve::{Answer, Options, answer};
use rstest::rstest;

use super::common::{launch, models, on};
use super::{SERVE, SGLANG, told, under};

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

/// What plans are exported in is read back; windows that nobody states keep all tokens, as the log of gpt-oss says: 73,728 bytes each, and
/// sequences that are cut to what there is. Half of its bytes for its half of layers hold as much as all for all.
#[rstest]
#[case("google__gemma-3-1b-it", "kv_cache_config.max_attention_window", "[512,512,512,512,512,32768]", Some(true))]
#[case("google__gemma-3-1b-it", "kv_cache_config.max_attention_window", "[1024]", None)]
#[case("google__gemma-3-1b-it", "kv_cache_config.max_attention_window", "[32768]", Some(false))]
#[case("openai__gpt-oss-120b", "kv_cache_config.max_attention_window", "[128,131072]", Some(false))]
#[case("openai__gpt-oss-120b", "kv_cache_config.max_attention_window", "null", Some(false))]
#[case("Qwen__Qwen3-Next-80B-A3B-Thinking", "kv_cache_config.avg_seq_len", "4096", Some(false))]
fn options_that_plans_are_exported_in_are_read_back(
    #[case] model: &str,
    #[case] key: &str,
    #[case] value: &str,
    #[case] holds_more: Option<bool>,
) {
    let alone = launch("trtllm-serve m");
    let mut told = alone.clone();
    told.config.push((key.into(), value.into()));
    let options = Options { cache_bytes: Some(Logged::exact(20 << 30)), ..on("h100") };
    let untold = answer(&alone, models(model), &options).unwrap();
    let holds = |found: &Answer| found.sequences.unwrap().low;
    match (answer(&told, models(model), &options), holds_more) {
        (Ok(found), Some(false)) => assert_eq!(found.facts, untold.facts),
        (Ok(found), Some(true)) => assert!(holds(&found) > holds(&untold), "{:?}", found.sequences),
        (Err(error), None) => assert!(error.exit_code() == 4 && error.to_string().starts_with(key), "{error}"),
        (found, _) => panic!("{found:?}"),
    }
}

#[rstest]
#[case("openai__gpt-oss-120b", 73_728 * 86_720, [86_720, 86_720])]
#[case("openai__gpt-oss-120b", 73_728 * 200_000, [131_072, 200_000])]
#[case("Qwen__Qwen3-8B", 147_456 * 8_192, [8_192, 8_192])]
fn tensorrt_llm_cuts_sequences_to_what_its_one_pool_holds(
    #[case] model: &str,
    #[case] bytes: u64,
    #[case] expected: [u64; 2],
) {
    let options = Options { cache_bytes: Some(Logged::exact(bytes)), ..on("h100") };
    let found = answer(&launch("trtllm-serve m"), models(model), &options).unwrap();
    let logged = [Fact::MaxSeqLen, Fact::Tokens].map(|fact| found.facts[&fact]);
    assert_eq!(logged, expected.map(Logged::exact));
    assert_eq!(found.facts[&Fact::TokensPerBlock], Logged::exact(32));
}

/// Keys of its file of options by themselves: of no cache, refused by it, or not planned.
#[rstest]
#[case(&[("guided_decoding_backend", "xgrammar"), ("enable_autotuner", "false"), ("batch_wait_timeout_ms", "5")], None)]
#[case(&[("cuda_graph_config.batch_sizes", "[1,2,8]"), ("cuda_graph_config.max_batch_size", "8")], None)]
#[case(&[("cuda_graph_config.batch_sizes", "[1,2]"), ("cuda_graph_config.max_batch_size", "8")], Some((3, "is incompatible with")))]
#[case(&[("max_beam_width", "4")], Some((4, "how 4 beams share the blocks")))]
#[case(&[("max_beam_width", "1")], None)]
fn options_of_tensorrt_llm_are_taken_or_refused(#[case] config: &[(&str, &str)], #[case] refused: Option<(u8, &str)>) {
    let mut told = launch("trtllm-serve m");
    told.config.extend(config.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
    match (answer(&told, models("Qwen__Qwen3-8B"), &on("h100")), refused) {
        (Ok(_), None) => {}
        (Err(error), Some((code, said))) => {
            assert!(error.exit_code() == code && error.to_string().contains(said), "{error}");
        }
        (found, _) => panic!("{:?}", found.map(drop)),
    }
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
