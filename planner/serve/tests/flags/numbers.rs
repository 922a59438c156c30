//! Numbers are read as the engine's parser reads them.

use cacheplan_serve::answer;
use rstest::rstest;

use super::common::{launch, models, on};

/// The server counts in 32 bits without a sign what `std::stoi` reads, in steps of 256 cells; a step has no more tokens than there are cells.
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
        (Ok(found), Err(_)) => assert_eq!(found.limits.max_num_tokens, 8192),
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
#[case(
    "vllm serve m --tensor-parallel-size -2",
    3,
    "tensor_parallel_size: Input should be greater than or equal to 1 (it is -2)"
)]
#[case("vllm serve m --gpu-memory-utilization nan", 3, "Input should be greater than 0 (it is nan)")]
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
