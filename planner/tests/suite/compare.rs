//! Our plan beside the engines'.

use cacheplan_planner::budget::Objective;
use cacheplan_planner::{Comparison, DeviceInfo, Devices, Engine, EngineSpec, PlanRequest};

use rstest::rstest;

use super::common::{Model, budget, kv, nemotron_3_nano, published};

const CHAT: &str = "max_seq_len = 8192\n[workload]\nprompt = { fixed = 300 }\noutput = { fixed = 200 }\n";

#[test]
fn every_engine_has_a_row_and_the_table_is_at_most_100_columns_wide() {
    let model = nemotron_3_nano();
    let budget = budget(&format!("{CHAT}[memory]\nbytes = '24GiB'"));
    let rows: Vec<_> =
        Engine::all().iter().map(|&engine| model.request(&budget).compare(EngineSpec::from(engine)).unwrap()).collect();
    for row in &rows {
        assert_eq!(row.bytes, 24 << 30);
        assert!(row.sequences >= row.engine_sequences, "{row:?}");
        assert!(row.wasted_bytes <= row.engine_wasted_bytes, "{row:?}");
    }
    let table = Comparison::table(&rows);
    assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");
    insta::assert_snapshot!(table);
}

#[test]
fn a_prediction_prints_within_100_columns() {
    let model = nemotron_3_nano();
    let budget = budget(&format!("{CHAT}[engine]\ncache_bytes = '24GiB'"));
    let tables: Vec<String> =
        Engine::all().iter().map(|&engine| model.request(&budget).predict(engine.into()).unwrap().table()).collect();
    let text = tables.join("\n");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    insta::assert_snapshot!(text);
}

#[test]
fn a_budget_too_small_for_one_sequence_compares_as_none() {
    let model = nemotron_3_nano();
    let budget = budget(&format!("{CHAT}[memory]\nbytes = '50MiB'"));
    let row = model.request(&budget).compare("vllm".parse().unwrap()).unwrap();
    assert_eq!((row.sequences, row.engine_sequences), (0, 0));
}

/// Two versions differ by rules that are named, each with what it changed; the last says what the newer version admits.
#[test]
fn what_changed_between_versions_is_named() {
    let (model, stated) = (super::common::published("Qwen__Qwen3-Next-80B-A3B-Thinking"), "40GiB");
    let stated = format!("max_seq_len = 32768\n[memory]\nbytes = '{stated}'\n[engine]\nprefix_caching = true");
    let request = PlanRequest::of(model).with_budget(budget(&stated));
    let [old, new] = ["vllm@0.14.0", "vllm@0.33.0"].map(|name| name.parse::<EngineSpec>().unwrap());
    let changes = request.rule_changes(old, new).unwrap();
    let rule = "with prefix caching the last state is kept, by all other models with states";
    assert!(
        changes.iter().any(|change| change.starts_with("since vllm 0.15.0: ") && change.contains(rule)),
        "{changes:?}"
    );
    assert!(changes.iter().all(|change| !change.contains("no words")), "{changes:?}");
    let now = request.compare(new).unwrap();
    let said = format!("{} sequences of {} tokens, before ", now.engine_sequences, now.engine_tokens.unwrap());
    assert!(changes.last().unwrap().contains(&said), "{changes:?} do not end with {said}");
    assert_eq!(request.rule_changes(new, old).unwrap(), changes);
    assert_eq!(request.rule_changes(new, new).unwrap(), Vec::<String>::new());
    assert_eq!(request.rule_changes(new, "sglang".parse().unwrap()).unwrap(), Vec::<String>::new());
}

/// What engines end with at their start, they end with at every door.
#[rstest]
#[case::heads_in_blocks(
    "llama.cpp",
    "cache_type_k = 'q8_0'",
    80,
    Some("q8_0 with block size 32 does not divide n_embd_head_k=80")
)]
#[case::values_in_blocks(
    "llama.cpp",
    "cache_type_v = 'q4_0'",
    80,
    Some("q4_0 with block size 32 does not divide n_embd_head_v=80")
)]
#[case::whole_blocks("llama.cpp", "cache_type_k = 'q8_0'", 96, None)]
#[case::no_blocks("llama.cpp", "cache_type_k = 'bf16'", 80, None)]
#[case::no_power_of_two("tensorrt-llm", "block_size = 100", 64, Some("tokensPerBlock must be power of 2 (it is 100)"))]
#[case::power_of_two("tensorrt-llm", "block_size = 128", 64, None)]
fn what_ends_a_start_is_refused(
    #[case] engine: &str,
    #[case] options: &str,
    #[case] head_dim: u64,
    #[case] expected: Option<&str>,
) {
    let model = Model::new("llama", 1).with("kv_cache", 0, kv(2, head_dim));
    let budget = budget(&format!("max_seq_len = 8192\n[engine]\ncache_bytes = '1GiB'\n{options}"));
    let said = model.request(&budget).predict(engine.parse().unwrap()).err().map(|error| error.to_string());
    assert_eq!(said.is_some(), expected.is_some(), "{said:?}");
    assert!(said.is_none_or(|said| expected.is_some_and(|expected| said.contains(expected))));
}

#[rstest]
#[case("mi300x", Some("not on AMD MI300X"))]
#[case("m4-max-128gb", Some("No CUDA GPUs are available"))]
#[case("h100", None)]
fn tensorrt_llm_refuses_other_makers(#[case] device: &str, #[case] expected: Option<&str>) {
    let model = Model::new("llama", 1).with("kv_cache", 0, kv(2, 64));
    let budget = budget("max_seq_len = 8192\n[engine]\ncache_bytes = '1GiB'");
    let request = model.request(&budget).with_devices(device.parse::<Devices>().unwrap());
    let said = request.predict("tensorrt-llm".parse().unwrap()).err().map(|error| error.to_string());
    assert_eq!(said.is_some(), expected.is_some(), "{said:?}");
    assert!(said.is_none_or(|said| expected.is_some_and(|expected| said.contains(expected))));
}

#[rstest]
#[case::of_no_engine("Motif", &["vllm", "sglang", "llama.cpp", "tensorrt-llm"])]
#[case::recurrence("rwkv7", &["vllm", "sglang", "tensorrt-llm"])]
#[case::of_vllm_alone("alice_ai", &["sglang", "llama.cpp", "tensorrt-llm"])]
#[case::whose_code_takes_no_kernels("jamba", &["sglang", "tensorrt-llm"])]
#[case::whose_code_does("smollm3", &["tensorrt-llm"])]
#[case::of_all("llama", &[])]
#[case::of_somebodys_own("my_own", &[])]
fn engines_without_an_architecture_predict_nothing(#[case] model_type: &str, #[case] without: &[&str]) {
    let model = Model::new(model_type, 1).with("kv_cache", 0, kv(2, 16));
    let budget = budget("max_seq_len = 8192\n[engine]\ncache_bytes = '1GiB'");
    for engine in ["vllm", "sglang", "llama.cpp", "tensorrt-llm"] {
        let predicted = model.request(&budget).predict(engine.parse().unwrap());
        let refused = predicted.err().map(|error| error.to_string());
        let named =
            refused.as_ref().is_some_and(|said| said.contains(&format!("has no architecture for {model_type}")));
        assert_eq!(named, without.contains(&engine), "{engine}: {refused:?}");
    }
}

#[test]
fn a_comparison_without_bytes_is_an_error() {
    let model = nemotron_3_nano();
    let error = model.request(&budget(CHAT)).compare("vllm".parse().unwrap()).unwrap_err();
    assert!(error.to_string().contains("needs bytes"), "{error}");
}

#[test]
fn the_most_tokens_at_a_given_concurrency_fill_the_bytes() {
    let model = nemotron_3_nano();
    let mut budget = budget("max_seq_len = 8192\nmax_batch_size = 4\n[memory]\nbytes = '8GiB'");
    let fixed = model.request(&budget).plan().unwrap();
    budget.maximize = Some(Objective::Tokens);
    let filled = model.request(&budget).plan().unwrap();
    assert_eq!((fixed.capacity.sequences, filled.capacity.sequences), (4, 4));
    assert_eq!(fixed.capacity.tokens, Some(4 * 8192));
    // 8 GiB less 5 slots, in blocks of 16 tokens, block 0 of which is padding.
    let blocks = ((8u64 << 30) - 5 * 49_082_368) / (16 * 6_144);
    assert_eq!(filled.capacity.tokens, Some((blocks - 1) * 16));
}

/// A layer that reads another's cache costs SGLang a cache of its own (gemma-4 E4B), vLLM nothing.
#[rstest]
#[case("sglang", 2)]
#[case("vllm", 1)]
fn shared_keys_and_values(#[case] engine: &str, #[case] caches: u64) {
    let mut model = Model::new("m", 2).with("kv", 0, kv(8, 128));
    let mut shared = model.resources.get("kv_0").unwrap().clone();
    shared.shared_by = vec![1];
    model.resources = cacheplan_transforms::Resources::default();
    model.resources.push(shared).unwrap();
    let budget = budget("max_seq_len = 1024\n[engine]\ncache_bytes = '1GiB'");
    let prediction = model.request(&budget).predict(engine.parse().unwrap()).unwrap();
    assert_eq!(prediction.tokens, Some((1 << 30) / 4096 / caches));
}

#[test]
fn context_parallel_ranks_multiply_the_tokens_that_vllm_reports() {
    let model = nemotron_3_nano();
    let at = |version: &str, cp: u32| {
        let text = format!("max_seq_len = 262144\n[parallel]\ncp = {cp}\n[engine]\ncache_bytes = '24GiB'");
        let engine: EngineSpec = version.parse().unwrap();
        model.request(&budget(&text)).predict(engine).unwrap().tokens.unwrap()
    };
    assert_eq!(at("vllm@0.19.0", 2), 2 * at("vllm@0.19.0", 1));
    assert!(at("vllm@0.33.0", 2) > at("vllm@0.33.0", 1) * 19 / 10);
}

/// An option that another engine has is refused by name; in a comparison whoever has it obeys it.
#[test]
fn an_engine_refuses_every_option_that_it_does_not_consume() {
    let model = nemotron_3_nano();
    let options = [
        ("block_size = 16", &["vllm", "sglang", "tensorrt-llm"][..]),
        ("num_blocks = 100000", &["vllm"]),
        ("max_total_tokens = 100000", &["sglang", "tensorrt-llm"]),
        ("prefix_caching = true", &["vllm", "sglang"]),
        ("mamba_cache_mode = 'align'", &["vllm"]),
        ("state_slots = 64", &["sglang", "tensorrt-llm", "llama.cpp"]),
        ("state_ratio = 0.9", &["sglang"]),
        ("slots_per_request = 5", &["sglang"]),
        ("window_ratio = 0.8", &["sglang"]),
        ("context = 16384", &["llama.cpp"]),
        ("ubatch = 512", &["llama.cpp"]),
        ("cache_type_k = 'f16'", &["llama.cpp"]),
        ("cache_type_v = 'f16'", &["llama.cpp"]),
        ("swa_full = true", &["tensorrt-llm", "llama.cpp"]),
        ("async_scheduling = false", &["vllm", "sglang"]),
        ("hybrid_kv_cache = true", &["vllm", "sglang"]),
        ("compute_capability = 90", &["vllm", "sglang", "tensorrt-llm", "llama.cpp"]),
    ];
    for (option, takers) in options {
        let budget = budget(&format!("{CHAT}[engine]\ncache_bytes = '24GiB'\n{option}"));
        for &engine in Engine::all() {
            let predicted = model.request(&budget).predict(engine.into());
            let key = option.split(' ').next().unwrap();
            match predicted {
                Ok(_) => assert!(takers.contains(&engine.name()), "{engine} takes {option}"),
                Err(error) => {
                    assert!(!takers.contains(&engine.name()), "{engine} refuses {option}: {error}");
                    assert!(error.to_string().starts_with(&format!("{engine} has no `engine.{key}`")), "{error}");
                }
            }
            assert!(model.request(&budget).compare(engine.into()).is_ok(), "{engine} beside others: {option}");
        }
    }
}

/// A named GPU has a compute capability, by which vLLM chooses kernels; one that is stated stands above it.
#[test]
fn a_named_gpu_decides_the_kernels() {
    let latents = (0..4).fold(Model::new("deepseek_v3", 4), |model, layer| {
        let latent = cacheplan_handlers::ResourceHandler::mla_paged(512, 64, cacheplan_handlers::DType::Bf16).unwrap();
        model.with("latent", layer, latent)
    });
    let block = |device: &str, text: &str| {
        let (device, budget): (DeviceInfo, _) = (device.parse().unwrap(), budget(&format!("{CHAT}{text}")));
        let request = latents.request(&budget).with_devices(device.clone());
        request.predict("vllm".parse().unwrap()).unwrap().block_size
    };
    assert_eq!(block("b200", "[engine]\ncache_bytes = '8GiB'"), Some(32));
    assert_eq!(block("h100", "[engine]\ncache_bytes = '8GiB'"), Some(16));
    assert_eq!(block("b200", "[engine]\ncache_bytes = '8GiB'\ncompute_capability = 90"), Some(16));
}

/// Four slots share 32,768 cells: four sequences of 8,192 tokens, or one of all of them.
#[rstest]
#[case(8192, 4)]
#[case(20_000, 1)]
#[case(32_768, 1)]
fn slots_of_llama_cpp_that_share_cells_run_what_these_hold(#[case] tokens: u64, #[case] sequences: u64) {
    let model = Model::new("llama", 1).with("kv", 0, kv(8, 128));
    let budget = budget(&format!("max_seq_len = {tokens}\nmax_batch_size = 4\n[engine]\ncontext = 32768"));
    let predicted = model.request(&budget).predict("llama.cpp".parse().unwrap()).unwrap();
    assert_eq!((predicted.sequences, predicted.tokens), (sequences, Some(32_768)));
}

/// Exports tell it to the engine; the engine's own key stands above it.
#[rstest]
#[case("", 16)]
#[case("tokens_per_block = 64\n", 64)]
#[case("tokens_per_block = 64\nengine.block_size = 32\n", 32)]
fn tokens_of_a_block_that_are_stated_are_the_engine_s(#[case] stated: &str, #[case] block: u64) {
    let model = Model::new("llama", 1).with("kv", 0, kv(8, 128));
    let budget = budget(&format!("{stated}engine.cache_bytes = '8GiB'\n{CHAT}"));
    let predicted = model.request(&budget).predict("vllm".parse().unwrap()).unwrap();
    assert_eq!(predicted.block_size, Some(block));
}

/// SGLang starts with a pool that no longest sequence fits; windows of models that it does not list keep every token.
#[test]
fn sglang_starts_with_a_pool_below_its_context_and_keeps_windows_it_does_not_list() {
    let windowed = |model_type: &str| {
        let window = kv(8, 128).with_window(1024).unwrap();
        Model::new(model_type, 2).with("a", 0, kv(8, 128)).with("b", 1, window)
    };
    let predicted = |model_type: &str, text: &str| {
        windowed(model_type).request(&budget(text)).predict("sglang".parse().unwrap()).unwrap()
    };
    let small = predicted("llama", "max_seq_len = 65536\n[engine]\ncache_bytes = '64MiB'");
    assert_eq!((small.sequences, small.tokens), (0, Some((64 << 20) / 8192)));
    let text = "max_seq_len = 8192\n[engine]\ncache_bytes = '1GiB'\nprefix_caching = true";
    assert_eq!(predicted("exaone4", text).window_tokens, None);
    assert!(predicted("gpt_oss", text).window_tokens.is_some());
}

/// Whoever puts a plan's number back has the same plan, and no engine refuses it.
#[rstest]
#[case("meta-llama__Llama-4-Scout-17B-16E-Instruct")]
#[case("openai__gpt-oss-120b")]
#[case("google__gemma-4-26B-A4B")]
#[case("deepseek-ai__DeepSeek-V4.1-Flash")]
#[case("Qwen__Qwen3-Next-80B-A3B-Thinking")]
#[case("Qwen__Qwen3-8B")]
fn a_plan_s_own_number_stays_where_it_is_stated(
    #[case] model: &str,
    #[values("40GiB", "512GiB")] bytes: &str,
    #[values("vllm", "sglang", "tensorrt-llm", "llama.cpp")] engine: EngineSpec,
) {
    let request = |batch: Option<u64>| {
        let batch = batch.map(|batch| format!("max_batch_size = {batch}\n")).unwrap_or_default();
        let budget = budget(&format!("{batch}max_seq_len = 4096\n[memory]\nbytes = '{bytes}'\n"));
        PlanRequest::of(published(model)).with_budget(budget).for_engine(engine)
    };
    // Not every engine has every model.
    let Ok(alone) = request(None).predict(engine) else { return };
    let planned = request(None).plan().unwrap().capacity.sequences;
    for number in [planned, alone.sequences] {
        let plan = request(Some(number)).plan().unwrap();
        assert_eq!(plan.capacity.sequences, planned.min(number));
        let stated = request(Some(number)).predict(engine).unwrap();
        assert!(stated.sequences >= alone.sequences.min(number), "{number}: {} of {stated:?}", alone.sequences);
        assert_eq!(request(Some(stated.sequences)).predict(engine).unwrap().sequences, stated.sequences);
    }
}
