//! Plans in the words of engines.

mod edge_llm;
mod names;
mod simulators;
mod started;

use super::common::{Model, budget, kv, nemotron_3_nano, published};
use cacheplan_handlers::{DType, ResourceHandler};
use cacheplan_planner::export::Export;
use cacheplan_planner::{CachePlan, ExportError, Owner, Parallel, PlanRequest, Serving, Target};
use rstest::rstest;
use serde_json::Value;

const HOST_BYTES: u64 = 64 << 30;

/// A hybrid with checkpoints and a memory budget: something of everything.
fn hybrid() -> CachePlan {
    let model = nemotron_3_nano();
    let budget = budget(
        "max_seq_len = 8192\ntokens_per_block = 32\nmax_num_tokens = 4096\n[memory]\nbytes = '24GiB'\n\
         [workload]\nprompt = { fixed = 3000 }\noutput = { fixed = 500 }\ncheckpoints_per_sequence = 2",
    );
    model.request(&budget).plan().unwrap()
}

/// Full attention and windows, keys and values in 8 bits.
fn windowed() -> CachePlan {
    let kv = || ResourceHandler::kv_paged(8, 64, DType::F8E4m3).unwrap();
    let mut model = Model::new("gpt_oss", 6);
    for layer in 0..6 {
        model = model.with("kv", layer, if layer % 2 == 0 { kv() } else { kv().with_window(1024).unwrap() });
    }
    model.request(&budget("max_seq_len = 16384\n[memory]\nbytes = '2GiB'")).plan().unwrap()
}

fn serving() -> Serving {
    Serving { model: Some("org/Hybrid-30B".into()), ..Serving::default() }
}

fn target(name: &str) -> Target {
    name.parse().unwrap()
}

fn newest(plan: &CachePlan, target: Target) -> Export {
    plan.export(target, None, &serving()).unwrap()
}

/// Bytes of all pools, and those that their rounding leaves.
fn cache_bytes(plan: &CachePlan) -> u64 {
    let pools = plan.pools.iter().filter(|pool| pool.owner != Owner::Unaccounted).map(|pool| pool.bytes);
    let unused = plan.ledger.iter().filter(|line| line.name.to_string() == "unused").map(|line| line.bytes);
    pools.chain(unused).sum()
}

fn yaml(export: &Export) -> Value {
    serde_yaml_ng::from_str(&export.text).unwrap_or_else(|error| panic!("{error}\n{}", export.text))
}

/// `--key=value` words as an object; bare flags are true.
fn flags<'a>(words: impl Iterator<Item = &'a str>) -> Value {
    let pairs = words.filter_map(|word| word.strip_prefix("--")).map(|word| {
        let (key, value) = word.split_once('=').unwrap_or((word, "true"));
        (key.to_owned(), serde_json::from_str(value).unwrap_or_else(|_| value.into()))
    });
    Value::Object(pairs.collect())
}

fn strings(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().unwrap().iter().map(|item| item.as_str().unwrap())
}

/// The words that a shell hands to the program.
fn words_of_a_shell(script: &str) -> Vec<String> {
    let program = script.replace("\nexec ", "\nprintf '%s\\n' ");
    let output = std::process::Command::new("bash").args(["-c", &program]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// The engine's own arguments inside the file.
fn arguments(target: Target, export: &Export) -> Value {
    let container = |document: &Value, path: &str| flags(strings(document.pointer(path).unwrap()));
    match target.name() {
        "vllm" | "tensorrt-llm" | "llm-d-sim" => yaml(export),
        "sglang" | "vidur" => flags(words_of_a_shell(&export.text).iter().map(String::as_str)),
        "llama.cpp" => {
            // A value is a word of its own.
            let joined = words_of_a_shell(&export.text).join("\n").replace("\n", "=").replace("=--", "\n--");
            flags(joined.lines())
        }
        "dynamo" | "dynamo-sglang" => container(&yaml(export), "/spec/components/1/podTemplate/spec/containers/0/args"),
        "dynamo-tensorrt-llm" => {
            container(&yaml(export), "/spec/components/1/podTemplate/spec/containers/0/args")["override-engine-args"]
                .take()
        }
        "llm-d" => container(&yaml(export), "/spec/template/spec/containers/0/args"),
        "ray" => yaml(export)["applications"][0]["args"]["llm_configs"][0]["engine_kwargs"].take(),
        "edge-llm" | "aiconfigurator" => serde_json::from_str(&export.text).unwrap(),
        other => panic!("{other} is not read back"),
    }
}

#[rstest]
fn every_file_reads_back_as_the_values_that_it_is_said_to_have(
    #[values("hybrid", "windowed")] which: &str,
    #[values(1, 2)] tp: u32,
) {
    let plan = if which == "hybrid" { hybrid() } else { windowed() };
    let parallel = Parallel { tp, ..Parallel::default() };
    let serving =
        Serving { model: Some("it's a/model: 1".into()), parallel: Some(parallel), host_bytes: Some(HOST_BYTES) };
    let is_read = |target: &Target| match target.name() {
        "edge-llm" => which == "hybrid",
        // It divides no layer, and has no keys and values of 8-bit floats.
        "llama.cpp" => which == "hybrid" && tp == 1,
        _ => true,
    };
    for target in Target::all().filter(is_read) {
        for version in target.versions() {
            let plan = if target.name() == "edge-llm" { half_hybrid() } else { plan.clone() };
            let export = plan.export(target, Some(version), &serving).unwrap();
            let arguments = arguments(target, &export);
            assert!(export.settings.len() >= 4, "{target}");
            for setting in &export.settings {
                let ray = target.name() == "ray";
                // Ray's arguments are Python's: a switch is off by its value.
                let (key, value) = match setting.key.strip_prefix("no-").filter(|_| ray) {
                    Some(on) => (on, Value::Bool(false)),
                    None => (setting.key.as_str(), setting.value.clone()),
                };
                let key = if ray { key.replace('-', "_") } else { key.to_owned() };
                let found = arguments.pointer(&format!("/{}", key.replace('.', "/")));
                assert_eq!(found, Some(&value), "{target} {version}: {key} in\n{}", export.text);
                assert!(!setting.source.is_empty(), "{target}: {key}");
                if export.has_comments() {
                    assert!(export.text.contains(&setting.source), "{target}: no comment for {key}");
                }
            }
            if export.has_comments() {
                assert!(export.not_expressed.iter().all(|gap| export.text.contains(gap)), "{target}");
            }
        }
    }
}

#[rstest]
#[case("vllm", "/kv-cache-memory-bytes", "/max-model-len", "/max-num-seqs", "/max-num-batched-tokens")]
#[case("ray", "/kv_cache_memory_bytes", "/max_model_len", "/max_num_seqs", "/max_num_batched_tokens")]
#[case("llm-d", "/kv-cache-memory-bytes", "/max-model-len", "/max-num-seqs", "/max-num-batched-tokens")]
#[case("dynamo", "/kv-cache-memory-bytes", "/max-model-len", "/max-num-seqs", "/max-num-batched-tokens")]
#[case("tensorrt-llm", "/kv_cache_config/max_gpu_total_bytes", "/max_seq_len", "/max_batch_size", "/max_num_tokens")]
fn bytes_and_limits_are_the_plans(
    #[case] target: Target,
    #[case] bytes: &str,
    #[case] length: &str,
    #[case] sequences: &str,
    #[case] step: &str,
) {
    for plan in [hybrid(), windowed()] {
        let arguments = arguments(target, &newest(&plan, target));
        let number = |path: &str| arguments.pointer(path).and_then(Value::as_u64);
        assert_eq!(number(bytes), Some(cache_bytes(&plan)));
        assert_eq!(number(length), Some(plan.limits.max_seq_len));
        // The file carries what the engine's model admits of them.
        let admits = newest(&plan, target).admits.unwrap();
        assert_eq!(number(sequences), Some(admits.min(plan.limits.max_batch_size)));
        assert_eq!(number(step), Some(plan.limits.max_num_tokens));
    }
}

#[test]
fn sglang_gets_tokens_and_slots_for_bytes() {
    let plan = hybrid();
    let arguments = arguments(target("sglang"), &newest(&plan, target("sglang")));
    let paged = plan.pools.iter().find(|pool| pool.tokens_per_block.is_some()).unwrap();
    assert_eq!(arguments["max-total-tokens"], (paged.units - 1) * 32);
    assert_eq!(arguments["max-mamba-cache-size"], plan.slots.live + plan.slots.checkpoints);
    // Pages of more than one token are refused beside states.
    assert_eq!(arguments["page-size"], Value::Null);
    assert_eq!(arguments["mamba-ssm-dtype"], "float32");
    assert_eq!(arguments["kv-cache-dtype"], "bf16");
    let windowed = windowed();
    let arguments = self::arguments(target("sglang"), &newest(&windowed, target("sglang")));
    let tokens = |window: Option<u32>| {
        let pool = windowed.pools.iter().find(|pool| pool.window == window).unwrap();
        (pool.units - pool.reserved) as f64
    };
    let ratio = arguments["swa-full-tokens-ratio"].as_f64().unwrap();
    let exact = tokens(Some(1024)) / tokens(None);
    assert!((0.0..1e-6).contains(&(ratio - exact)), "{ratio} for {exact}");
    assert_eq!(arguments["kv-cache-dtype"], "fp8_e4m3");
}

/// Windows that no sequence outgrows hold as many tokens as full attention, which SGLang does not give them by itself.
#[test]
fn sglang_is_told_of_windows_that_hold_every_token() {
    let request = PlanRequest::of(published("meta-llama__Llama-4-Scout-17B-16E-Instruct"));
    let budget = budget("max_seq_len = 4096\n[memory]\nbytes = '20GiB'");
    let plan = request.with_budget(budget).for_engine("sglang".parse().unwrap()).plan().unwrap();
    let export = newest(&plan, target("sglang"));
    assert_eq!(arguments(target("sglang"), &export)["swa-full-tokens-ratio"], 1.0);
    assert_eq!(export.admits, Some(plan.capacity.sequences));
}

/// With the radix cache a request holds five slots for states, so that it is off where the plan has one for each.
#[test]
fn sglang_serves_every_sequence_of_a_plan_without_checkpoints() {
    let plan = half_hybrid();
    assert_eq!(plan.checkpoints(), 0);
    let export = newest(&plan, target("sglang"));
    let arguments = arguments(target("sglang"), &export);
    assert_eq!(arguments["disable-radix-cache"], true);
    assert_eq!(arguments["max-mamba-cache-size"], plan.slots.live);
    assert_eq!(export.admits, Some(plan.capacity.sequences));
    let reusing = hybrid();
    let slots = reusing.slots.live + reusing.slots.checkpoints;
    let export = newest(&reusing, target("sglang"));
    let arguments = self::arguments(target("sglang"), &export);
    assert_eq!(arguments["disable-radix-cache"], Value::Null);
    assert_eq!(arguments["max-running-requests"], (slots / 5).min(reusing.slots.live));
}

/// Of a model whose windows SGLang keeps whole, fewer run than the plan has.
#[test]
fn sglang_is_told_no_more_requests_than_it_starts_with() {
    let bytes = budget("max_seq_len = 4096\n[memory]\nbytes = '20GiB'");
    let plan = PlanRequest::of(published("google__gemma-3-1b-it")).with_budget(bytes).plan().unwrap();
    let export = newest(&plan, target("sglang"));
    let admits = export.admits.unwrap();
    assert!((100..plan.capacity.sequences).contains(&admits), "{admits} of {}", plan.capacity.sequences);
    assert_eq!(arguments(target("sglang"), &export)["max-running-requests"], admits);
}

#[rstest]
#[case("vllm", "no-enable-prefix-caching")]
#[case("llm-d", "no-enable-prefix-caching")]
#[case("tensorrt-llm", "kv_cache_config.enable_block_reuse")]
fn a_plan_without_checkpoints_turns_the_reuse_of_states_off(#[case] target: Target, #[case] key: &str) {
    let off = |plan: &CachePlan| newest(plan, target).settings.iter().any(|setting| setting.key == key);
    assert!(off(&half_hybrid()) && !off(&hybrid()) && !off(&windowed()));
}

/// vLLM asserts that a step holds the block that it aligns to the states.
#[test]
fn a_step_is_never_below_the_block_that_vllm_aligns() {
    let model = Model::new("wide", 2).with("kv", 0, ResourceHandler::kv_paged(1, 64, DType::F8E4m3).unwrap()).with(
        "ssm",
        1,
        ResourceHandler::ssm(128, 64, 128, DType::F32).unwrap(),
    );
    let plan = model.request(&budget("max_seq_len = 65536\n[memory]\nbytes = '8GiB'")).plan().unwrap();
    let arguments = arguments(target("vllm"), &newest(&plan, target("vllm")));
    // 4 MiB of state over 128 bytes a token.
    assert_eq!(arguments["max-num-batched-tokens"], 32_768);
}

#[test]
fn latents_are_stored_in_blocks_that_their_kernels_read() {
    let model = Model::new("latent", 1).with("ckv", 0, ResourceHandler::mla_paged(512, 64, DType::Bf16).unwrap());
    let plan = model.request(&budget("[memory]\nbytes = '1GiB'")).plan().unwrap();
    assert_eq!(yaml(&newest(&plan, target("vllm")))["block-size"], 64);
}

/// Told nothing of it, the engine would keep them otherwise, and hold fewer sequences than the plan.
#[rstest]
#[case("vllm", DType::Q4_0)]
#[case("sglang", DType::Int8PerTokenHead)]
#[case("tensorrt-llm", DType::F8E5m2)]
#[case("dynamo", DType::Mxfp4)]
#[case("llm-d", DType::Iq4Nl)]
#[case("ray", DType::F32)]
#[case("dynamo-sglang", DType::Q8_0)]
fn a_dtype_that_the_engine_keeps_no_keys_in_is_refused(#[case] name: &str, #[case] dtype: DType) {
    let model = Model::new("m", 1).with("kv", 0, ResourceHandler::kv_paged(8, 128, dtype).unwrap());
    let plan = model.request(&budget("max_seq_len = 4096\n[memory]\nbytes = '1GiB'")).plan().unwrap();
    let message = plan.export(target(name), None, &serving()).unwrap_err().to_string();
    assert!(message.contains(&format!("keeps no keys and values in {dtype} ")), "{message}");
    let told = message.split("the model's own and ").nth(1).unwrap_or_default().replace(" and ", ", ");
    let told: Vec<&str> = told.split(", ").collect();
    assert!(told.iter().all(|word| told.iter().filter(|other| *other == word).count() == 1), "{message}");
}

/// What an engine would not admit of a plan is said with its number.
#[rstest]
fn the_way_back_admits_what_the_plan_says_or_the_file_says_what_is_lost(
    #[values("vllm", "sglang", "tensorrt-llm")] name: &str,
) {
    for plan in [hybrid(), half_hybrid(), windowed()] {
        let export = newest(&plan, target(name));
        let admits = export.admits.unwrap();
        let said = export.not_expressed.iter().any(|gap| {
            gap.starts_with(&format!("{admits} of the plan's {} sequences run at once", plan.capacity.sequences))
        });
        assert_eq!(said, admits < plan.capacity.sequences, "{name}: {admits} {:?}", export.not_expressed);
        assert_eq!(said, export.text.contains("sequences run at once in"));
    }
}

/// vLLM groups the layers of all stages, of which a plan has those of one.
#[test]
fn what_is_admitted_by_the_layers_of_other_stages_is_not_said() {
    let serving = Serving { parallel: Some(Parallel { pp: 2, ..Parallel::default() }), ..serving() };
    let of = |name: &str| windowed().export(target(name), None, &serving).unwrap();
    let export = of("vllm");
    assert_eq!(export.admits, None);
    assert!(export.not_expressed.iter().any(|gap| gap.contains("groups the layers of all pipeline stages")));
    assert!(of("sglang").admits.is_some());
}

#[test]
fn a_share_that_may_bind_is_said_with_the_device_that_it_needs() {
    let budget = budget("max_seq_len = 4096\n[memory]\nbytes = '24GiB'\nweights = '19GiB'");
    let plan = nemotron_3_nano().request(&budget).plan().unwrap();
    let export = newest(&plan, target("sglang"));
    let caches: u64 = plan.pools.iter().map(|pool| pool.bytes).sum();
    let least = ((19 << 30) + caches) as f64 / 0.95;
    let least = cacheplan_planner::ByteSize(least.ceil() as u64);
    assert!(export.text.contains(&format!("which then has {least} at least")), "{}", export.text);
}

#[test]
fn tensorrt_llm_gets_a_window_per_layer_and_the_average_length() {
    let windowed = arguments(target("tensorrt-llm"), &newest(&windowed(), target("tensorrt-llm")));
    let windows = serde_json::json!([16384, 1024, 16384, 1024, 16384, 1024]);
    assert_eq!(windowed["kv_cache_config"]["max_attention_window"], windows);
    assert_eq!(windowed["kv_cache_config"]["dtype"], "fp8");
    let plan = hybrid();
    let hybrid = arguments(target("tensorrt-llm"), &newest(&plan, target("tensorrt-llm")));
    let average = plan.capacity.tokens.unwrap() / plan.capacity.sequences;
    assert_eq!(hybrid["kv_cache_config"]["avg_seq_len"], average);
    assert_eq!(hybrid["kv_cache_config"]["mamba_ssm_cache_dtype"], "float32");
}

#[test]
fn a_block_size_is_stated_where_the_engine_does_not_align_it_to_states() {
    assert_eq!(yaml(&newest(&windowed(), target("vllm")))["block-size"], 16);
    let hybrid = newest(&hybrid(), target("vllm"));
    assert_eq!(yaml(&hybrid).get("block-size"), None);
    assert!(hybrid.not_expressed.iter().any(|gap| gap.starts_with("tokens_per_block")), "{:?}", hybrid.not_expressed);
}

#[test]
fn offloading_is_counted_as_each_engine_counts() {
    let parallel = Parallel { tp: 2, ..Parallel::default() };
    let serving = Serving { parallel: Some(parallel), host_bytes: Some(HOST_BYTES), ..serving() };
    let of = |target| arguments(target, &hybrid().export(target, None, &serving).unwrap());
    assert_eq!(of(target("vllm"))["kv-offloading-size"], 128.0, "GiB over both ranks");
    assert_eq!(of(target("sglang"))["hicache-size"], 68, "whole GB of each rank");
    assert_eq!(of(target("tensorrt-llm"))["kv_cache_config"]["host_cache_size"], HOST_BYTES);
}

#[test]
fn a_key_that_a_version_lacks_is_said_to_be_missing() {
    let serving = Serving { host_bytes: Some(HOST_BYTES), ..serving() };
    let old = hybrid().export(target("vllm"), Some("0.11.0"), &serving).unwrap();
    assert_eq!(yaml(&old).get("kv-offloading-size"), None);
    let said = |what: &str| old.not_expressed.iter().any(|gap| gap.starts_with(what));
    assert!(said("`kv-offloading-size` = 64.0: this version has no such key"), "{:?}", old.not_expressed);
}

#[test]
fn dynamos_version_decides_the_engines() {
    let engine = |target, version| hybrid().export(target, Some(version), &serving()).unwrap().engine;
    assert_eq!(engine(target("dynamo"), "1.5.1"), "vLLM 0.28.0");
    assert_eq!(engine(target("dynamo-sglang"), "1.5.1"), "SGLang 0.5.18");
    assert_eq!(engine(target("dynamo-tensorrt-llm"), "v1.5.1"), "TensorRT-LLM 1.3.0rc25");
}

#[test]
fn more_stages_than_layers_are_refused() {
    let plan = hybrid();
    let parallel = Parallel { pp: plan.model.layers + 1, ..Parallel::default() };
    let error = plan.export(target("vllm"), None, &Serving { parallel: Some(parallel), ..serving() }).unwrap_err();
    assert!(error.to_string().ends_with("53 pipeline stages are more than its 52 layers"), "{error}");
}

#[test]
fn a_release_of_dynamo_says_which_engine_is_in_it() {
    assert_eq!(target("dynamo").engine_in("v1.5.1"), Some("0.28.0"));
    assert_eq!((target("dynamo").engine_in("0.4.0"), target("vllm").engine_in("0.33.0")), (None, None));
}

#[rstest]
#[case("vllm", "0.33.1", "unknown version `0.33.1` for vllm; the keys are known for 0.11.0, 0.24.0, 0.28.0, 0.33.0")]
#[case("ray", "2.55.0", "unknown version `2.55.0` for ray; the keys are known for 0.11.0")]
#[case("dynamo", "0.33.0", "unknown version `0.33.0` for dynamo; the keys are known for 1.5.1")]
#[case("edge-llm", "", "unknown version `` for edge-llm; the keys are known for 0.7.0")]
fn an_unknown_version_is_an_error_that_lists_the_known_ones(
    #[case] target: Target,
    #[case] version: &str,
    #[case] expected: &str,
) {
    let error = hybrid().export(target, Some(version), &serving()).unwrap_err().to_string();
    assert!(error.starts_with(expected), "{error}");
}

#[test]
fn what_engines_cannot_be_told_is_said() {
    let mixed = Model::new("m", 3)
        .with("a", 0, kv(8, 64))
        .with("b", 1, ResourceHandler::kv_paged(8, 128, DType::F8E4m3).unwrap())
        .with("s", 2, ResourceHandler::ssm(8, 64, 128, DType::F8E4m3).unwrap());
    let budget = budget(
        "grouping = 'first-reference'\nmax_seq_len = 4096\n[memory]\nbytes = '4GiB'\n\
         [speculation]\ndraft_tokens = 3",
    );
    let mut plan = mixed.request(&budget).plan().unwrap();
    let second = plan.pools.iter_mut().filter(|pool| pool.tokens_per_block.is_some()).nth(1).unwrap();
    second.tokens_per_block = Some(64);
    let parallel = Parallel { dp: 2, ..Parallel::default() };
    let serving = Serving { parallel: Some(parallel), host_bytes: Some(HOST_BYTES), ..serving() };
    let expected = [
        (target("vllm"), "pages of 16 and 64 tokens beside each other"),
        (target("vllm"), "local allocations: b_1"),
        (target("vllm"), "3 drafted tokens: "),
        (target("sglang"), "parallel.dp = 2: "),
        (target("vllm"), "keys and values in bf16 and f8_e4m3: "),
        (target("vllm"), "recurrent states in f8_e4m3: "),
        (target("sglang"), "the sizes of kv_paged.0 and b_1: one count of tokens serves them all"),
        (target("tensorrt-llm"), "the sizes of "),
        (target("llm-d"), "the pod's memory limit and /dev/shm: both must exceed 68719476736 bytes"),
        (target("dynamo"), "the pod's memory limit and /dev/shm: "),
        (target("llm-d"), "other arguments of the container: "),
    ];
    for (target, gap) in expected {
        let said = plan.export(target, None, &serving).unwrap().not_expressed;
        assert!(said.iter().any(|sentence| sentence.starts_with(gap)), "{target}: {gap} is not in {said:#?}");
    }
}

/// Engines refuse a length that is longer than the config's unless a variable of theirs allows it.
#[rstest]
fn a_length_that_the_model_was_not_made_for_is_said(#[values("vllm", "sglang", "tensorrt-llm", "ray")] name: &str) {
    for (longest, expected) in [(None, false), (Some(16_384), false), (Some(16_383), true), (Some(4096), true)] {
        let mut plan = windowed();
        plan.model.max_position_embeddings = longest;
        let said = newest(&plan, target(name)).not_expressed;
        assert_eq!(
            said.iter().any(|gap| gap.starts_with("max_seq_len 16384 is longer")),
            expected,
            "{longest:?} {said:?}"
        );
    }
}

#[test]
fn a_damaged_plan_is_refused() {
    let damage: [fn(&mut CachePlan); 4] = [
        |plan| plan.pools[0].bytes = u64::MAX,
        |plan| plan.pools[0].reserved = u64::MAX,
        |plan| plan.slots.checkpoints = u64::MAX,
        |plan| plan.pools.iter_mut().for_each(|pool| pool.units = u64::MAX),
    ];
    for damage in damage {
        let mut plan = hybrid();
        damage(&mut plan);
        for target in Target::all() {
            let error = plan.export(target, None, &serving()).unwrap_err();
            assert!(matches!(error, ExportError::Damaged(_)), "{error}");
        }
    }
}

#[test]
fn targets_read_by_name_and_an_unknown_one_lists_them() {
    for target in Target::all() {
        assert_eq!(target.to_string().parse(), Ok(target));
    }
    let error = "triton".parse::<Target>().unwrap_err();
    assert!(error.to_string().starts_with("unknown target `triton`; known are vllm, sglang"), "{error}");
}

/// What Edge-LLM has words for: 16-bit states are among them.
fn half_hybrid() -> CachePlan {
    let mut model = super::common::nemotron_3_nano_with(DType::F16, DType::F32);
    model.info.dtype = DType::F16;
    model.request(&budget("max_seq_len = 4096\nmax_batch_size = 4")).plan().unwrap()
}

#[rstest]
#[case("vllm")]
#[case("sglang")]
#[case("tensorrt-llm")]
#[case("dynamo")]
#[case("dynamo-sglang")]
#[case("dynamo-tensorrt-llm")]
#[case("llm-d")]
#[case("ray")]
#[case("llama.cpp")]
fn files_of_a_hybrid(#[case] target: &str) {
    insta::assert_snapshot!(format!("hybrid_{target}"), newest(&hybrid(), target.parse().unwrap()).text);
}

#[rstest]
#[case("vllm")]
#[case("sglang")]
#[case("tensorrt-llm")]
fn files_of_a_model_with_windows(#[case] target: &str) {
    insta::assert_snapshot!(format!("windowed_{target}"), newest(&windowed(), target.parse().unwrap()).text);
}

#[test]
fn the_file_of_edge_llm() {
    let export = newest(&half_hybrid(), target("edge-llm"));
    insta::assert_snapshot!("hybrid_edge-llm", format!("{}\n{:#?}", export.text, export.not_expressed));
}

#[test]
fn the_offloading_size_of_vllm_is_that_of_all_ranks() {
    let parallel = Parallel { tp: 2, pp: 4, ..Parallel::default() };
    let serving = Serving { parallel: Some(parallel), host_bytes: Some(HOST_BYTES), ..serving() };
    let export = hybrid().export(target("vllm"), None, &serving).unwrap();
    assert_eq!(yaml(&export)["kv-offloading-size"], 8.0 * 64.0);
}

#[rstest]
#[case("edge-llm", HOST_BYTES)]
#[case("sglang", 512 << 20)]
fn a_host_tier_that_an_engine_does_not_get_is_said(#[case] target: Target, #[case] host_bytes: u64) {
    let plan = if target.name() == "edge-llm" { half_hybrid() } else { hybrid() };
    let serving = Serving { host_bytes: Some(host_bytes), ..serving() };
    let export = plan.export(target, None, &serving).unwrap();
    let said = export.not_expressed.iter().any(|gap| gap.contains(&format!("{host_bytes} bytes of host memory")));
    assert!(said, "{:?}", export.not_expressed);
}

/// A plan of one of several ranks names them, also after it was written and read.
#[test]
fn an_export_states_the_ranks_of_the_plan() {
    let budget = budget("max_seq_len = 4096\n[memory]\nbytes = '4GiB'\n[parallel]\ntp = 2");
    let model = Model::new("m", 1).with("a", 0, kv(8, 128));
    let written = serde_json::to_string(&model.request(&budget).plan().unwrap()).unwrap();
    let plan: CachePlan = serde_json::from_str(&written).unwrap();
    for (target, flag) in [(target("vllm"), "\"tensor-parallel-size\": 2"), (target("sglang"), "--tp-size=2")] {
        assert!(newest(&plan, target).text.contains(flag), "{}", newest(&plan, target).text);
    }
    let other = Serving { parallel: Some(Parallel { tp: 4, ..Parallel::default() }), ..serving() };
    let text = plan.export(target("vllm"), None, &other).unwrap().text;
    assert!(text.contains("\"tensor-parallel-size\": 4"), "{text}");
}

/// vLLM runs replicas and shares experts by flags of its own, on as many GPUs.
#[rstest]
#[case(Parallel { dp: 8, ep: 8, ..Parallel::default() }, true, "8")]
#[case(Parallel { tp: 2, dp: 4, ..Parallel::default() }, false, "8")]
fn vllm_and_llm_d_are_told_of_replicas_and_experts(
    #[case] parallel: Parallel,
    #[case] experts: bool,
    #[case] gpus: &str,
) {
    let serving = Serving { parallel: Some(parallel), ..serving() };
    let export = windowed().export(target("llm-d"), None, &serving).unwrap();
    let has = |key: &str| export.settings.iter().any(|setting| setting.key == key);
    assert!(has("data-parallel-size"));
    assert_eq!(has("enable-expert-parallel"), experts);
    assert!(!export.not_expressed.iter().any(|gap| gap.starts_with("parallel.dp") || gap.starts_with("parallel.ep")));
    assert!(export.text.contains(&format!("\"nvidia.com/gpu\": \"{gpus}\"")), "{}", export.text);
}

/// Its loader takes fp8, nvfp4 and auto.
#[test]
fn tensorrt_llm_is_told_no_dtype_that_its_loader_refuses() {
    for plan in [hybrid(), windowed(), half_hybrid()] {
        let export = newest(&plan, target("tensorrt-llm"));
        let dtype = export.settings.iter().find(|setting| setting.key == "kv_cache_config.dtype");
        assert!(dtype.is_none_or(|dtype| ["fp8", "nvfp4", "auto"].contains(&dtype.value.as_str().unwrap())));
    }
}

/// SGLang admits no prefill into a window's pool that is no larger than the window.
#[rstest]
#[case(1, true)]
#[case(64, false)]
fn what_sglang_never_starts_with_is_not_written(#[case] sequences: u64, #[case] is_refused: bool) {
    let kv = || ResourceHandler::kv_paged(8, 64, DType::Bf16).unwrap();
    let model = Model::new("gpt_oss", 2).with("kv", 0, kv()).with("kv", 1, kv().with_window(1024).unwrap());
    let budget = budget(&format!("max_seq_len = 100\nmax_batch_size = {sequences}\n[memory]\nbytes = '2GiB'"));
    let plan = model.request(&budget).plan().unwrap();
    let found = plan.export(target("sglang"), None, &serving()).map_err(|error| error.to_string());
    match is_refused {
        true => assert!(found.unwrap_err().contains("`max_total_tokens` is stated too small")),
        false => assert!(found.unwrap().admits.is_some()),
    }
}

/// Before 0.5.17 a slot pays for all stages, of which a plan knows one.
#[rstest]
#[case("0.5.16", 2, true)]
#[case("0.5.16", 1, false)]
#[case("0.5.18", 2, false)]
fn states_of_other_stages_are_not_guessed(#[case] version: &str, #[case] pp: u32, #[case] is_refused: bool) {
    let serving = Serving { parallel: Some(Parallel { pp, ..Parallel::default() }), ..serving() };
    let found = hybrid().export(target("sglang"), Some(version), &serving).map_err(|error| error.to_string());
    assert_eq!(found.is_err_and(|error| error.contains("the states of all pipeline stages")), is_refused);
}
