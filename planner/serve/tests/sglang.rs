//! What SGLang makes of flags that count for all replicas of its attention, and of servers that only prefill or decode.

mod common;

use cacheplan_planner::logs::{Fact, Logged};
use cacheplan_serve::{Answer, Options, ServeError, answer};
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

const REPLICAS: &str = "--dp 8 --enable-dp-attention";

#[rstest]
#[case("--dp 8 --enable-dp-attention")]
#[case("--attn-dp-size 8")]
fn each_replica_runs_its_part_of_the_requests(#[case] replicas: &str) {
    let found = told(&format!("{replicas} --max-running-requests 8"), "Qwen__Qwen3-8B").unwrap();
    assert_eq!((found.facts[&Fact::MaxBatchSize], found.sequences), (Logged::exact(1), Some(Logged::exact(1))));
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
