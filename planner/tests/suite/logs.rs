//! Start-up logs of engines: what is read of them, and what a plan is beside them.

use std::io::Cursor;
use std::sync::LazyLock;

use cacheplan_planner::engines::Version;
use cacheplan_planner::logs::{Drift, EngineLog, Fact, LogCheck, LogError, Logged};
use cacheplan_planner::plan::Certainty;
use cacheplan_planner::{Budget, CachePlan, DeviceInfo, Engine, EngineSpec, MeasuredLedger, PlanRequest};
use cacheplan_transforms::{Model, ReadOptions};
use proptest::prelude::*;
use rstest::rstest;

const GIB: f64 = 1_073_741_824.0;
const MIB: f64 = 1_048_576.0;

fn text(name: &str) -> String {
    let file = format!("{}/../tests/fixtures/logs/{name}.log", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(file).unwrap()
}

fn engine(name: &str) -> Engine {
    name.parse::<EngineSpec>().unwrap().engine
}

fn read_text(text: &str) -> Result<EngineLog, LogError> {
    EngineLog::read(Cursor::new(text.as_bytes()), None)
}

fn log(name: &str) -> EngineLog {
    read_text(&text(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Each fact as it prints: counts in full, bytes in the unit of the log.
#[rstest]
#[case("vllm-0.19.0-qwen3.5-9b", "vllm", Some(Version(0, 19, 0)), &[
    (Fact::MaxSeqLen, 262_144), (Fact::MaxNumTokens, 8192), (Fact::Tp, 1), (Fact::Pp, 1), (Fact::PrefixCaching, 0),
    (Fact::TokensPerBlock, 528), (Fact::Tokens, 165_792), (Fact::Concurrency, 252),
], &[(Fact::Weights, 17.66, GIB), (Fact::CacheBytes, 20.27, GIB), (Fact::Graphs, 0.65, GIB)])]
#[case("vllm-0.10.2-llava-mistral-7b", "vllm", None, &[
    (Fact::MaxSeqLen, 4096), (Fact::MaxNumTokens, 16_384), (Fact::Tokens, 451_744), (Fact::Concurrency, 11_029),
], &[
    (Fact::Weights, 14.0786, GIB), (Fact::CacheBytes, 55.15, GIB), (Fact::Graphs, 0.67, GIB),
    (Fact::Activations, 1.97, GIB), (Fact::Context, 0.07, GIB),
])]
#[case("vllm-0.11-kimi-linear-tp2", "vllm", None, &[
    (Fact::MaxSeqLen, 120_000), (Fact::Tokens, 75_840), (Fact::Concurrency, 248),
], &[(Fact::CacheBytes, 2.30, GIB)])]
#[case("vllm-0.7-llama-3.1-70b-w8a8", "vllm", None, &[
    (Fact::MaxSeqLen, 2048), (Fact::NumBlocks, 1381), (Fact::Concurrency, 1079),
], &[(Fact::Weights, 67.7229, GIB)])]
#[case("vllm-0.8-first-engine", "vllm", None, &[
    (Fact::MaxSeqLen, 32_768), (Fact::NumBlocks, 5519), (Fact::Concurrency, 269),
], &[
    (Fact::Weights, 2.8875, GIB), (Fact::Context, 0.01, GIB), (Fact::Activations, 2.02, GIB), (Fact::CacheBytes, 2.36, GIB),
])]
#[case("vllm-0.2x-windows", "vllm", None, &[
    (Fact::MaxSeqLen, 131_072), (Fact::Tokens, 396_928), (Fact::Concurrency, 303),
], &[(Fact::Graphs, 0.11, GIB)])]
#[case("vllm-0.3x-llama-3.1-8b", "vllm", None, &[
    (Fact::MaxSeqLen, 131_072), (Fact::Tokens, 460_496), (Fact::Concurrency, 351),
], &[
    (Fact::Weights, 15.0, GIB), (Fact::Resident, 15.26, GIB), (Fact::Activations, 1.44, GIB), (Fact::Graphs, 0.23, GIB),
    (Fact::CacheBytes, 56.21, GIB),
])]
#[case("sglang-0.4.6-qwen3-0.6b", "sglang", None, &[
    (Fact::MaxSeqLen, 40_960), (Fact::MaxNumTokens, 2048), (Fact::MaxBatchSize, 2049), (Fact::Tp, 1), (Fact::Pp, 1),
    (Fact::TokensPerBlock, 1), (Fact::NoPrefixCaching, 0), (Fact::Tokens, 15_387),
], &[(Fact::Weights, 1.2, GIB), (Fact::Nccl, 0.0, GIB), (Fact::KvBytes, 1.64, GIB), (Fact::Graphs, 0.0, GIB)])]
#[case("sglang-0.5-tp8", "sglang", None, &[(Fact::Tokens, 2_795_207)], &[(Fact::KvBytes, 106.62, GIB)])]
#[case("sglang-0.5-b200", "sglang", None, &[(Fact::Tokens, 2_243_474)], &[
    (Fact::KvBytes, 119.82, GIB), (Fact::Graphs, 1.44, GIB),
])]
#[case("tensorrt-llm-llama-3.1-8b-fp8", "tensorrt-llm", None, &[
    (Fact::NumBlocks, 8219), (Fact::TokensPerBlock, 32), (Fact::Tokens, 263_008),
], &[(Fact::KvBytes, 16.05, GIB)])]
#[case("tensorrt-llm-deepseek-r1-distill-llama-8b", "tensorrt-llm", None, &[
    (Fact::BlocksPerSequence, 2048), (Fact::TokensPerBlock, 64), (Fact::Tokens, 220_480), (Fact::MaxSeqLen, 131_072),
    (Fact::MaxBatchSize, 2048), (Fact::MaxNumTokens, 8192),
], &[(Fact::KvBytes, 26.91, GIB)])]
// The small caches that it profiles with are not those that it keeps.
#[case("tensorrt-llm-1.1.0rc3-gpt-oss-120b", "tensorrt-llm", Some(Version(1, 1, 0)), &[
    (Fact::TokensPerBlock, 32), (Fact::Tokens, 86_720), (Fact::MaxSeqLen, 86_720), (Fact::MaxBatchSize, 64),
    (Fact::MaxNumTokens, 8192),
], &[
    (Fact::KvBytes, 5.95, GIB), (Fact::Weights, 63.52, GIB), (Fact::Activations, 0.85, GIB), (Fact::Context, 49.28, GIB),
])]
// What lies on the host is not on the device; caches add up wherever they lie.
#[case("llama.cpp-qwen3.5-9b", "llama.cpp", None, &[
    (Fact::Tokens, 8192), (Fact::MaxSeqLen, 8192), (Fact::SharedCells, 0), (Fact::StateSlots, 1),
], &[
    (Fact::Weights, 3393.11, MIB), (Fact::Activations, 498.0, MIB), (Fact::KvBuffers, 256.0, MIB),
    (Fact::ConvBytes, 2.25, MIB), (Fact::SsmBytes, 48.0, MIB),
])]
#[case("llama.cpp-qwen3.8-27b-mtp", "llama.cpp", None, &[
    (Fact::Tokens, 8192), (Fact::MaxSeqLen, 8192), (Fact::SharedCells, 0), (Fact::StateSlots, 1),
], &[
    (Fact::Weights, 18_163.06, MIB), (Fact::Activations, 568.18, MIB), (Fact::KvBuffers, 512.0, MIB),
    (Fact::ConvBytes, 16.88, MIB), (Fact::SsmBytes, 432.0, MIB),
])]
#[case("llama.cpp-gpt-oss-20b", "llama.cpp", None, &[
    (Fact::Tokens, 4096), (Fact::MaxSeqLen, 4096), (Fact::MaxBatchSize, 1), (Fact::MaxNumTokens, 2048),
    (Fact::Ubatch, 512), (Fact::SharedCells, 0),
], &[
    (Fact::KvBytes, 111.0, MIB), (Fact::KvBuffers, 111.0, MIB), (Fact::Weights, 4699.9, MIB),
    (Fact::Activations, 985.2, MIB),
])]
#[case("llama.cpp-qwen3.6-27b-q8-kv", "llama.cpp", None, &[(Fact::SharedCells, 1), (Fact::StateSlots, 4)], &[
    (Fact::KvBytes, 4352.0, MIB), (Fact::KvBuffers, 4352.0, MIB), (Fact::ConvBytes, 22.5, MIB),
    (Fact::SsmBytes, 576.0, MIB), (Fact::Activations, 495.0, MIB),
])]
fn the_numbers_of_a_real_log_are_read(
    #[case] name: &str,
    #[case] name_of_engine: &str,
    #[case] version: Option<Version>,
    #[case] counts: &[(Fact, u64)],
    #[case] bytes: &[(Fact, f64, f64)],
) {
    let log = log(name);
    assert_eq!((log.engine.name(), log.version, log.starts, log.is_cut), (name_of_engine, version, 1, false));
    for (fact, count) in counts {
        assert_eq!(log.get(*fact), Some(Logged::exact(*count)), "{fact:?}");
    }
    for (fact, printed, unit) in bytes {
        let logged = log.get(*fact).unwrap_or_else(|| panic!("{fact:?} is not read"));
        // Half of the second decimal, once for each part of a sum.
        let (low, high) = ((printed - 0.02) * unit, (printed + 0.02) * unit);
        assert!(low <= logged.low as f64 && logged.high as f64 <= high, "{fact:?} {logged:?}");
        assert!(logged.high - logged.low <= (0.02 * unit) as u64 + 1, "{fact:?} {logged:?}");
        let middle = logged.middle() as f64 / unit;
        assert!((middle - printed).abs() < 0.006, "{fact:?} {middle}");
    }
    let kinds = log.facts().count();
    assert_eq!(kinds, counts.len() + bytes.len(), "{:?}", log.facts().collect::<Vec<_>>());
}

#[test]
fn lines_that_their_author_broke_are_read_as_far_as_they_go() {
    let log = log("sglang-0.5-nemotron-3-nano-tp4");
    assert_eq!(log.get(Fact::Tokens), Some(Logged::exact(1_557_504)));
    assert_eq!(log.get(Fact::StateSlots), Some(Logged::exact(8)));
    assert_eq!(log.get(Fact::MaxSeqLen), Some(Logged::exact(8192)));
    assert!((log.get(Fact::SsmBytes).unwrap().middle() as f64 - 0.10 * GIB).abs() < 10.0);
}

#[test]
fn of_several_starts_the_last_complete_one_counts_with_the_least_of_its_ranks() {
    let log = log("synthetic-vllm-three-starts-tp2");
    assert_eq!((log.starts, log.is_cut, log.version), (3, true, Some(Version(0, 19, 0))));
    assert_eq!(log.get(Fact::Tokens), Some(Logged::exact(330_528)));
    assert_eq!(log.get(Fact::Concurrency), Some(Logged::exact(501)));
    let gib = |fact: Fact| log.get(fact).unwrap().middle() as f64 / GIB;
    // Memory is the least of the ranks, what they need the most.
    assert!((gib(Fact::CacheBytes) - 40.41).abs() < 1e-6);
    assert!((gib(Fact::Weights) - 8.92).abs() < 1e-6);
    assert!((gib(Fact::Graphs) - 0.31).abs() < 1e-6);
    assert_eq!(log.get(Fact::Tp), Some(Logged::exact(2)));
}

#[test]
fn a_log_is_cut_wherever_it_ends_before_its_caches() {
    for name in ["vllm-0.19.0-qwen3.5-9b", "sglang-0.4.6-qwen3-0.6b", "tensorrt-llm-1.1.0rc3-gpt-oss-120b"] {
        let text = text(name);
        let whole = log(name);
        for end in (0..text.len()).step_by(61).filter(|end| text.is_char_boundary(*end)) {
            match read_text(&text[..end]) {
                Err(LogError::Torn { engine, .. }) => assert_eq!(engine, whole.engine),
                Err(LogError::Foreign { .. }) => {}
                Err(other) => panic!("{name} at {end}: {other}"),
                Ok(log) => assert_eq!(log.engine, whole.engine),
            }
        }
    }
    let vllm = text("vllm-0.19.0-qwen3.5-9b");
    let at = vllm.find("GPU KV cache size").unwrap();
    let error = read_text(&vllm[..at]).unwrap_err().to_string();
    assert!(error.starts_with("this looks like vllm, but it ends before `GPU KV cache size"), "{error}");
    // The caches that TensorRT-LLM profiles with are given up before the real ones come.
    let profiled = text("tensorrt-llm-1.1.0rc3-gpt-oss-120b");
    let at = profiled.find("Allocated 5.95 GiB").unwrap();
    let torn = read_text(&profiled[..at]).unwrap_err();
    assert!(matches!(torn, LogError::Torn { engine, .. } if engine.name() == "tensorrt-llm"), "{torn}");
}

/// What a log says is not passed on, but what it means.
#[rstest]
#[case(
    "ValueError: To serve at least one request with the model's max seq len (131072), (16.0 GiB KV cache is needed",
    "one sequence of the longest length does not fit"
)]
#[case("ValueError: No available memory for the cache blocks. secret", "weights and a step leave nothing for caches")]
#[case("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "a device has too little memory")]
#[case(
    "ValueError: Free memory on device cuda:0 (20.5/22.03 GiB) on startup is less than desired GPU memory utilization (0.92, 20.27 GiB)",
    "less of a device is free than its share"
)]
#[case(
    "ValueError: User-specified max_model_len (200000) is greater than the derived max_model_len (max_position_embeddings=131072",
    "longer sequences are asked for than the model takes"
)]
#[case("KeyError: secret", "an error that is not known here")]
fn a_start_that_failed_says_why(#[case] said: &str, #[case] why: &str) {
    let vllm = text("vllm-0.19.0-qwen3.5-9b");
    let begun = &vllm[..vllm.find("GPU KV cache size").unwrap()];
    let line = begun.lines().count() as u64 + 2;
    let log = format!(
        "{}\n\n{said}\nRuntimeError: Engine core initialization failed.\n",
        begun.trim_end_matches(|c| c != '\n').trim_end()
    );
    let error = read_text(&log).unwrap_err();
    assert!(matches!(error, LogError::Failed { line: at, .. } if at <= line), "{error}");
    let error = error.to_string();
    assert!(error.starts_with(&format!("vllm did not start: {why}")) && !error.contains("secret"), "{error}");
}

/// Its command may be refused for the same, in which case no other words are looked for; a line of few words is any error's.
#[rstest]
#[case("max_num_active_seqs (9) cannot be greater than max_num_seqs (8).", true)]
#[case("max_num_active_seqs (4) cannot be greater than max_num_seqs (2).", true)]
#[case("max_num_batched_tokens (4) cannot be less than max_num_seqs (2).", false)]
#[case("9", false)]
fn a_failure_that_a_command_is_refused_for_is_told_by_it(#[case] refusal: &str, #[case] same: bool) {
    let vllm = text("vllm-0.19.0-qwen3.5-9b");
    let begun = &vllm[..vllm.find("GPU KV cache size").unwrap()];
    let begun = &begun[..begun.rfind('\n').unwrap()];
    let log = format!("{begun}\nValueError: max_num_active_seqs (9) cannot be greater than max_num_seqs (8).\n");
    let error = read_text(&log).unwrap_err().told_by(refusal).to_string();
    let why = if same { "what its command is refused for" } else { "an error that is not known here" };
    assert!(error.starts_with(&format!("vllm did not start: {why}")), "{error}");
}

#[rstest]
#[case("", "none of its 0 lines")]
#[case("hello\nworld\n", "none of its 2 lines is of the start of vllm, sglang, tensorrt-llm, llama.cpp")]
#[case("GPU KV cache size: {X} tokens\n", "none of its 1 lines")]
#[case("GPU KV cache size: 99999999999999999999999 tokens\n", "line 1 has a number")]
#[case("\n\nAvailable KV cache memory: 99999999999999999.5 TiB\n", "line 3 has a number")]
fn a_foreign_or_damaged_log_is_an_error(#[case] text: &str, #[case] expected: &str) {
    let error = read_text(text).unwrap_err().to_string();
    assert!(error.starts_with(expected), "{error}");
}

#[test]
fn lines_of_two_engines_need_the_name_of_one() {
    let both = text("vllm-0.2x-windows") + &text("sglang-0.5-b200");
    let mixed = read_text(&both).unwrap_err().to_string();
    assert!(mixed.starts_with("lines of both vllm and sglang"), "{mixed}");
    let one = EngineLog::read(Cursor::new(both.as_bytes()), Some(engine("sglang"))).unwrap();
    assert_eq!(one.get(Fact::Tokens), Some(Logged::exact(2_243_474)));
    let none = EngineLog::read(Cursor::new(both.as_bytes()), Some(engine("llama.cpp"))).unwrap_err().to_string();
    assert!(none.contains("of the start of llama.cpp; expected, for instance, `llama_kv_cache: size"), "{none}");
}

#[test]
fn of_several_devices_the_fullest_counts_and_the_host_does_not() {
    let text = "load_tensors: CPU_Mapped model buffer size = 900.00 MiB\n\
                load_tensors: CUDA0 model buffer size = 100.00 MiB\n\
                load_tensors: CUDA1 model buffer size = 200.00 MiB\n\
                llama_kv_cache: size = 8.00 MiB ( 256 cells, 4 layers, 1/1 seqs), K (f16): 4.00 MiB, V (f16): 4.00 MiB\n";
    let log = read_text(text).unwrap();
    assert_eq!(log.get(Fact::Weights).unwrap().middle(), 200 << 20);
}

#[test]
fn a_line_of_nothing_but_beginnings_is_read_in_no_time() {
    let line = " size = 1.00 MiB (1 cells,".repeat(1 << 14) + "\nGPU KV cache size: 16 tokens\n";
    assert_eq!(read_text(&line).unwrap().get(Fact::Tokens), Some(Logged::exact(16)));
}

#[test]
fn a_line_without_end_takes_no_more_memory_than_the_longest_that_counts() {
    // 64 MiB without a newline, then a line that counts.
    let endless = std::io::Read::take(std::io::repeat(b'x'), 64 << 20);
    let rest = Cursor::new(b"\nGPU KV cache size: 16 tokens\n".to_vec());
    let reader = std::io::BufReader::new(std::io::Read::chain(endless, rest));
    assert_eq!(EngineLog::read(reader, None).unwrap().get(Fact::Tokens), Some(Logged::exact(16)));
}

#[test]
fn text_behind_the_first_64_kib_of_a_line_is_not_looked_at() {
    let line = format!("{}GPU KV cache size: 16 tokens\n", "x".repeat(64 << 10));
    assert!(matches!(read_text(&line), Err(LogError::Foreign { .. })));
}

/// A plan for a model of the fixtures, with the dtypes that the engine chooses.
fn planned(config: &str, engine: &str, budget: &str) -> CachePlan {
    let engine: EngineSpec = engine.parse().unwrap();
    let file = format!("{}/../tests/fixtures/configs/{config}.json", env!("CARGO_MANIFEST_DIR"));
    let mut model = Model::read(std::path::Path::new(&file), &ReadOptions::default()).unwrap();
    let budget = Budget::from_toml(budget, "budget.toml").unwrap();
    let collected = model.graph.collect(&budget.engine_context(&model.info, engine)).unwrap();
    PlanRequest::of((model.info.clone(), collected.resources.clone())).with_budget(budget.clone()).plan().unwrap()
}

fn row(found: &LogCheck, name: Fact) -> (Drift, &str) {
    let row = found.rows.iter().find(|row| row.name == name).unwrap_or_else(|| panic!("no {name:?}: {found:#?}"));
    (row.drift, row.reason.as_str())
}

fn drifts(found: &LogCheck) -> Vec<Fact> {
    found.rows.iter().filter(|row| row.drift == Drift::Unexplained).map(|row| row.name).collect()
}

const QWEN: &str = "max_seq_len = 262144\nmax_num_tokens = 8192\n[memory]\nbytes = '20.27GiB'";
const LLAMA_FP8: &str = "max_seq_len = 4096\n[dtypes]\nkv = 'fp8'\n[memory]\nbytes = '16.05GiB'";
const DISTILLED: &str =
    "max_seq_len = 131072\nmax_num_tokens = 8192\ntokens_per_block = 64\n[memory]\nbytes = '26.91GiB'";
const CELLS: &str = "max_seq_len = 8192\nmax_batch_size = 1";

#[rstest]
#[case("Qwen__Qwen3.5-9B", "vllm@0.19.0", QWEN, "vllm-0.19.0-qwen3.5-9b")]
#[case("meta-llama__Llama-3.1-8B-Instruct", "tensorrt-llm", LLAMA_FP8, "tensorrt-llm-llama-3.1-8b-fp8")]
#[case("meta-llama__Llama-3.1-8B-Instruct", "tensorrt-llm", DISTILLED, "tensorrt-llm-deepseek-r1-distill-llama-8b")]
#[case("Qwen__Qwen3.5-9B", "llama.cpp", CELLS, "llama.cpp-qwen3.5-9b")]
fn a_plan_for_what_the_engine_was_given_has_no_drift(
    #[case] config: &str,
    #[case] engine: &str,
    #[case] budget: &str,
    #[case] name: &str,
) {
    let found = log(name).check(&planned(config, engine, budget), Some(engine.parse::<EngineSpec>().unwrap().version));
    let found = found.unwrap();
    assert_eq!(drifts(&found), [], "{}", found.table());
    assert!(!found.drifted);
    assert!(matches!(row(&found, Fact::Tokens).0, Drift::None | Drift::Follows), "{}", found.table());
    assert!(found.table().lines().all(|line| line.chars().count() <= 100), "{}", found.table());
}

#[test]
fn less_memory_is_drift_and_fewer_tokens_follow_from_it() {
    let plan = planned("Qwen__Qwen3.5-9B", "vllm@0.19.0", &QWEN.replace("20.27", "24"));
    let found = log("vllm-0.19.0-qwen3.5-9b").check(&plan, None).unwrap();
    assert_eq!(drifts(&found), [Fact::CacheBytes]);
    let (_, reason) = row(&found, Fact::CacheBytes);
    assert!(reason.starts_with("the engine has 3.73 GiB less"), "{reason}");
    assert_eq!(row(&found, Fact::Tokens), (Drift::Follows, "follows from cache_bytes"));
    // The block does not depend on it.
    assert_eq!(row(&found, Fact::TokensPerBlock), (Drift::None, ""));
}

/// Of an H100, whose weights, steps and context are assumed, more or fewer bytes are no drift as long as these allow it; what is said of
/// them adds up.
#[rstest]
#[case("38.00", Drift::Estimate)]
#[case("12.00", Drift::Unexplained)]
fn bytes_that_follow_from_assumed_ones_are_an_estimate(#[case] logged: &str, #[case] drift: Drift) {
    let config = format!("{}/../tests/fixtures/configs/Qwen__Qwen3.5-9B.json", env!("CARGO_MANIFEST_DIR"));
    let model = Model::read(std::path::Path::new(&config), &ReadOptions::default()).unwrap();
    let text = "max_seq_len = 262144\nmax_num_tokens = 8192\n[memory]\nfraction = 0.735\nof = 'total'";
    let budget = Budget::from_toml(text, "budget.toml").unwrap();
    // Of its files no weights are known.
    let weights = cacheplan_transforms::WeightBytes::new(19 << 30, false);
    let model = cacheplan_planner::ModelCaches::from(model).with_weights(weights);
    let request = PlanRequest::of(model).with_budget(budget).for_engine("vllm@0.19.0".parse().unwrap());
    let plan = request.with_devices("h100".parse::<cacheplan_planner::Devices>().unwrap()).plan().unwrap();
    let text = text_of_bytes(logged);
    let found = read_text(&text).unwrap().check(&plan, None).unwrap();
    let (found_drift, reason) = row(&found, Fact::CacheBytes);
    assert_eq!(found_drift, drift, "{}", found.table());
    let mut parts = reason.split([':', ',']).map(str::trim);
    let gib = |text: &str| {
        let (number, unit) = text.rsplit_once(' ').unwrap();
        number.parse::<f64>().unwrap() / if unit == "MiB" { 1024.0 } else { 1.0 }
    };
    let all = parts.next().unwrap().trim_start_matches("the engine has ").trim_end_matches(" than planned");
    let (size, word) = all.rsplit_once(' ').unwrap();
    let sum: f64 = parts.map(|part| gib(&part[part.find(['+', '-']).unwrap()..])).sum();
    let less = if word == "less" { gib(size) } else { -gib(size) };
    assert!((sum - less).abs() < 0.02, "{reason}");
}

/// The log of Qwen3.5-9B with other bytes for caches.
fn text_of_bytes(gib: &str) -> String {
    text("vllm-0.19.0-qwen3.5-9b").replace("20.27 GiB", &format!("{gib} GiB"))
}

#[test]
fn another_length_is_drift_by_name() {
    let plan = planned("Qwen__Qwen3.5-9B", "vllm@0.19.0", &QWEN.replace("262144", "131072"));
    let found = log("vllm-0.19.0-qwen3.5-9b").check(&plan, None).unwrap();
    assert_eq!(drifts(&found), [Fact::MaxSeqLen]);
    assert_eq!(row(&found, Fact::Concurrency).0, Drift::Follows);
}

#[test]
fn an_engine_that_starts_without_room_for_its_longest_sequence_is_checked_all_the_same() {
    let budget = "max_seq_len = 8192\nmax_num_tokens = 2048\nmax_batch_size = 1\n[memory]\nbytes = '1.64GiB'";
    let plan = planned("Qwen__Qwen3-0.6B", "sglang@0.5.9", budget);
    let found = log("sglang-0.4.6-qwen3-0.6b").check(&plan, None).unwrap();
    assert_eq!(drifts(&found), [Fact::MaxSeqLen], "{}", found.table());
    assert_eq!(row(&found, Fact::Tokens), (Drift::Follows, "follows from max_seq_len"));
    assert!(found.notes[0].starts_with("the log does not say the engine's version"), "{:?}", found.notes);
}

#[test]
fn a_dtype_that_explains_the_log_is_named() {
    // The engine stored keys and values in fp8, which the plan does not know of.
    let plan =
        planned("meta-llama__Llama-3.1-8B-Instruct", "tensorrt-llm", &LLAMA_FP8.replace("[dtypes]\nkv = 'fp8'\n", ""));
    let found = log("tensorrt-llm-llama-3.1-8b-fp8").check(&plan, None).unwrap();
    assert!(found.drifted);
    assert_eq!(row(&found, Fact::Tokens), (Drift::Unexplained, "would be as logged with keys and values in f8_e4m3"));
}

#[test]
fn another_model_is_drift_that_nothing_explains() {
    let plan = planned("Qwen__Qwen3-0.6B", "vllm@0.19.0", &QWEN.replace("262144", "131072"));
    let found = log("vllm-0.19.0-qwen3.5-9b").check(&plan, None).unwrap();
    assert_eq!(row(&found, Fact::Tokens), (Drift::Unexplained, "neither the plan nor the engine's rules give it"));
    assert_eq!(row(&found, Fact::TokensPerBlock).0, Drift::Unexplained);
}

#[test]
fn a_log_turns_into_lines_that_the_next_plan_has() {
    let measured = MeasuredLedger::from_log(&log("vllm-0.19.0-qwen3.5-9b"), "start.log").unwrap();
    let text = measured.to_toml();
    assert_eq!(MeasuredLedger::from_toml(&text, "measured.toml").unwrap(), measured);
    let file = format!("{}/../tests/fixtures/configs/Qwen__Qwen3.5-9B.json", env!("CARGO_MANIFEST_DIR"));
    let mut model = Model::read(std::path::Path::new(&file), &ReadOptions::default()).unwrap();
    let budget =
        Budget::from_toml("max_seq_len = 8192\nmax_num_tokens = 8192\n[memory]\nfraction = 0.9\nof = 'total'", "")
            .unwrap();
    let resources = model.graph.collect(&budget.pass_context(&model.info)).unwrap().resources;
    let device: DeviceInfo = "l40s".parse().unwrap();
    let request = PlanRequest::of((model.info.clone(), resources.clone()))
        .with_budget(budget.clone())
        .with_devices(device.clone())
        .with_measured(measured.clone());
    let made = request.plan().unwrap();
    let line = |name: &str| made.ledger.iter().find(|line| line.name.name() == name).unwrap();
    let weights = line("weights");
    assert_eq!((weights.bytes, weights.source), ((17.66 * GIB) as u64, Certainty::Measured));
    assert_eq!(weights.note, "logged by vllm 0.19.0, start.log");
    assert_eq!((line("graphs").bytes, line("graphs").source), ((0.65 * GIB) as u64, Certainty::Measured));
    // What was not logged is assumed as before.
    assert_eq!((line("activations").bytes, line("activations").source), (8192 * (256 << 10), Certainty::Assumed));
    assert_eq!(line("context").source, Certainty::Assumed);
    assert_eq!(request.check(&made), Ok(()));
}

/// Windows, compressed entries, an indexer's keys, and three states that form entries.
#[test]
fn llama_cpp_says_of_deepseek_v4_what_is_predicted() {
    let said = log("llama.cpp-b11549-deepseek-v4-flash");
    let file = format!("{}/../tests/fixtures/configs/deepseek-ai__DeepSeek-V4-Flash.json", env!("CARGO_MANIFEST_DIR"));
    let model = Model::read(std::path::Path::new(&file), &ReadOptions::default()).unwrap();
    let spec: EngineSpec = "llama.cpp@b11549".parse().unwrap();
    let beside = |text: &str| {
        let budget = Budget::from_toml(text, "").unwrap();
        let resources = model.graph.clone().collect(&budget.engine_context(&model.info, spec)).unwrap().resources;
        let predicted =
            PlanRequest::of((model.info.clone(), resources.clone())).with_budget(budget.clone()).predict(spec).unwrap();
        said.beside(&predicted, 1666)
    };
    let told = beside("max_seq_len = 1666\nmax_batch_size = 3");
    assert!(!told.drifted, "{}", told.table());
    let names: Vec<Fact> = told.rows.iter().map(|row| row.name).collect();
    assert_eq!(names, [Fact::Tokens, Fact::KvBytes, Fact::StateSlots, Fact::ConvBytes, Fact::SsmBytes]);
    let other = beside("max_seq_len = 1666\nmax_batch_size = 3\n[engine]\nubatch = 256");
    assert_eq!(other.drifting(), ["kv_bytes"]);
}

#[test]
fn context_is_what_is_resident_beside_the_weights() {
    let measured = MeasuredLedger::from_log(&log("vllm-0.3x-llama-3.1-8b"), "start.log").unwrap();
    let context = measured.lines.context.unwrap();
    assert!((context.bytes as f64 - 0.26 * GIB).abs() < 10.0, "{context:?}");
    assert!((context.within as f64 - 0.01 * GIB).abs() < 10.0, "{context:?}");
}

#[test]
fn a_log_of_caches_alone_has_nothing_to_calibrate() {
    let error = MeasuredLedger::from_log(&log("tensorrt-llm-llama-3.1-8b-fp8"), "start.log").unwrap_err();
    assert!(error.to_string().contains("nothing to calibrate"), "{error}");
}

const NAMES: [&str; 6] = [
    "vllm-0.19.0-qwen3.5-9b",
    "vllm-0.3x-llama-3.1-8b",
    "sglang-0.4.6-qwen3-0.6b",
    "tensorrt-llm-1.1.0rc3-gpt-oss-120b",
    "llama.cpp-gpt-oss-20b",
    "synthetic-vllm-three-starts-tp2",
];

/// One change to a log's bytes.
#[derive(Clone, Debug)]
enum Change {
    Cut(usize),
    Put(usize, Vec<u8>),
    Drop(usize, usize),
    Twice(usize, usize),
}

fn change() -> impl Strategy<Value = Change> {
    let bytes = prop_oneof![
        Just(b"99999999999999999999".to_vec()),
        Just(b"\x1b[31".to_vec()),
        Just(b"\r\n".to_vec()),
        Just(b" GiB".to_vec()),
        Just("\u{2028}é".as_bytes().to_vec()),
        proptest::collection::vec(any::<u8>(), 1..20),
    ];
    prop_oneof![
        any::<usize>().prop_map(Change::Cut),
        (any::<usize>(), bytes).prop_map(|(at, bytes)| Change::Put(at, bytes)),
        (any::<usize>(), 1..200usize).prop_map(|(at, length)| Change::Drop(at, length)),
        (any::<usize>(), 1..2000usize).prop_map(|(at, length)| Change::Twice(at, length)),
    ]
}

fn apply(text: &mut Vec<u8>, change: &Change) {
    let length = text.len();
    let place = |at: usize| at % (length + 1);
    match change {
        Change::Cut(at) => text.truncate(place(*at)),
        Change::Put(at, bytes) => {
            let at = place(*at);
            text.splice(at..at, bytes.iter().copied());
        }
        Change::Drop(at, count) => {
            let at = place(*at);
            text.drain(at..(at + count).min(length));
        }
        Change::Twice(at, count) => {
            let at = place(*at);
            let part = text[at..(at + count).min(length)].to_vec();
            text.splice(at..at, part);
        }
    }
}

static SMALL_PLAN: LazyLock<CachePlan> =
    LazyLock::new(|| planned("Qwen__Qwen3-0.6B", "vllm", "max_seq_len = 1024\n[memory]\nbytes = '1GiB'"));

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever happens to a log, it is read or refused, and what is read can be set beside a plan and calibrated.
    #[test]
    fn a_damaged_log_is_read_or_refused(name in 0..NAMES.len(), changes in proptest::collection::vec(change(), 1..6)) {
        let mut bytes = text(NAMES[name]).into_bytes();
        changes.iter().for_each(|change| apply(&mut bytes, change));
        if let Ok(log) = EngineLog::read(Cursor::new(&bytes), None) {
            for (fact, logged) in log.facts() {
                prop_assert!(logged.low <= logged.high, "{fact:?} {logged:?}");
            }
            if let Ok(found) = log.check(&SMALL_PLAN, None) {
                let table = found.table();
                prop_assert!(table.chars().all(|char| char == '\n' || !char.is_control()), "{table:?}");
            }
            // A size beyond what TOML can hold is written, but not read.
            if let Ok(measured) = MeasuredLedger::from_log(&log, "start.log")
                && let Ok(read) = MeasuredLedger::from_toml(&measured.to_toml(), "")
            {
                prop_assert_eq!(read, measured);
            }
        }
    }
}

/// Its buffers are those of `n_ubatch` tokens, of which a batch of `n_batch` has several.
#[test]
fn llama_cpp_measures_what_it_computes_at_once() {
    let measured = MeasuredLedger::from_log(&log("llama.cpp-gpt-oss-20b"), "start.log").unwrap();
    assert_eq!(measured.limits.max_num_tokens, Some(512));
}
