//! What an engine refuses, what nobody read, and what is noted of it.

use cacheplan_serve::{Launch, Options, Refusal, answer};
use rstest::rstest;

use super::common::{launch, models, on};
use super::{SERVE, told, under};

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
#[case("llama-server -m m -c 4096 --numa none", "b11549", 2, "error while handling argument \"--numa\": invalid value")]
#[case("llama-server -m m -c 4096 -lm lazy", "b11549", 2, "error while handling argument \"--load-mode\"")]
#[case("llama-server -m m -c 4096 -ncmoe -1", "b11549", 2, "error while handling argument \"--n-cpu-moe\"")]
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
    2,
    "kv_role: Input should be"
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
#[case("VLLM_PP_LAYER_PARTITION", "4,32", "36", "vllm serve m -pp 2", "Qwen__Qwen3-8B")]
#[case("VLLM_MLA_DISABLE", "1", "0", "vllm serve m", "deepseek-ai__DeepSeek-V2-Lite")]
#[case("SGLANG_PP_LAYER_PARTITION", "4,32", "0", "sglang serve --model-path m --pp-size 2", "Qwen__Qwen3-8B")]
fn a_variable_that_changes_caches_is_refused_by_its_name(
    #[case] name: &str,
    #[case] value: &str,
    #[case] harmless: &str,
    #[case] command: &str,
    #[case] model: &str,
) {
    let error = under(name, value, command, model).unwrap_err();
    assert!(error.to_string().starts_with(name), "{error}");
    assert_eq!(error.exit_code(), 4);
    assert!(under(name, harmless, &command.replace(" -pp 2", "").replace(" --pp-size 2", ""), model).is_ok());
}

#[test]
fn a_connector_that_nobody_read_is_noted() {
    let is_noted = |config: &str| {
        let answer = told(&format!("{SERVE} --kv-transfer-config {config}"), "Qwen__Qwen3-8B", "0.21.0").unwrap();
        answer.notes.iter().any(|note| note.contains("was read: vLLM refuses one that it does not know"))
    };
    assert!(is_noted(r#"{"kv_connector":"NixelConnector","kv_role":"kv_both"}"#));
    assert!(!is_noted(r#"{"kv_connector":"NixlConnector","kv_role":"kv_both"}"#));
    assert!(!is_noted(r#"{"kv_connector":"Own","kv_role":"kv_both","kv_connector_module_path":"a.b"}"#));
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
#[case("trtllm-serve disaggregated -c x.yaml")]
#[case("trtllm-serve mm_embedding_serve m")]
fn another_subcommand_is_not_taken_for_a_model(#[case] command: &str) {
    let error = told(command, "Qwen__Qwen3-8B", "1.2.0").unwrap_err();
    assert_eq!(error.exit_code(), 4, "{error}");
}
