//! Commands that are printed, put back: what a file of options says is theirs too.

mod common;

use cacheplan_serve::{Answer, Launch, Options, answer, manifest};
use common::{models, on};
use rstest::rstest;

const DENSE: &str = "meta-llama__Llama-3.1-8B-Instruct";
const OPTIONS: &str = "max_batch_size: 64\nmax_seq_len: 8192\nkv_cache_config:\n  free_gpu_memory_fraction: 0.5\n  tokens_per_block: 64\n  dtype: fp8\ncuda_graph_config: {max_batch_size: 64}\n";
const BYTES: &str = "kv_cache_config: {max_gpu_total_bytes: 20000000000}\n";

/// The words as a shell hands them over, with the files that they name.
fn put_back(words: Vec<String>, file: &str) -> Launch {
    let launch = Launch::from_words(words, &Default::default()).unwrap().remove(0);
    match launch.config_file().map(str::to_owned) {
        Some(name) => launch.with_config(&name, file).unwrap(),
        None => launch,
    }
}

fn told(launch: &Launch, model: &str, options: &Options) -> Answer {
    answer(launch, models(model), options).unwrap()
}

fn look(launch: &Launch, file: &str, model: &str, options: &Options, helps: bool) {
    let found = told(launch, model, options);
    let again = told(&put_back(found.command.clone(), file), model, options);
    assert_eq!((&again.facts, again.sequences, again.starts), (&found.facts, found.sequences, found.starts));
    assert_eq!(again.command, found.command);
    assert!(!helps || !found.changes.is_empty());
    for change in &found.changes {
        let again = told(&put_back(change.command.clone(), file), model, options);
        let promised = (change.sequences, change.starts);
        assert_eq!((again.sequences, again.starts), promised, "{}: {:?}", change.change, change.command);
    }
}

#[rstest]
#[case(
    "vllm serve m --config f.yaml",
    "max-model-len: 8192\ngpu-memory-utilization: 0.8\nkv-cache-dtype: fp8\n",
    DENSE
)]
#[case("sglang serve --model-path m --config f.yaml", "context-length: 8192\nmem-fraction-static: 0.7\n", DENSE)]
#[case("trtllm-serve m --config f.yaml", OPTIONS, DENSE)]
#[case("trtllm-serve m --extra_llm_api_options=f.yaml --max_seq_len 32768", OPTIONS, DENSE)]
#[case("trtllm-serve m --config f.yaml", BYTES, "meta-llama__Llama-3.1-70B-Instruct")]
#[case("python3 -m dynamo.trtllm --model m --extra-engine-args f.yaml --max-num-tokens 4096", OPTIONS, DENSE)]
#[case(
    "python3 -m dynamo.trtllm --model m --override-engine-args {\"kv_cache_config\":{\"tokens_per_block\":64}}",
    "",
    DENSE
)]
fn a_printed_command_put_back_answers_the_same(
    #[case] command: &str,
    #[case] file: &str,
    #[case] model: &str,
    #[values(None, Some("1.2.0"))] version: Option<&str>,
) {
    let is_of_tensorrt_llm = command.contains("trtllm");
    // Before flags stood above the file, none may help.
    let helps = version.is_none() && !command.contains("dynamo");
    let version = version.filter(|_| is_of_tensorrt_llm).map(str::to_owned);
    let words = command.split(' ').map(str::to_owned).collect();
    look(&put_back(words, file), file, model, &Options { version, ..on("4xh100") }, helps);
}

#[test]
fn a_file_of_options_alone_is_named_by_its_command() {
    let file = format!("model: m\n{OPTIONS}");
    let launch = manifest::read("f.yaml", file.as_bytes()).unwrap().remove(0);
    look(&launch, &file, DENSE, &on("4xh100"), true);
}

/// Since 1.3.0 flags stand above the file (NVIDIA/TensorRT-LLM#14812), and never above that of Dynamo's worker.
#[rstest]
#[case("trtllm-serve m --max_seq_len 4096 --config f.yaml", None, 4096)]
#[case("trtllm-serve m --max_seq_len 4096 --config f.yaml", Some("1.2.0"), 8192)]
#[case("trtllm-serve m --max_seq_len 4096 --config f.yaml", Some("1.3.0rc1"), 8192)]
#[case("trtllm-serve m --max_seq_len 4096 --config f.yaml", Some("1.3.0rc17"), 8192)]
#[case("trtllm-serve m --max_seq_len 4096 --config f.yaml", Some("1.3.0rc22.post1"), 4096)]
#[case("python3 -m dynamo.trtllm --model m --max-seq-len 4096 --extra-engine-args f.yaml", None, 8192)]
#[case("python3 -m dynamo.trtllm --model m --max-seq-len 9 --override-engine-args {\"max_seq_len\":4096}", None, 4096)]
fn of_a_flag_and_a_file_that_differ_the_one_that_its_version_takes_counts(
    #[case] command: &str,
    #[case] version: Option<&str>,
    #[case] length: u64,
) {
    let launch = put_back(command.split(' ').map(str::to_owned).collect(), OPTIONS);
    let found = told(&launch, DENSE, &Options { version: version.map(str::to_owned), ..on("h100") });
    assert_eq!(found.limits.max_seq_len, length);
    let is_said = found.cautions.iter().any(|caution| caution.contains("stands above"));
    assert_eq!(is_said, command.contains("f.yaml"), "{:?}", found.cautions);
}

/// A change says what stands there now, in the file or in a flag.
#[rstest]
#[case("trtllm-serve m --config f.yaml", "tensor_parallel_size: 2\nmax_seq_len: 8192\n")]
#[case("trtllm-serve m --config f.yaml --tp_size 2", "max_seq_len: 8192\n")]
fn a_change_counts_from_what_is_said(#[case] command: &str, #[case] file: &str) {
    let launch = put_back(command.split(' ').map(str::to_owned).collect(), file);
    let found = told(&launch, DENSE, &on("2xh100"));
    let said: Vec<&str> = found.changes.iter().map(|change| change.change.as_str()).collect();
    let ranks = said.iter().find(|said| said.contains("--tensor_parallel_size"));
    let ranks = ranks.unwrap_or_else(|| panic!("{said:?}"));
    let [more, times] = if ranks.contains("size 4") { [4, 2] } else { [8, 4] };
    assert_eq!(*ranks, format!("--tensor_parallel_size {more}, not 2, on {times} times the devices"));
}
