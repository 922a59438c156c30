//! What a command caps or divides by words of its own: shares of a device and among devices, tokens, next-token layers, and choices.

mod common;

use cacheplan_planner::logs::{Fact, Logged};
use cacheplan_serve::{Answer, Options, Starts, answer, manifest};
use common::{launch, models, on};
use rstest::rstest;

/// A share that is nearly nothing leaves nothing for caches, and no default is blamed.
#[rstest]
#[case("vllm serve m --gpu-memory-utilization 1e-9", "No available memory for the cache blocks")]
#[case("sglang serve --model-path m --mem-fraction-static 1e-9", "Not enough memory")]
fn a_share_below_a_millionth_leaves_nothing(#[case] command: &str, #[case] expected: &str) {
    let found = answer(&launch(command), models("Qwen__Qwen3-8B"), &on("h100")).unwrap();
    assert_eq!(found.starts, Starts::No);
    let reason = found.reason.unwrap_or_default();
    assert!(reason.contains(expected), "{reason}");
}

/// The fullest device decides.
#[rstest]
#[case("-ts 1,1", Starts::Yes)]
#[case("-ts 3,1", Starts::No)]
#[case("-ts 1/3", Starts::No)]
#[case("-ts 0,0", Starts::Yes)]
fn devices_are_filled_by_their_shares(#[case] split: &str, #[case] starts: Starts) {
    let command = launch(&format!("llama-server -m m -ngl 99 -c 8192 {split}"));
    let found = answer(&command, models("meta-llama__Llama-3.1-70B-Instruct"), &on("2xh100")).unwrap();
    assert_eq!(found.starts, starts, "{:?}", found.reason);
}

/// Choices that the parser itself lists are refused as it refuses them, by the release.
#[rstest]
#[case("--reasoning-parser bogus", "0.5.23")]
#[case("--reasoning-parser beam", "0.5.22")]
#[case("--tool-call-parser bogus", "0.5.9")]
#[case("--sampling-backend bogus", "0.5.23")]
fn choices_of_sglang_s_parser_are_refused_by_it(#[case] flags: &str, #[case] version: &str) {
    let options = Options { version: Some(version.into()), ..on("h100") };
    let command = launch(&format!("sglang serve --model-path m {flags}"));
    let error = answer(&command, models("Qwen__Qwen3-8B"), &options).unwrap_err();
    let flag = flags.split(' ').next().unwrap();
    assert!(error.to_string().contains(&format!("argument {flag}: invalid value")), "{error}");
    assert_eq!(error.exit_code(), 2);
}

/// A device of which so much is left for caches.
fn with_bytes(device: &str, bytes: u64) -> Options {
    Options { cache_bytes: Some(Logged::exact(bytes)), ..on(device) }
}

#[rstest]
#[case("", true)]
#[case(
    " --speculative-algorithm NEXTN --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4",
    false
)]
fn next_token_layers_are_no_other_s_caches(#[case] flags: &str, #[case] is_planned: bool) {
    let of = |layers: &str| {
        let layers = format!("--json-model-override-args {{\"num_nextn_predict_layers\":{layers}}}{flags}");
        answer(
            &launch(&format!("sglang serve --model-path m {layers}")),
            models("zai-org__GLM-4.5"),
            &with_bytes("h200", 40 << 30),
        )
    };
    let plain = launch(&format!("sglang serve --model-path m{flags}"));
    let plain = answer(&plain, models("zai-org__GLM-4.5"), &with_bytes("h200", 40 << 30)).unwrap();
    assert_eq!(of("1").unwrap().facts, plain.facts);
    assert_eq!(of("3").map(|found| found.facts == plain.facts).unwrap_or_default(), is_planned);
}

/// What drafts has a context of its own, whose types are `--spec-draft-type-k` and `-v`, else float16.
#[test]
fn prediction_layers_of_llama_cpp_keep_float16_whatever_the_model_s_cells_are() {
    let bytes = |drafts: &str| {
        let command = format!("llama-server -m m -np 1 -c 65536 -fa on -ctk q8_0 -ctv q8_0{drafts}");
        answer(&launch(&command), models("Qwen__Qwen3.5-9B"), &on("h100")).unwrap().facts[&Fact::KvBytes].low
    };
    // Keys and values of 4 heads of 256.
    assert_eq!(bytes(" --spec-type draft-mtp") - bytes(""), 65_536 * 2 * 4 * 256 * 2);
}

/// Layers that draft by a window choose no entries, and have no index: as many blocks as without them.
#[test]
fn draft_layers_with_a_window_have_no_index() {
    let tokens = |drafts: &str| {
        let command = format!(
            "vllm serve m -tp 2 --kv-cache-dtype fp8_ds_mla --block-size 256 --max-num-seqs 6 --max-num-batched-tokens 8192{drafts}"
        );
        let options = Options { version: Some("0.27.1".into()), ..with_bytes("2x128GiB", 28_235_618_304) };
        answer(&launch(&command), models("deepseek-ai__DeepSeek-V4-Flash"), &options).unwrap().facts[&Fact::Tokens]
    };
    let drafts = r#" --speculative-config {"method":"dspark","num_speculative_tokens":5}"#;
    // Logged with these drafts, and what 0.27.1 makes of 46 windows in two groups.
    assert_eq!(tokens(drafts), Logged::exact(2_740_813));
    assert_eq!(tokens(drafts), tokens(""));
}

/// A command of TensorRT-LLM with a file of options.
fn with_cache_config(model: &str, config: &str, options: &Options) -> Answer {
    let text = format!(
        "cat > t.yaml <<EOF\nkv_cache_config: {{{config}, tokens_per_block: 64}}\nEOF\ntrtllm-serve m --config t.yaml\n"
    );
    let launches = manifest::read("start.sh", text.as_bytes()).unwrap();
    answer(&launches[0], models(model), options).unwrap()
}

fn with_tokens(model: &str, tokens: u64) -> Answer {
    with_cache_config(model, &format!("max_tokens: {tokens}"), &with_bytes("h100", 40 << 30))
}

#[test]
fn tokens_of_tensorrt_llm_are_at_most_those_that_are_stated() {
    let tokens = |tokens: u64| with_tokens("Qwen__Qwen3-8B", tokens);
    assert_eq!(tokens(100_000).facts[&Fact::Tokens], Logged::exact(100_000 / 64 * 64));
    assert_eq!(tokens(10_000_000).facts[&Fact::Tokens], tokens(20_000_000).facts[&Fact::Tokens]);
    // What is longer is cut to them.
    let few = tokens(8_200);
    assert_eq!((few.limits.max_seq_len, few.starts), (8_192, Starts::Yes));
    // Windows of several sizes take no notice of it, where they are stated.
    let gemma = |config: &str| with_cache_config("google__gemma-3-1b-it", config, &with_bytes("h100", 40 << 30));
    let windows = |tokens: u64| {
        let config = format!("max_tokens: {tokens}, max_attention_window: [512, 512, 512, 512, 512, 32768]");
        gemma(&config).facts[&Fact::Tokens]
    };
    assert_eq!(windows(1_000), windows(10_000_000));
    assert_eq!(gemma("max_tokens: 64000").facts[&Fact::Tokens], Logged::exact(64_000));
}

/// Its file of options takes whole numbers for bytes, of which a budget wants a unit to few.
#[test]
fn bytes_of_tensorrt_llm_have_no_unit() {
    let of = |bytes: u64| with_cache_config("Qwen__Qwen3-8B", &format!("max_gpu_total_bytes: {bytes}"), &on("h100"));
    let few = of(4096);
    assert_eq!(few.starts, Starts::No);
    for bytes in [1, 24, 1000, 4095] {
        assert_eq!((of(bytes).starts, of(bytes).reason), (few.starts, few.reason.clone()), "{bytes}");
    }
    assert_eq!(of(10_000_000_000).facts[&Fact::NumBlocks], Logged::exact(10_000_000_000 / (147_456 * 64)));
    // The smaller of them and of the share decides.
    assert_eq!(of(1 << 40).facts[&Fact::NumBlocks], of(1 << 41).facts[&Fact::NumBlocks]);
}

/// Replicas of the attention have each a part of what is stated of all, which is said and raised as it was stated.
#[rstest]
#[case("--tp 8 --dp 8", "64", 8)]
#[case("--tp 8 --dp 2", "5", 2)]
fn the_cap_of_all_replicas_is_told_and_raised_as_it_is_stated(
    #[case] sizes: &str,
    #[case] stated: &str,
    #[case] each: u64,
) {
    let words = format!(
        "python -m sglang.launch_server --model-path m {sizes} --enable-dp-attention --max-running-requests {stated} --context-length 8192"
    );
    let models = models("Qwen__Qwen3-30B-A3B");
    let found = answer(&launch(&words), models, &on("8xh100")).unwrap();
    assert_eq!(found.sequences.unwrap(), Logged::exact(each));
    assert_eq!(found.capped_by, format!("the most sequences, --max-running-requests {stated}"));
    let more = found.changes.iter().find(|change| change.change.starts_with("--max-running-requests")).unwrap();
    assert!(more.change.ends_with(&format!(", not {stated}")), "{}", more.change);
    assert!(more.sequences.unwrap().low >= 2 * each, "{}", more.change);
}
