//! What SGLang makes of flags that count for all replicas of its attention, and of servers that only prefill or decode.

mod common;

use cacheplan_planner::logs::{EngineLog, Fact, Logged};
use cacheplan_serve::{Answer, CommandCheck, Models, Options, ServeError, answer};
use rstest::rstest;

use common::{launch, models, on};

const NEXT: &str = "Qwen__Qwen3-Next-80B-A3B-Thinking";
const DRAFTS: &str = "--speculative-algorithm NEXTN --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4";

fn told(flags: &str, model: &str) -> Result<Answer, ServeError> {
    let cache_bytes = Some(Logged::exact(20 << 30));
    let options = Options { version: Some("0.5.23".into()), cache_bytes, ..on("8xh100") };
    answer(&launch(&format!("sglang serve --model-path m --tp 8 {flags}")), models(model), &options)
}

fn says(flags: &str, model: &str, fact: Fact) -> u64 {
    told(flags, model).unwrap().facts[&fact].low
}

/// What drafts has a pool of its own, of as many tokens, and a line of the log of its own; the model's are as without it.
#[rstest]
#[case::head("deepseek-ai__DeepSeek-V3", None, "--speculative-algorithm EAGLE", 1152)]
#[case::model(
    "Qwen__Qwen3-32B",
    Some("Qwen__Qwen3-8B"),
    "--speculative-algorithm STANDALONE --speculative-draft-model-path d",
    36 * 2 * 128 * 2
)]
fn what_drafts_has_a_pool_of_its_own(
    #[case] model: &str,
    #[case] draft: Option<&str>,
    #[case] drafts: &str,
    #[case] per_token: u64,
) {
    const TOKENS: u64 = 100_000;
    let of = |flags: &str, draft: Option<&str>, version: &str| {
        let options =
            Options { version: Some(version.into()), cache_bytes: Some(Logged::exact(30 << 30)), ..on("8xh100") };
        let models = Models { draft: draft.map(|name| common::models(name).model), ..common::models(model) };
        let words =
            format!("sglang serve --model-path m --tp 8 --context-length 8192 --max-total-tokens {TOKENS} {flags}");
        let command = launch(words.trim_end());
        let found = answer(&command, models.clone(), &options).unwrap();
        let log = EngineLog::read(found.lines.join("\n").as_bytes(), None).unwrap();
        let check = CommandCheck::of(&command, &models, &options, &log).unwrap();
        assert!(!check.drifted && !check.rows.is_empty(), "{}", check.table());
        let pools = found.lines.iter().filter(|line| line.starts_with("KV Cache is allocated")).count();
        (found, pools)
    };
    for version in ["0.5.23", "0.5.12"] {
        let drafts =
            format!("{drafts} --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4");
        let ((alone, pool), (with, pools)) = (of("", None, version), of(&drafts, draft, version));
        assert_eq!((pool, pools), (1, 2), "{:?}", with.lines);
        assert_eq!(with.facts[&Fact::KvBytes], alone.facts[&Fact::KvBytes]);
        assert_eq!(with.facts[&Fact::DraftKvBytes], Logged::exact(TOKENS * per_token));
    }
}

const WINDOWS: &str = "openai__gpt-oss-120b";
const OF_REQUESTS: &str = "--disable-radix-cache --max-running-requests 16 --chunked-prefill-size 8192";

/// Steps that do not overlap have room for one chunk, as stages have, and others for two.
#[rstest]
#[case("", 20_497)]
#[case(" --disable-overlap-schedule", 12_305)]
fn windows_of_requests_have_room_for_the_steps_under_way(#[case] flags: &str, #[case] tokens: u64) {
    assert_eq!(says(&format!("{OF_REQUESTS}{flags}"), WINDOWS, Fact::WindowTokens), tokens);
}

/// Files and commands name methods, whose kernels take some GPUs and dtypes alone.
#[rstest]
#[case::other_method("mxfp4", "--quantization fp8", "h100", Some("does not match the quantization method"))]
#[case::read_by_others("awq", "--quantization awq_marlin", "h100", None)]
#[case::kept_to_older_kernels("awq", "--quantization awq", "h100", Some("torch.bfloat16 is not supported"))]
#[case::without_older_kernels(
    "gptq",
    "--quantization gptq --dtype half",
    "h100",
    Some("Unknown quantization method: gptq")
)]
#[case::without_any_kernels("gptq", "", "t4", Some("Unknown quantization method: gptq"))]
#[case::removed("hqq", "", "h100", Some("Unknown quantization method: hqq"))]
#[case::of_others("modelopt", "", "mi300x", Some("modelopt quantization is currently not supported in ROCm"))]
#[case::of_amd("fp8", "", "mi300x", None)]
#[case::older_kernels_alone("awq", "", "mi300x", Some("torch.bfloat16 is not supported"))]
#[case::as_the_files_say("gptq", "", "a100-80gb", None)]
#[case::older_gpu("fp8", "", "t4", Some("Minimum capability: 80"))]
#[case::newer_gpu("fp8", "", "l4", None)]
#[case::kernels_of_ada("w8a8_fp8", "", "a100-80gb", Some("Minimum capability: 89"))]
#[case::taken_back("fp8", "--quantization unquant", "h100", None)]
fn methods_of_weights_take_some_gpus_and_dtypes(
    #[case] stored: &str,
    #[case] flags: &str,
    #[case] device: &str,
    #[case] refused: Option<&str>,
) {
    let model = common::changed("Qwen__Qwen3-0.6B", |config| {
        config["quantization_config"] = serde_json::json!({"quant_method": stored, "bits": 4, "group_size": 128});
    });
    let options = Options { version: Some("0.5.23".into()), cache_bytes: Some(Logged::exact(4 << 30)), ..on(device) };
    let command = format!("sglang serve --model-path m --context-length 4096 {flags}");
    match (answer(&launch(command.trim_end()), model, &options).map_err(|error| error.to_string()), refused) {
        (Ok(_), None) => {}
        (Err(said), Some(expected)) => assert!(said.contains(expected), "{said}"),
        (found, _) => panic!("{:?}", found.map(drop)),
    }
}

/// What they hang on beside is named rather than guessed.
#[rstest]
#[case::moved(&format!("--disaggregation-mode decode {OF_REQUESTS}"), WINDOWS, "--disaggregation-mode")]
#[case::distance(&format!("SGLANG_SWA_EVICTION_INTERVAL=64 {OF_REQUESTS}"), WINDOWS, "SGLANG_SWA_EVICTION_INTERVAL")]
#[case::tree(
    &format!("{OF_REQUESTS} --speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-eagle-topk 4 --speculative-num-draft-tokens 8"),
    WINDOWS,
    "--speculative-algorithm"
)]
#[case::moved_entries("--disaggregation-mode decode", "deepseek-ai__DeepSeek-V4-Flash", "--disaggregation-mode")]
#[case::entries(
    "SGLANG_DSV4_COMPRESS_STATE_DTYPE=bfloat16",
    "deepseek-ai__DeepSeek-V4-Flash",
    "SGLANG_DSV4_COMPRESS_STATE_DTYPE"
)]
#[case::code("SGLANG_EXTERNAL_MODEL_PACKAGE=mine", WINDOWS, "SGLANG_EXTERNAL_MODEL_PACKAGE")]
fn what_is_not_planned_is_named(#[case] told: &str, #[case] model: &str, #[case] name: &str) {
    let (variables, flags): (Vec<_>, Vec<_>) = told.split(' ').partition(|word| word.starts_with("SGLANG_"));
    let command = format!("{} sglang serve --model-path m --tp 8 {}", variables.join(" "), flags.join(" "));
    let options =
        Options { version: Some("0.5.23".into()), cache_bytes: Some(Logged::exact(20 << 30)), ..on("8xh100") };
    let error = answer(&launch(command.trim()), models(model), &options).unwrap_err();
    assert_eq!(error.exit_code(), 4, "{error}");
    assert!(error.to_string().contains(name), "{error}");
}

#[rstest]
#[case("SGLANG_SWA_EVICTION_INTERVAL=128", WINDOWS)]
#[case("SGLANG_SWA_EVICTION_INTERVAL=64", "Qwen__Qwen3-8B")]
#[case("SGLANG_DSV4_COMPRESS_STATE_DTYPE=bfloat16", "Qwen__Qwen3-8B")]
#[case("SGLANG_RUST_SERVER=0", "Qwen__Qwen3-8B")]
fn variables_that_say_the_usual_or_nothing_of_a_model_are_taken(#[case] variable: &str, #[case] model: &str) {
    let command = format!("{variable} sglang serve --model-path m --tp 8 {OF_REQUESTS}");
    let options =
        Options { version: Some("0.5.23".into()), cache_bytes: Some(Logged::exact(20 << 30)), ..on("8xh100") };
    answer(&launch(&command), models(model), &options).unwrap();
}

#[test]
fn pages_of_compressed_attention_are_of_its_own_size() {
    let model = "deepseek-ai__DeepSeek-V4-Flash";
    assert_eq!(says("--page-size 128", model, Fact::Tokens), says("--page-size 256", model, Fact::Tokens));
    assert_eq!(says("--page-size 128", model, Fact::TokensPerBlock), 256);
}

const REPLICAS: &str = "--dp 8 --enable-dp-attention";

#[rstest]
#[case("--dp 8 --enable-dp-attention")]
#[case("--attn-dp-size 8")]
fn each_replica_runs_its_part_of_the_requests(#[case] replicas: &str) {
    let found = told(&format!("{replicas} --max-running-requests 8"), "Qwen__Qwen3-8B").unwrap();
    assert_eq!((found.facts[&Fact::MaxBatchSize], found.sequences), (Logged::exact(1), Some(Logged::exact(1))));
}

/// Qwen3 divides over the ranks of a replica, Phi-3 over all (`models/qwen3.py`, `models/llama.py`).
#[rstest]
#[case("Qwen__Qwen3-8B", "--tp 64 --dp 8 --nnodes 8", None)]
#[case("Qwen__Qwen3-8B", "--tp 64 --nnodes 8", Some("32 attention heads are not divisible by tp_size 64"))]
#[case("microsoft__phi-4", "--tp 4 --dp 4", Some("10 KV heads are not divisible by tp_size 4"))]
fn heads_are_divided_over_the_ranks_that_their_class_takes(
    #[case] model: &str,
    #[case] ranks: &str,
    #[case] said: Option<&str>,
) {
    let found = told(&format!("{ranks} --enable-dp-attention --context-length 4096"), model);
    match said {
        None => assert!(found.is_ok(), "{found:?}"),
        Some(said) => assert!(found.unwrap_err().to_string().contains(said)),
    }
}

#[test]
fn no_more_requests_run_than_every_second_token() {
    let flags = "--max-running-requests 60 --max-total-tokens 100 --context-length 50";
    assert_eq!(says(flags, "Qwen__Qwen3-8B", Fact::MaxBatchSize), 50);
}

#[rstest]
#[case(&format!("{REPLICAS} --max-mamba-cache-size 160"), Fact::StateSlots, 20)]
#[case(&format!("{REPLICAS} --max-mamba-cache-size 160"), Fact::Tokens, 807_789)]
#[case(&format!("{REPLICAS} --disable-radix-cache --max-running-requests 16"), Fact::StateSlots, 2)]
#[case(&format!("{REPLICAS} --max-running-requests 16 {DRAFTS}"), Fact::MaxBatchSize, 2)]
fn each_replica_has_its_part_of_the_states(#[case] flags: &str, #[case] fact: Fact, #[case] expected: u64) {
    assert_eq!(says(flags, NEXT, fact), expected);
}

#[rstest]
#[case("--max-running-requests 16", 48)]
#[case("--max-running-requests 16 --disaggregation-decode-extra-slots 4", 20)]
#[case("--max-running-requests 64", 64)]
fn a_server_that_decodes_has_states_of_those_that_are_moved_to_it(#[case] flags: &str, #[case] slots: u64) {
    let states = |flags: &str| {
        let found = told(flags, NEXT).unwrap();
        (found.facts[&Fact::StateSlots].low, found.facts[&Fact::SsmBytes].low, found.facts[&Fact::Tokens].low)
    };
    let (all, bytes, tokens) = states(&format!("--disaggregation-mode decode {flags}"));
    let stated = flags.split(' ').nth(1).unwrap();
    let (_, alone, without) = states(&format!("--disable-radix-cache --max-running-requests {stated}"));
    assert_eq!((all, bytes * (stated.parse::<u64>().unwrap() + 1)), (slots, alone * (slots + 1)));
    assert_eq!(tokens, without);
}

/// It keeps none of drafts, of which its states get what is left.
#[test]
fn a_server_that_prefills_beside_drafts_is_refused_rather_than_guessed() {
    let error = told(&format!("--disaggregation-mode prefill {DRAFTS}"), NEXT).unwrap_err();
    assert_eq!(error.exit_code(), 4, "{error}");
    assert!(told(&format!("--disaggregation-mode prefill {DRAFTS}"), "Qwen__Qwen3-8B").is_ok());
    assert!(told("--disaggregation-mode prefill", NEXT).is_ok());
}

/// Whatever it is told.
#[rstest]
#[case("t4", "", "torch.float16")]
#[case("t4", " --dtype bfloat16", "torch.float16")]
#[case("l4", "", "torch.bfloat16")]
#[case("l4", " --dtype half", "torch.float16")]
fn a_gpu_without_bfloat16_keeps_caches_in_float16(#[case] device: &str, #[case] flags: &str, #[case] dtype: &str) {
    let command = format!("sglang serve --model-path m --context-length 4096{flags}");
    let options = Options { version: Some("0.5.23".into()), ..on(device) };
    let found = answer(&launch(&command), models("Qwen__Qwen3-0.6B"), &options).unwrap();
    let line = found.lines.iter().find(|line| line.contains("KV Cache is allocated")).unwrap();
    assert!(line.contains(&format!("dtype: {dtype}")), "{line}");
}
