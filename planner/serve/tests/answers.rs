//! What commands would do, held to what engines logged and to their rules.

mod common;

use std::collections::BTreeMap;

use cacheplan_planner::logs::{Drift, EngineLog, Fact, Logged};
use cacheplan_planner::{Budget, PlanRequest, Serving};
use cacheplan_serve::{Answer, CommandCheck, Launch, Options, Starts, answer, manifest};
use rstest::rstest;

use common::{changed, launch, models, on};

fn told(command: &str, model: &str, options: &Options) -> Answer {
    answer(&launch(command), models(model), options).unwrap()
}

fn with_bytes(version: &str, low: f64, high: f64) -> Options {
    let bytes = |gib: f64| (gib * f64::from(1 << 30)) as u64;
    let cache_bytes = Some(Logged { low: bytes(low), high: bytes(high) });
    Options { version: Some(version.into()), cache_bytes, ..Options::default() }
}

/// `rows.csv` of the logged sizes: V3 of Qwen3.5-9B, U5 of Qwen3-0.6B, V4's kind of hybrid in a later version.
#[rstest]
#[case::hybrid("vllm serve m", "Qwen__Qwen3.5-9B", "0.19.0", 20.27, 165_792, Some(252))]
#[case::dense("vllm serve m --max-model-len 40960", "Qwen__Qwen3-0.6B", "0.11.0", 37.42, 350_304, None)]
fn logged_tokens_follow_from_logged_bytes(
    #[case] command: &str,
    #[case] model: &str,
    #[case] version: &str,
    #[case] gib: f64,
    #[case] tokens: u64,
    #[case] concurrency: Option<u64>,
) {
    let found = told(command, model, &with_bytes(version, gib - 0.005, gib + 0.005));
    assert!(found.facts[&Fact::Tokens].meets(Logged::exact(tokens)), "{:?}", found.facts[&Fact::Tokens]);
    if let Some(hundredths) = concurrency {
        assert!(
            found.facts[&Fact::Concurrency].meets(Logged::exact(hundredths)),
            "{:?}",
            found.facts[&Fact::Concurrency]
        );
    }
}

#[rstest]
#[case("h100", "0.33.0", 8192, 1024)]
#[case("a100-80gb", "0.33.0", 2048, 256)]
#[case("l40s", "0.33.0", 2048, 256)]
#[case("b200", "0.33.0", 16_384, 1024)]
#[case("b200", "0.24.0", 8192, 1024)]
fn vllm_takes_its_defaults_by_the_gpu(
    #[case] device: &str,
    #[case] version: &str,
    #[case] tokens: u64,
    #[case] sequences: u64,
) {
    let options = Options { version: Some(version.into()), ..on(device) };
    let found = told("vllm serve m", "Qwen__Qwen3-8B", &options);
    assert_eq!((found.limits.max_num_tokens, found.limits.max_batch_size), (tokens, Some(sequences)));
}

#[rstest]
#[case("vllm serve m --max-model-len 32k", 32_000)]
#[case("vllm serve m --max-model-len=32K", 32_768)]
#[case("vllm serve m --max_model_len 4096", 4096)]
#[case("vllm serve m --max-model 4096", 4096)]
#[case("vllm serve --max-model-len 8 --model m --max-model-len 4096", 4096)]
#[case("python -m vllm.entrypoints.openai.api_server --model m --max-model-len 4096", 4096)]
fn numbers_are_read_as_vllm_reads_them(#[case] command: &str, #[case] length: u64) {
    assert_eq!(told(command, "Qwen__Qwen3-8B", &on("h100")).limits.max_seq_len, length);
}

#[test]
fn without_stated_bytes_the_numbers_are_an_interval() {
    let found = told("vllm serve m", "Qwen__Qwen3-8B", &on("h100"));
    let (bytes, tokens) = (found.facts[&Fact::CacheBytes], found.facts[&Fact::Tokens]);
    assert!(bytes.low < bytes.high && tokens.low < tokens.high, "{bytes:?} {tokens:?}");
    let stated = told("vllm serve m --kv-cache-memory-bytes 40G", "Qwen__Qwen3-8B", &on("h100"));
    assert_eq!(stated.facts[&Fact::CacheBytes], Logged::exact(40 << 30));
    assert_eq!(stated.facts[&Fact::Tokens].low, stated.facts[&Fact::Tokens].high);
}

#[test]
fn the_lines_are_those_that_a_log_is_read_by() {
    for (command, model) in [
        ("vllm serve m --kv-cache-memory-bytes 40G", "Qwen__Qwen3.5-9B"),
        ("python -m sglang.launch_server --model-path m", "Qwen__Qwen3-8B"),
        ("llama-server -m m -c 32768 -np 4", "Qwen__Qwen3.5-9B"),
        ("trtllm-serve m", "Qwen__Qwen3-8B"),
    ] {
        let options = Options { cache_bytes: Some(Logged::exact(40 << 30)), ..on("h100") };
        let found = told(command, model, &options);
        let log = EngineLog::read(found.lines.join("\n").as_bytes(), None)
            .unwrap_or_else(|error| panic!("{error}: {:#?}", found.lines));
        assert_eq!(log.engine.name(), found.engine);
        let compared = CommandCheck::of(&launch(command), &models(model), &options, &log).unwrap().rows;
        assert!(compared.len() >= 3 && compared.iter().all(|row| row.drift == Drift::None), "{compared:#?}");
    }
}

#[test]
fn a_longest_sequence_is_found_where_vllm_is_to_find_it() {
    let options = Options { cache_bytes: Some(Logged::exact(2 << 30)), ..Options::default() };
    let found = told("vllm serve m --max-model-len auto", "Qwen__Qwen3-8B", &options);
    // 2 GiB of 147,456 bytes a token, in blocks of 16, the null block aside.
    let fits = ((2u64 << 30) / (147_456 * 16) - 1) * 16;
    assert_eq!(found.facts[&Fact::MaxSeqLen], Logged::exact(fits));
}

#[test]
fn what_does_not_start_says_so_in_the_engines_words_and_what_would() {
    let found = told("vllm serve m", "Qwen__Qwen3-8B", &on("20GiB"));
    assert_eq!(found.starts, Starts::No);
    assert!(
        found.reason.as_ref().is_some_and(|reason| reason.starts_with("To serve at least one request")),
        "{:?}",
        found.reason
    );
    assert!(found.changes.iter().any(|change| change.change.starts_with("--max-model-len")), "{:#?}", found.changes);
    assert!(found.changes.iter().all(|change| change.starts != Starts::No));
}

#[test]
fn secrets_are_shown_nowhere() {
    let command = "HF_TOKEN=hf_abc vllm serve m --api-key sk-abc sk-def --hf-token hf_abc --max-num-seqs 8";
    let found = told(command, "Qwen__Qwen3-8B", &on("h100"));
    let shown = serde_json::to_string(&found).unwrap() + &found.text();
    assert!(!shown.contains("sk-") && !shown.contains("hf_abc"), "{shown}");
    assert!(found.command.join(" ").contains("--api-key <hidden> <hidden> --hf-token <hidden> --max-num-seqs 8"));
}

#[test]
fn expectations_count_the_least_that_is_held() {
    let found = told("vllm serve m --max-model-len 4096 --max-num-seqs 16", "Qwen__Qwen3-8B", &on("h100"));
    assert_eq!(found.short_of(Some(16), Some(100_000)), None);
    assert!(
        found.short_of(Some(17), None).is_some_and(|why| why.contains("17 sequences are expected, and it holds 16"))
    );
}

/// On a CPU the pools of keys and values are those of a GPU; the bytes for them have to be said.
#[rstest]
#[case("Qwen__Qwen3-0.6B", Some(8), None)]
#[case("Qwen__Qwen3-0.6B", None, Some("state --max-total-tokens"))]
#[case("Qwen__Qwen3.5-9B", Some(8), Some("rules of `cpu`"))]
fn sglang_on_a_cpu_is_answered_for_stated_bytes(
    #[case] model: &str,
    #[case] gib: Option<u64>,
    #[case] refused: Option<&str>,
) {
    let command = "python -m sglang.launch_server --model-path m --device cpu";
    let options = Options { cache_bytes: gib.map(|gib| Logged::exact(gib << 30)), ..on("64GiB") };
    match (answer(&launch(command), models(model), &options), refused) {
        (Ok(found), None) => assert_eq!(found.facts[&Fact::Tokens], Logged::exact((8 << 30) / (28 * 4096))),
        (Err(error), Some(expected)) => assert!(error.to_string().contains(expected), "{error}"),
        (found, _) => panic!("{found:?}"),
    }
}

#[test]
fn variables_of_llama_cpp_are_flags() {
    let env = BTreeMap::from([
        ("LLAMA_ARG_CTX_SIZE".to_owned(), "8192".to_owned()),
        ("LLAMA_ARG_N_PARALLEL".to_owned(), "2".to_owned()),
    ]);
    let words = ["llama-server", "-m", "m"].map(str::to_owned).to_vec();
    let found = answer(&Launch::from_words(words, &env).unwrap()[0], models("Qwen__Qwen3-8B"), &on("h100")).unwrap();
    assert_eq!((found.limits.max_seq_len, found.limits.max_batch_size), (4096, Some(2)));
}

/// Older builds have a variable of `--no-kv-offload`, newer ones one of `--kv-offload`.
#[rstest]
#[case("b7000", "LLAMA_ARG_NO_KV_OFFLOAD", "1", "--no-kv-offload")]
#[case("b9000", "LLAMA_ARG_KV_OFFLOAD", "0", "-nkvo")]
#[case("b9000", "LLAMA_ARG_KV_OFFLOAD", "1", "--kv-offload")]
fn a_variable_turns_off_what_its_name_says(
    #[case] version: &str,
    #[case] name: &str,
    #[case] value: &str,
    #[case] shown: &str,
) {
    let env = BTreeMap::from([(name.to_owned(), value.to_owned())]);
    let words = ["llama-server", "-m", "m"].map(str::to_owned).to_vec();
    let options = Options { version: Some(version.into()), ..on("h100") };
    let found = answer(&Launch::from_words(words, &env).unwrap()[0], models("Qwen__Qwen3-8B"), &options).unwrap();
    let read: Vec<&str> = found.read.iter().map(|read| &*read.flag).collect();
    assert!(read.contains(&shown), "{read:?}");
}

/// DeepSeek-V3.2 on SGLang: `calculate_mla_kv_cache_dim` over 61 layers, with an index of 132 bytes beside each latent.
#[rstest]
#[case::hopper("8xh100", "0.5.23", "--kv-cache-dtype auto", 1152)]
#[case::hopper_narrow("8xh100", "0.5.23", "--kv-cache-dtype fp8_e4m3", 656)]
#[case::blackwell("8xb200", "0.5.23", "--kv-cache-dtype auto", 576)]
#[case::blackwell_with_scales("8xb200", "0.5.9", "--kv-cache-dtype auto", 656)]
#[case::blackwell_wide("8xb200", "0.5.23", "--kv-cache-dtype bfloat16", 1152)]
fn sparse_latents_of_sglang_have_the_bytes_of_their_kernels(
    #[case] device: &str,
    #[case] version: &str,
    #[case] flags: &str,
    #[case] bytes: u64,
) {
    let command = format!("python -m sglang.launch_server --model-path m --tp-size 8 {flags}");
    let options = Options {
        version: Some(version.into()),
        cache_bytes: Some(Logged::exact(40 << 30)),
        devices: Some(device.parse().unwrap()),
        ..Options::default()
    };
    let found = told(&command, "deepseek-ai__DeepSeek-V3.2", &options);
    let tokens = (40u64 << 30) / (61 * (bytes + 132));
    assert_eq!(found.facts[&Fact::Tokens].low, tokens / 64 * 64);
}

#[rstest]
#[case::as_chosen("8xb200", "deepseek-ai__DeepSeek-V3.2", "--dsa-decode-backend trtllm", true)]
#[case::with_scales("8xb200", "deepseek-ai__DeepSeek-V3.2", "--dsa-decode-backend flashmla_kv", false)]
#[case::wide(
    "8xb200",
    "deepseek-ai__DeepSeek-V3.2",
    "--kv-cache-dtype bfloat16 --dsa-decode-backend flashmla_kv",
    true
)]
#[case::hopper(
    "8xh100",
    "deepseek-ai__DeepSeek-V3.2",
    "--kv-cache-dtype fp8_e4m3 --dsa-prefill-backend flashmla_auto",
    true
)]
#[case::no_sparse_latents("h100", "Qwen__Qwen3-8B", "--kv-cache-dtype fp8_e4m3 --dsa-decode-backend fa3", true)]
fn sparse_kernels_of_sglang_are_planned_as_far_as_they_lay_out_alike(
    #[case] device: &str,
    #[case] model: &str,
    #[case] flags: &str,
    #[case] is_planned: bool,
) {
    let command = format!("python -m sglang.launch_server --model-path m {flags}");
    let options = Options {
        cache_bytes: Some(Logged::exact(40 << 30)),
        devices: Some(device.parse().unwrap()),
        ..Options::default()
    };
    let found = answer(&launch(&command), models(model), &options);
    assert_eq!(found.is_ok(), is_planned, "{:?}", found.err().map(|error| error.to_string()));
}

/// Layers of llama.cpp lie on those devices alone that a command splits them over.
#[rstest]
#[case("-sm none")]
#[case("-ts 1,0")]
fn devices_without_a_share_hold_nothing(#[case] split: &str) {
    let starts = |split: &str| {
        let command = launch(&format!("llama-server -m m -ngl 99 -c 8192{split}"));
        answer(&command, models("meta-llama__Llama-3.1-70B-Instruct"), &on("2xh100")).unwrap().starts
    };
    assert_eq!((starts(""), starts(&format!(" {split}"))), (Starts::Yes, Starts::No));
}

#[test]
fn a_launch_that_has_fewer_gpus_than_ranks_is_refused() {
    let one = Launch { gpus: Some(1), device: Some("h100".into()), ..launch("vllm serve m -tp 2") };
    let error = answer(&one, models("Qwen__Qwen3-8B"), &Options::default()).unwrap_err();
    assert!(error.to_string().contains("World size (2) is larger than the number of available GPUs (1)"), "{error}");
    let on =
        |gpus: u32| answer(&Launch { gpus: Some(gpus), ..one.clone() }, models("Qwen__Qwen3-8B"), &Options::default());
    let idle = |notes: &[String]| notes.iter().any(|note| note.starts_with("it uses 2 of the 4 GPUs"));
    let (two, four) = (on(2).unwrap(), on(4).unwrap());
    assert_eq!((two.starts, four.starts), (Starts::Yes, Starts::Yes));
    assert!(!idle(&two.notes) && idle(&four.notes), "{:?}", four.notes);
}

/// A pod whose node is chosen by a label, with so many GPUs.
fn pod(label: &str, gpus: u32) -> Vec<Launch> {
    let text = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec:\n  nodeSelector: {{{label}}}\n  containers:\n  - name: c\n    image: vllm/vllm-openai:v0.24.0\n    args: [--model, m, -tp, \"2\"]\n    resources: {{limits: {{nvidia.com/gpu: {gpus}}}}}\n"
    );
    manifest::read("pod.yaml", text.as_bytes()).unwrap()
}

#[rstest]
#[case("nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3", "h100")]
#[case("cloud.google.com/gke-accelerator: nvidia-l4", "l4")]
#[case("node.kubernetes.io/instance-type: g6e.48xlarge", "l40s")]
fn the_device_is_the_one_that_a_label_of_its_node_names(#[case] label: &str, #[case] device: &str) {
    let of = |options: &Options| answer(&pod(label, 2)[0], models("Qwen__Qwen3-0.6B"), options).unwrap().facts;
    assert_eq!(of(&Options::default()), of(&on(device)));
    // The container sees the GPUs that it asks for, however many its node has.
    let error = answer(&pod(label, 1)[0], models("Qwen__Qwen3-0.6B"), &Options::default()).unwrap_err().to_string();
    assert!(error.contains("larger than the number of available GPUs (1)"), "{error}");
}

#[rstest]
#[case("nvidia.com/gpu.product: NVIDIA-Z9", "`NVIDIA-Z9` is neither a size")]
#[case("nvidia.com/gpu.product: NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "is a part of a device; state the memory")]
#[case("karpenter.k8s.aws/instance-gpu-name: a100", "`a100` is several devices; write a100-40gb or a100-80gb")]
fn a_label_of_which_no_device_is_known_is_refused_by_its_value(#[case] label: &str, #[case] expected: &str) {
    let error = answer(&pod(label, 2)[0], models("Qwen__Qwen3-0.6B"), &Options::default()).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
    assert!(answer(&pod(label, 2)[0], models("Qwen__Qwen3-0.6B"), &with_bytes("0.24.0", 9.0, 9.0)).is_ok());
}

#[rstest]
#[case("CUDA_VISIBLE_DEVICES=0,1 vllm serve m -tp 4", Some("available GPUs (2)"))]
#[case("CUDA_VISIBLE_DEVICES=0,1,2,3 vllm serve m -tp 4", None)]
#[case("CUDA_VISIBLE_DEVICES=0 vllm serve m -tp 4 --distributed-executor-backend ray", None)]
fn a_process_has_the_gpus_that_it_is_let_see(#[case] command: &str, #[case] expected: Option<&str>) {
    let found = answer(&launch(command), models("Qwen__Qwen3-8B"), &on("8xh100")).map_err(|error| error.to_string());
    match expected {
        Some(expected) => assert!(found.unwrap_err().contains(expected)),
        None => assert!(found.is_ok(), "{found:?}"),
    }
}

#[test]
fn graphs_are_left_free_by_the_versions_that_estimate_them() {
    let at = |command: &str, version: &str| {
        let options = Options { version: Some(version.into()), ..on("h100") };
        told(command, "Qwen__Qwen3-8B", &options).facts[&Fact::CacheBytes]
    };
    let command = "vllm serve m --gpu-memory-utilization 0.9";
    assert!(at(command, "0.18.0").low > at(command, "0.24.0").low);
    assert_eq!(at(&format!("{command} --enforce-eager"), "0.24.0"), at(command, "0.18.0"));
    assert_eq!(at(&format!("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0 {command}"), "0.24.0"), at(command, "0.18.0"));
}

#[test]
fn default_shares_are_those_of_the_versions_parser() {
    let at = |version: &str| {
        let options = Options { version: Some(version.into()), ..on("h100") };
        told("vllm serve m --enforce-eager", "Qwen__Qwen3-8B", &options).facts[&Fact::CacheBytes].low
    };
    // 0.92 of 79.65 GiB is 0.02 of it more than 0.9.
    assert_eq!(at("0.24.0") - at("0.18.0"), ((81_559u64 << 20) * 92 / 100) - ((81_559u64 << 20) * 90 / 100));
}

/// However the container is started.
#[rstest]
#[case(
    "compose.yaml",
    "services:\n  a:\n    image: vllm/vllm-openai:v0.28.0\n    command: --model m --max-model-len 4096\n"
)]
#[case("start.sh", "docker run --gpus all vllm/vllm-openai:v0.28.0 --model m --max-model-len 4096\n")]
fn the_version_is_that_of_the_image(#[case] name: &str, #[case] text: &str) {
    let found = manifest::read(name, text.as_bytes()).unwrap();
    let [launch] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!(answer(launch, models("Qwen__Qwen3-8B"), &on("h100")).unwrap().version, "0.28.0");
}

/// llama.cpp asks for no share of a device: it starts, and leaves on the host what does not fit. Slots share the cells.
#[rstest]
#[case("8192", Starts::Yes)]
#[case("65536", Starts::Maybe)]
fn llama_cpp_is_held_to_the_memory_of_the_devices(#[case] cells: &str, #[case] starts: Starts) {
    let found = told(&format!("llama-server -m m -c {cells}"), "Qwen__Qwen3-8B", &on("rtx-4090"));
    assert_eq!((found.starts, found.sequences), (starts, Some(Logged::exact(1))));
    assert_eq!(found.reason.is_some(), starts == Starts::Maybe, "{:?}", found.reason);
}

/// Weights of 15.26 GiB and caches may leave less than a pass and a context take, and then an allocation fails.
#[rstest]
#[case("-c 8192", "", Starts::Yes)]
#[case("-c 57344", "", Starts::Maybe)]
#[case("-c 53248 -ub 4096 -b 4096", "", Starts::Maybe)]
#[case::logits_of_every_token("-c 53248 -ub 4096 -b 4096", "b9174", Starts::No)]
#[case("-c 40960", "", Starts::Yes)]
#[case::scores_are_kept("-c 40960 -fa off", "", Starts::Maybe)]
fn llama_cpp_is_held_to_what_its_pass_and_context_take(
    #[case] flags: &str,
    #[case] version: &str,
    #[case] starts: Starts,
) {
    let version = Some(version).filter(|version| !version.is_empty()).map(str::to_owned);
    let options = Options { version, ..on("rtx-4090") };
    let found = told(&format!("llama-server -m m -ngl 99 -np 1 {flags}"), "Qwen__Qwen3-8B", &options);
    assert_eq!(found.starts, starts, "{:?} {:?}", found.reason, found.notes);
    let said = found.notes.iter().filter(|note| note.contains("estimated, --activations states them"));
    assert_eq!(said.count(), 1, "{:?}", found.notes);
}

/// vllm-project/recipes#551: this command on one H100 refuses 1024 sequences for 856 blocks.
#[rstest]
#[case("0.19.0", "", Starts::No)]
#[case("0.18.0", "", Starts::Yes)]
#[case("0.19.0", " --enforce-eager", Starts::Yes)]
#[case("0.19.0", " -cc {\"cudagraph_mode\":\"PIECEWISE\"}", Starts::Yes)]
#[case("0.19.0", " -O1", Starts::Yes)]
#[case("0.19.0", " --max-num-seqs 800", Starts::Yes)]
fn graphs_are_captured_where_every_sequence_has_a_block_for_its_state(
    #[case] version: &str,
    #[case] flags: &str,
    #[case] starts: Starts,
) {
    let command = format!("vllm serve m --gpu-memory-utilization 0.95 --max-model-len 32768{flags}");
    // Bytes that make fewer than 1024 blocks, and more than 800.
    let options = Options { version: Some(version.into()), ..on("h100") };
    let options = Options { cache_bytes: with_bytes(version, 42.6, 42.7).cache_bytes, ..options };
    let found = told(&command, "Qwen__Qwen3.5-27B", &options);
    assert_eq!(found.starts, starts, "{:?} {:?}", found.reason, found.facts);
    if starts == Starts::No {
        assert!(found.reason.is_some_and(|why| why.starts_with("max_num_seqs (1024) exceeds available Mamba cache")));
        let fewer = found.changes.iter().find(|change| change.change.starts_with("--max-num-seqs")).unwrap();
        assert_eq!(fewer.starts, Starts::Yes);
    }
}

/// As SGLang's `_get_and_verify_dtype` has it: 36 layers of 8 heads of 128 of 8,192 tokens.
#[rstest]
#[case("bfloat16", "", 1152)]
#[case("bfloat16", " --dtype half", 1152)]
#[case("float32", "", 1152)]
#[case("float32", " --dtype bfloat16", 1152)]
#[case("float32", " --dtype float32", 2304)]
#[case("float32", " --dtype float32 --kv-cache-dtype fp8_e4m3", 576)]
fn sglang_keeps_tokens_in_what_the_model_runs_in(#[case] config: &str, #[case] flags: &str, #[case] mib: u64) {
    let command = format!("sglang serve --model-path m --max-total-tokens 8192 --context-length 4096{flags}");
    let model = changed("Qwen__Qwen3-8B", |config_| config_["torch_dtype"] = config.into());
    let found = answer(&launch(&command), model, &on("h100")).unwrap();
    assert!(found.facts[&Fact::KvBytes].meets(Logged::exact(mib << 20)), "{:?}", found.facts);
}

/// What llm-compressor calibrated is looked at from a version on: bytes of a token.
#[rstest]
#[case("0.5.18", 147_456)]
#[case("0.5.21", 73_728)]
fn sglang_reads_what_a_checkpoint_says_of_caches(#[case] version: &str, #[case] bytes: u64) {
    let model = changed("Qwen__Qwen3-8B", |config| {
        config["quantization_config"] = serde_json::json!({
            "quant_method": "compressed-tensors",
            "kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": false, "symmetric": true}
        });
    });
    let command = "sglang serve --model-path m --max-total-tokens 8192 --context-length 4096";
    let found = answer(&launch(command), model, &with_bytes(version, 40.0, 40.0)).unwrap();
    assert!(found.facts[&Fact::KvBytes].meets(Logged::exact(bytes * 8192)), "{:?}", found.facts);
}

/// vllm-project/vllm#25988: 656 bytes a latent where nobody says, in this version alone.
#[rstest]
#[case("0.11.0", "auto", true)]
#[case("0.12.0", "auto", false)]
#[case("0.12.0", "fp8_ds_mla", true)]
fn sparse_latents_are_narrow_by_version(#[case] version: &str, #[case] word: &str, #[case] narrow: bool) {
    let tokens = |word: &str| {
        let command = format!("vllm serve m --max-model-len 8192 --kv-cache-dtype {word}");
        told(&command, "deepseek-ai__DeepSeek-V3.2", &with_bytes(version, 10.0, 10.0)).facts[&Fact::Tokens]
    };
    assert_eq!(tokens(word) == tokens("fp8"), narrow);
}

/// llama.cpp's `n_ctx`, `n_ctx_seq` and slots: ggml-org/llama.cpp#17046 pads both.
#[rstest]
#[case("-c 4096 -np 10", 5120, 512)]
#[case("-c 1000 -np 1", 1024, 1024)]
#[case("-c 1000 -np 3", 1536, 512)]
#[case("-c 100000 -np 1", 100_096, 100_096)]
#[case("-c 4096 -no-kvu", 4096, 4096)]
#[case("-c 4000", 4096, 4096)]
#[case("-c 4096 -np 4 -kvu", 4096, 4096)]
fn llama_cpp_pads_what_a_slot_holds(#[case] flags: &str, #[case] all: u64, #[case] each: u64) {
    let found = told(&format!("llama-server -m m {flags}"), "Qwen__Qwen3-8B", &on("h100"));
    assert_eq!(found.facts[&Fact::Tokens], Logged::exact(all));
    assert_eq!(found.facts[&Fact::MaxSeqLen], Logged::exact(each));
}

/// `--fit` shrinks a context to 4,096 cells, and never makes one longer.
#[rstest]
fn llama_cpp_leaves_a_short_context_as_it_is(#[values(512, 2048, 4096, 8192)] trained: u64) {
    let models = changed("Qwen__Qwen3-32B", |config| config["max_position_embeddings"] = trained.into());
    let found = answer(&launch("llama-server -m m -np 2"), models, &on("rtx-4090")).unwrap();
    assert_eq!((found.starts, found.facts[&Fact::Tokens]), (Starts::Maybe, Logged::exact(2 * trained.min(4096))));
}

#[test]
fn llama_cpp_has_no_more_sequences_than_a_context_takes() {
    assert_eq!(
        told("llama-server -m m -np 256 -c 65536", "Qwen__Qwen3-8B", &on("h100")).sequences,
        Some(Logged::exact(256))
    );
    let refused = answer(&launch("llama-server -m m -np 257 -c 65792"), models("Qwen__Qwen3-8B"), &on("h100"));
    assert!(refused.unwrap_err().to_string().ends_with("n_seq_max must be <= 256"));
    let budget = Budget::from_toml("max_seq_len = 256\n[memory]\nbytes = '60GiB'", "budget.toml").unwrap();
    let request = PlanRequest::of(models("Qwen__Qwen3-8B").model).with_budget(budget);
    assert!(request.plan().unwrap().capacity.sequences > 1000);
    assert_eq!(request.predict("llama.cpp".parse().unwrap()).unwrap().sequences, 256);
}

/// Graphs are captured in what is free, which stated tokens leave more of than the share does.
#[rstest]
#[case("--max-total-tokens 4096", Starts::Yes)]
#[case("--max-total-tokens 200000", Starts::Yes)]
#[case("--max-total-tokens 9000000", Starts::Maybe)]
#[case("", Starts::Maybe)]
fn sglang_captures_graphs_in_what_its_pools_leave(#[case] tokens: &str, #[case] starts: Starts) {
    let command = format!(
        "python -m sglang.launch_server --model-path m --context-length 4096 --mem-fraction-static 0.95 {tokens}"
    );
    let found = told(command.trim_end(), "Qwen__Qwen3-8B", &on("h100"));
    assert_eq!(found.starts, starts, "{:?}", found.reason);
}

/// A layer's cells lie where the layer does: the last are offloaded, and the output before them.
#[rstest]
#[case("", &["CUDA0 KV buffer size = 4608.00 MiB"])]
#[case("-ngl 99", &["CUDA0 KV buffer size = 4608.00 MiB"])]
#[case("-ngl 0", &["CPU KV buffer size = 4608.00 MiB"])]
#[case("-nkvo", &["CPU KV buffer size = 4608.00 MiB"])]
#[case("-ngl 10", &["CPU KV buffer size = 3456.00 MiB", "CUDA0 KV buffer size = 1152.00 MiB"])]
fn llama_cpp_says_where_its_cells_lie(#[case] flags: &str, #[case] expected: &[&str]) {
    let found = told(format!("llama-server -m m -c 32768 -np 1 {flags}").trim_end(), "Qwen__Qwen3-8B", &on("24GiB"));
    let buffers: Vec<&str> = found.lines.iter().filter_map(|line| line.strip_prefix("llama_kv_cache: ")).collect();
    assert_eq!(buffers, expected);
}

/// Each backend has names of its own for its devices.
#[rstest]
#[case("m4-max-128gb", None, "MTL0")]
#[case("m4-max-128gb", Some("b7845"), "Metal")]
#[case("mi300x", None, "ROCm0")]
#[case("h100", None, "CUDA0")]
fn llama_cpp_names_the_device_that_its_cells_lie_on(
    #[case] device: &str,
    #[case] version: Option<&str>,
    #[case] name: &str,
) {
    let options = Options { version: version.map(str::to_owned), ..on(device) };
    for flags in ["-c 32768 -np 1", "-c 8192", "-c 32768 -np 1 -ngl 10", ""] {
        let command = format!("llama-server -m m {flags}");
        for model in ["Qwen__Qwen3-8B", "google__gemma-3-1b-it"] {
            let found = answer(&launch(command.trim_end()), models(model), &options).unwrap();
            let lines = || found.lines.iter().filter(|line| line.contains("KV buffer size"));
            assert!(lines().any(|line| line.contains(&format!(" {name} KV buffer"))), "{command}: {:?}", found.lines);
            assert!(lines().all(|line| name == "CUDA0" || !line.contains("CUDA")), "{command}: {:?}", found.lines);
        }
    }
}

/// Of buffers alone, each line with its time.
#[test]
fn buffers_stand_for_the_size_that_a_log_leaves_out() {
    let log = "0.19.914.972 I llama_kv_cache:      Vulkan0 KV buffer size =  4600.00 MiB\n";
    let log = EngineLog::read(log.as_bytes(), None).unwrap();
    let command = launch("llama-server -m m -c 32768 -np 1");
    let check = CommandCheck::of(&command, &models("Qwen__Qwen3-8B"), &on("24GiB"), &log).unwrap();
    assert_eq!(check.drifting(), ["kv_bytes"]);
}

/// vLLM's default of a step depends on the device, which nobody names.
#[test]
fn a_default_that_depends_on_the_device_is_not_judged_without_one() {
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures");
    let log = std::fs::read(format!("{fixtures}/logs/vllm-0.19.0-qwen3.5-9b.log")).unwrap();
    let log = EngineLog::read(log.as_slice(), None).unwrap();
    let models = models("Qwen__Qwen3.5-9B");
    let check = |command: &str| CommandCheck::of(&launch(command), &models, &Options::default(), &log).unwrap();
    assert_eq!(check("vllm serve m").drifting(), [""; 0]);
    assert_eq!(check("vllm serve m --max-num-batched-tokens 2048").drifting(), ["max_num_tokens"]);
}

/// Files as plans are exported to, cut to what decides: bytes, sequences and length.
#[rstest]
#[case::tensorrt_llm(
    "start.sh",
    "cat > t.yaml <<EOF\n{\"max_batch_size\": 17, \"max_seq_len\": 4096, \"kv_cache_config\": {\"max_gpu_total_bytes\": 10737418240, \"free_gpu_memory_fraction\": 0.95, \"tokens_per_block\": 16, \"dtype\": \"auto\"}}\nEOF\ntrtllm-serve m --config t.yaml\n"
)]
#[case::dynamo(
    "d.yaml",
    "apiVersion: nvidia.com/v1beta1\nkind: DynamoGraphDeployment\nmetadata: {name: a}\nspec: {components: [{name: f, podTemplate: {spec: {containers: [{name: main, image: 'nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.5.1', command: [python3, -m, dynamo.frontend]}]}}}, {name: w, podTemplate: {spec: {containers: [{name: main, image: 'nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.5.1', command: [python3, -m, dynamo.vllm], args: [--model=m, --kv-cache-memory-bytes=10737418240, --max-model-len=4096, --max-num-seqs=17]}]}}}]}\n"
)]
#[case::dynamo_tensorrt_llm(
    "d.yaml",
    "apiVersion: nvidia.com/v1beta1\nkind: DynamoGraphDeployment\nmetadata: {name: a}\nspec: {components: [{name: w, podTemplate: {spec: {containers: [{name: main, image: 'nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime:1.5.1', command: [python3, -m, dynamo.trtllm], args: [--model=m, '--override-engine-args={\"max_batch_size\":17,\"max_seq_len\":4096,\"kv_cache_config\":{\"max_gpu_total_bytes\":10737418240,\"tokens_per_block\":16,\"dtype\":\"auto\"}}']}]}}}]}\n"
)]
fn what_plans_are_exported_to_is_read_back(#[case] name: &str, #[case] text: &str) {
    let launches = manifest::read(name, text.as_bytes()).unwrap();
    let [launch] = launches.as_slice() else { panic!("{launches:?}") };
    let found = answer(launch, models("Qwen__Qwen3-8B"), &on("h100")).unwrap();
    // 10 GiB of 147,456 bytes a token, in blocks of 16.
    assert_eq!(found.facts[&Fact::NumBlocks], Logged::exact((10u64 << 30) / (147_456 * 16)));
    assert_eq!(found.sequences, Some(Logged::exact(17)));
}

/// The script's words are the server's own, and its cells take the plan's bytes.
#[test]
fn a_plan_exported_to_llama_cpp_is_a_command_that_holds_it() {
    let model = models("Qwen__Qwen3-8B");
    let text = "max_seq_len = 4096\nmax_batch_size = 4\n[memory]\nbytes = '4GiB'\n[dtypes]\nkv = 'q8_0'\n";
    let budget = Budget::from_toml(text, "budget.toml").unwrap();
    let plan = PlanRequest::of(model.model.clone()).with_budget(budget).plan().unwrap();
    let serving = Serving { model: Some("m.gguf".into()), ..Serving::default() };
    let export = plan.export("llama.cpp".parse().unwrap(), None, &serving).unwrap();
    assert_eq!(export.admits, Some(4), "{}", export.text);
    let launches = manifest::read("llama-server.sh", export.text.as_bytes()).unwrap();
    let found = answer(&launches[0], model, &on("80GiB")).unwrap();
    assert_eq!(found.starts, Starts::Yes, "{}", found.text());
    let (planned, held) = (plan.pools.iter().map(|pool| pool.bytes).sum::<u64>(), found.facts[&Fact::KvBytes].high);
    assert!(held <= planned && planned - held < planned / 16, "{held} of {planned}: {}", export.text);
}
