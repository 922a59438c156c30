//! A command that is wrong gets one that starts, whatever is wrong with it.

mod common;

use cacheplan_serve::{Answer, Options, repaired};
use rstest::rstest;

use common::{launch, models, on};

const MODEL: &str = "Qwen__Qwen3-8B";

/// Of a model, its command behind `vllm serve`, on a device; what the engine or we say, and what the command becomes.
#[rstest]
#[case::a_flag_misspelled(
    "vllm serve m --max-modle-len 8192",
    "h100",
    "unrecognized arguments: --max-modle-len",
    "vllm serve m --max-model-len 8192"
)]
#[case::a_flag_of_another_engine("vllm serve m --n-gpu-layers 99", "h100", "unrecognized arguments", "vllm serve m")]
#[case::an_unknown_flag_before_the_model(
    "vllm serve --fast m",
    "h100",
    "unrecognized arguments: --fast",
    "vllm serve m"
)]
#[case::an_ambiguous_prefix("vllm serve m --max-num 8", "h100", "ambiguous option", "vllm serve m --max-num-seqs 8")]
#[case::a_removed_flag("vllm serve m --swap-space 4", "h100", "unrecognized arguments: --swap-space", "vllm serve m")]
#[case::a_missing_value("vllm serve m --max-model-len", "h100", "expected one argument", "vllm serve m")]
#[case::a_missing_value_before_a_flag(
    "vllm serve m --dtype --enforce-eager",
    "h100",
    "expected one argument",
    "vllm serve m --enforce-eager"
)]
#[case::a_switch_with_a_value("vllm serve m --enforce-eager=true", "h100", "ignored explicit argument", "vllm serve m")]
#[case::a_word_for_a_number("vllm serve m --max-num-seqs many", "h100", "invalid value: 'many'", "vllm serve m")]
#[case::a_number_with_commas(
    "vllm serve m --max-num-seqs 1,000",
    "h100",
    "invalid value: '1,000'",
    "vllm serve m --max-num-seqs 1000"
)]
#[case::a_part_of_a_token(
    "vllm serve m --max-model-len 8.5K",
    "h100",
    "invalid value: '8.5K'",
    "vllm serve m --max-model-len 8"
)]
#[case::an_unknown_choice(
    "vllm serve m --dtype bfloat",
    "h100",
    "invalid value: 'bfloat'",
    "vllm serve m --dtype bfloat16"
)]
#[case::a_dtype_of_nobody(
    "vllm serve m --kv-cache-dtype int3",
    "h100",
    "Invalid kv_cache_dtype: 'int3'",
    "vllm serve m --kv-cache-dtype auto"
)]
#[case::a_dtype_that_was_not_read(
    "vllm serve m --kv-cache-dtype turboquant_k8v4",
    "h100",
    "were not read",
    "vllm serve m --kv-cache-dtype auto"
)]
#[case::broken_json("vllm serve m --speculative-config {method:", "h100", "JSON was expected", "vllm serve m")]
#[case::drafts_without_a_number(
    "vllm serve m --speculative-config {\"method\":\"ngram\"}",
    "h100",
    "num_speculative_tokens must be provided",
    "vllm serve m"
)]
#[case::drafts_of_nobody(
    "vllm serve m --speculative-config.method oracle --speculative-config.num_speculative_tokens 2",
    "h100",
    "method: Input should be ngram",
    "vllm serve m"
)]
#[case::a_share_in_percent(
    "vllm serve m --gpu-memory-utilization 90",
    "h100",
    "less than or equal to 1",
    "vllm serve m --gpu-memory-utilization 0.9"
)]
#[case::a_share_of_nothing("vllm serve m --gpu-memory-utilization 0", "h100", "greater than 0", "vllm serve m")]
#[case::a_length_above_the_models(
    "vllm serve m --max-model-len 131072",
    "h100",
    "greater than the derived max_model_len",
    "vllm serve m --max-model-len 40960"
)]
#[case::a_length_of_nothing(
    "vllm serve m --max-model-len 0",
    "h100",
    "max_model_len must be at least 1",
    "vllm serve m"
)]
#[case::a_length_beyond_memory("vllm serve m --max-model-len 40960", "20GiB", "the estimated maximum model length", "")]
#[case::heads_that_do_not_divide(
    "vllm serve m --tensor-parallel-size 3",
    "h100",
    "must be divisible by tensor parallel size (3)",
    "vllm serve m --tensor-parallel-size 2"
)]
#[case::ranks_of_nothing("vllm serve m -tp 0", "h100", "greater than or equal to 1 (it is 0)", "vllm serve m")]
#[case::more_ranks_than_gpus(
    "vllm serve m -tp 8",
    "2xh100",
    "larger than the number of available GPUs (2)",
    "vllm serve m --tensor-parallel-size 2"
)]
#[case::fewer_tokens_than_sequences(
    "vllm serve m --max-num-batched-tokens 64 --max-num-seqs 128",
    "h100",
    "must be greater than or equal to max_num_seqs (128)",
    "vllm serve m --max-num-batched-tokens 64 --max-num-seqs 64"
)]
#[case::a_step_below_the_length(
    "vllm serve m --no-enable-chunked-prefill --max-num-batched-tokens 4096",
    "h100",
    "is smaller than max_model_len",
    "vllm serve m --no-enable-chunked-prefill --max-num-batched-tokens 40960"
)]
#[case::no_sequences("vllm serve m --max-num-seqs 0", "h100", "greater than or equal to 1", "vllm serve m")]
#[case::weights_beyond_memory("vllm serve m", "16GiB", "No available memory", "")]
#[case::weights_that_are_not_known(
    "vllm serve m --cpu-offload-gb 4",
    "h100",
    "it changes what weights take",
    "vllm serve m"
)]
#[case::weights_quantised_on_the_way(
    "vllm serve m --quantization gptq",
    "h100",
    "Cannot find the config file for gptq",
    "vllm serve m"
)]
#[case::a_dtype_of_other_weights(
    "vllm serve m --dtype float32",
    "h100",
    "it changes what weights take",
    "vllm serve m --dtype auto"
)]
#[case::what_nobody_read(
    "vllm serve m --prefill-context-parallel-size 2",
    "h100",
    "only code of the GPU divides prompts so",
    "vllm serve m"
)]
#[case::bytes_too_few("vllm serve m --kv-cache-memory-bytes 64M", "h100", "KV cache is needed", "")]
#[case::a_second_model("vllm serve m n", "h100", "unrecognized arguments: n", "vllm serve m")]
#[case::two_faults(
    "vllm serve m --max-modle-len 8192 -tp 3",
    "h100",
    "unrecognized arguments",
    "vllm serve m --max-model-len 8192 --tensor-parallel-size 2"
)]
#[case::a_layout_of_sparse_latents_alone(
    "vllm serve m --kv-cache-dtype fp8_ds_mla",
    "h100",
    "kv_cache_dtype not supported",
    "vllm serve m --kv-cache-dtype fp8"
)]
#[case::the_model_twice("vllm serve m --model n", "h100", "unrecognized arguments: m", "vllm serve --model n")]
#[case::bytes_beyond_the_device(
    "vllm serve m --kv-cache-memory-bytes 200G",
    "h100",
    "CUDA out of memory",
    "vllm serve m"
)]
#[case::a_share_that_no_device_has_free(
    "vllm serve m --gpu-memory-utilization 1.0",
    "h100",
    "is less than desired GPU memory utilization (1, 79.65 GiB)",
    "vllm serve m --gpu-memory-utilization 0.95"
)]
#[case::bfloat16_on_an_older_card(
    "vllm serve m --dtype bfloat16 --max-model-len 256 --kv-cache-memory-bytes 1G",
    "t4",
    "compute capability 7.5",
    "vllm serve m --max-model-len 256 --kv-cache-memory-bytes 1G --dtype half --tensor-parallel-size 2"
)]
#[case::llama_values_without_flash_attention(
    "llama-server -m m -c 8192 -ctv q8_0 -fa off",
    "h100",
    "V cache quantization requires flash_attn",
    "llama-server -m m -c 8192 -ctv q8_0"
)]
#[case::sglang_misspelled(
    "python -m sglang.launch_server --model-path m --mem-fraction-statc 0.8",
    "h100",
    "unrecognized arguments",
    "python -m sglang.launch_server --model-path m --mem-fraction-static 0.8"
)]
#[case::sglang_in_percent(
    "python -m sglang.launch_server --model-path m --mem-fraction-static 80",
    "h100",
    "between 0 and 1",
    "python -m sglang.launch_server --model-path m --mem-fraction-static 0.8"
)]
#[case::sglang_too_long(
    "python -m sglang.launch_server --model-path m --context-length 131072",
    "h100",
    "greater than the derived context_length",
    "python -m sglang.launch_server --model-path m --context-length 40960"
)]
#[case::sglang_heads(
    "sglang serve --model-path m --tp 3",
    "h100",
    "not divisible by tp_size 3",
    "sglang serve --model-path m --tp-size 2"
)]
#[case::llama_misspelled(
    "llama-server -m m --ctx-sise 8192",
    "h100",
    "invalid argument: --ctx-sise",
    "llama-server -m m --ctx-size 8192"
)]
#[case::llama_dtype(
    "llama-server -m m -c 8192 -ctk q9_9",
    "h100",
    "Unsupported cache type: q9_9",
    "llama-server -m m -c 8192 --cache-type-k q8_0"
)]
#[case::llama_main_device(
    "llama-server -m m -c 8192 -sm none -mg 2",
    "2xh100",
    "invalid value for main_gpu: 2 (available devices: 2)",
    "llama-server -m m -c 8192 -sm none --main-gpu 0"
)]
#[case::llama_slots(
    "llama-server -m m -c 8192 -np 0",
    "h100",
    "invalid value for n_parallel",
    "llama-server -m m -c 8192 --parallel 1"
)]
#[case::sglang_abbreviated(
    "sglang serve --model-path m --tp 2 --pp 2",
    "4xh100",
    "ambiguous option: --pp could match",
    "sglang serve --model-path m --tp 2 --pp-size 2"
)]
#[case::sglang_in_words_of_vllm(
    "sglang serve --model-path m --max-model-len 4096 --max-num-seqs 64 --gpu-memory-utilization 0.8",
    "h100",
    "unrecognized arguments: --max-model-len (near --context-length)",
    "sglang serve --model-path m --context-length 4096 --max-running-requests 64 --mem-fraction-static 0.8"
)]
#[case::vllm_in_words_of_sglang(
    "vllm serve m --context-length 4096 --mem-fraction-static 0.8",
    "h100",
    "unrecognized arguments: --context-length (near --max-model-len)",
    "vllm serve m --max-model-len 4096 --gpu-memory-utilization 0.8"
)]
#[case::sglang_without_anything_near(
    "sglang serve --model-path m --enable-nan-detection",
    "h100",
    "unrecognized arguments: --enable-nan-detection",
    "sglang serve --model-path m"
)]
#[case::sglang_model_behind_a_flag(
    "sglang serve --model-path m --tp 1 other",
    "h100",
    "unrecognized arguments: other",
    "sglang serve --model-path m --tp 1"
)]
#[case::sglang_module_names_no_model_by_its_place(
    "python -m sglang.launch_server other --model-path m",
    "h100",
    "unrecognized arguments: other",
    "python -m sglang.launch_server --model-path m"
)]
#[case::a_block_that_no_kernel_reads(
    "vllm serve m --block-size 7",
    "h100",
    "block_size=7, use_mla=False",
    "vllm serve m --block-size 16"
)]
#[case::less_than_no_drafts(
    "vllm serve m --speculative-config {\"method\":\"ngram\",\"num_speculative_tokens\":-1}",
    "h100",
    "num_speculative_tokens: Input should be greater than 0",
    "vllm serve m"
)]
#[case::trtllm_misspelled(
    "trtllm-serve m --max_seq_length 8192",
    "h100",
    "No such option",
    "trtllm-serve m --max_seq_len 8192"
)]
#[case::trtllm_heads(
    "trtllm-serve m --tp_size 3",
    "h100",
    "not divisible by tp_size 3",
    "trtllm-serve m --tensor_parallel_size 2"
)]
#[case::trtllm_backend("trtllm-serve m --backend tensorrt", "h100", "backend tensorrt were not read", "trtllm-serve m")]
#[case::a_flag_that_prints("vllm serve m --help", "h100", "--help prints something and ends", "vllm serve m")]
#[case::llama_prints(
    "llama-server -m m -c 8192 -h",
    "h100",
    "-h prints something and ends",
    "llama-server -m m -c 8192"
)]
#[case::a_context_with_one_dash(
    "llama-server -m m -ctx 8192",
    "h100",
    "invalid argument: -ctx",
    "llama-server -m m --ctx-size 8192"
)]
#[case::llama_removed(
    "llama-server -m m -c 8192 --draft-max 16",
    "h100",
    "the argument has been removed",
    "llama-server -m m -c 8192"
)]
fn what_is_wrong_is_said_and_a_command_that_starts_is_found(
    #[case] command: &str,
    #[case] device: &str,
    #[case] said: &str,
    #[case] expected: &str,
) {
    let (wrong, models, options) = (launch(command), models(MODEL), on(device));
    let found = cacheplan_serve::answer(&wrong, models.clone(), &options);
    let message = found.as_ref().map_or_else(ToString::to_string, |answer| answer.reason.clone().unwrap_or_default());
    assert!(!found.as_ref().is_ok_and(Answer::admits) || !message.is_empty(), "{command} starts");
    assert!(message.contains(said), "{message}");
    let (changed, answer) = repaired(&wrong, &models, &options).unwrap_or_else(|| panic!("{command}: nothing starts"));
    assert!(answer.admits() && !answer.lines.is_empty(), "{answer:#?}");
    if !expected.is_empty() {
        assert_eq!(changed.words.join(" "), expected);
    }
    // It is what its words say, asked from the start.
    let again = cacheplan_serve::answer(&changed, models, &options).unwrap();
    assert_eq!((again.starts, again.facts), (answer.starts, answer.facts));
}

#[rstest]
#[case("0.24.0", "half", true)]
#[case("0.24.0", "bfloat16", false)]
#[case("0.11.0", "half", false)]
fn vllm_runs_no_gemma_in_float16(#[case] version: &str, #[case] word: &str, #[case] refused: bool) {
    let command = launch(&format!("vllm serve m --max-model-len 8192 --dtype {word}"));
    let options = Options { version: Some(version.into()), ..on("h100") };
    let found = cacheplan_serve::answer(&command, models("google__gemma-3-1b-it"), &options);
    assert_eq!(found.is_err_and(|error| error.to_string().contains("does not support float16")), refused);
}
