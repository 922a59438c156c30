//! Plans in the words of engines.

use crate::common::{Model, budget, kv, nemotron_3_nano};
use cacheplan_handlers::{DType, ResourceHandler};
use cacheplan_planner::{CachePlan, Export, ExportError, Owner, Parallel, Serving, Target, export, plan};
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
    plan(&model.request(&budget)).unwrap()
}

/// Full attention and windows, keys and values in 8 bits.
fn windowed() -> CachePlan {
    let kv = || ResourceHandler::kv_paged(8, 64, DType::F8E4m3).unwrap();
    let mut model = Model::new("windowed", 6);
    for layer in 0..6 {
        model = model.with("kv", layer, if layer % 2 == 0 { kv() } else { kv().with_window(1024).unwrap() });
    }
    plan(&model.request(&budget("max_seq_len = 16384\n[memory]\nbytes = '2GiB'"))).unwrap()
}

fn serving() -> Serving {
    Serving { model: Some("org/Hybrid-30B".into()), ..Serving::default() }
}

fn newest(plan: &CachePlan, target: Target) -> Export {
    export(plan, target, None, &serving()).unwrap()
}

fn cache_bytes(plan: &CachePlan) -> u64 {
    plan.pools.iter().filter(|pool| pool.owner != Owner::Unaccounted).map(|pool| pool.bytes).sum()
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
    let program = script.replace("exec python3", "printf '%s\\n' python3");
    let output = std::process::Command::new("bash").args(["-c", &program]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// The engine's own arguments inside the file.
fn arguments(target: Target, export: &Export) -> Value {
    let container = |document: &Value, path: &str| flags(strings(document.pointer(path).unwrap()));
    match target {
        Target::Vllm | Target::TensorRtLlm => yaml(export),
        Target::Sglang => flags(words_of_a_shell(&export.text).iter().map(String::as_str)),
        Target::Dynamo | Target::DynamoSglang => {
            container(&yaml(export), "/spec/components/1/podTemplate/spec/containers/0/args")
        }
        Target::DynamoTensorRtLlm => container(&yaml(export), "/spec/components/1/podTemplate/spec/containers/0/args")
            ["override-engine-args"]
            .take(),
        Target::LlmD => container(&yaml(export), "/spec/template/spec/containers/0/args"),
        Target::Ray => yaml(export)["applications"][0]["args"]["llm_configs"][0]["engine_kwargs"].take(),
        Target::EdgeLlm => serde_json::from_str(&export.text).unwrap(),
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
    for target in Target::ALL.into_iter().filter(|target| which == "hybrid" || *target != Target::EdgeLlm) {
        for version in target.versions() {
            let plan = if target == Target::EdgeLlm { half_hybrid() } else { plan.clone() };
            let export = export(&plan, target, Some(version), &serving).unwrap();
            let arguments = arguments(target, &export);
            assert!(export.settings.len() >= 6, "{target}");
            for setting in &export.settings {
                let key = if target == Target::Ray { setting.key.replace('-', "_") } else { setting.key.clone() };
                let found = arguments.pointer(&format!("/{}", key.replace('.', "/")));
                assert_eq!(found, Some(&setting.value), "{target} {version}: {key} in\n{}", export.text);
                assert!(!setting.source.is_empty(), "{target}: {key}");
                if target != Target::EdgeLlm {
                    assert!(export.text.contains(&setting.source), "{target}: no comment for {key}");
                }
            }
            if target != Target::EdgeLlm {
                assert!(export.not_expressed.iter().all(|gap| export.text.contains(gap)), "{target}");
            }
        }
    }
}

#[rstest]
#[case(Target::Vllm, "/kv-cache-memory-bytes", "/max-model-len", "/max-num-seqs", "/max-num-batched-tokens")]
#[case(Target::Ray, "/kv_cache_memory_bytes", "/max_model_len", "/max_num_seqs", "/max_num_batched_tokens")]
#[case(Target::LlmD, "/kv-cache-memory-bytes", "/max-model-len", "/max-num-seqs", "/max-num-batched-tokens")]
#[case(Target::Dynamo, "/kv-cache-memory-bytes", "/max-model-len", "/max-num-seqs", "/max-num-batched-tokens")]
#[case(
    Target::TensorRtLlm,
    "/kv_cache_config/max_gpu_total_bytes",
    "/max_seq_len",
    "/max_batch_size",
    "/max_num_tokens"
)]
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
        assert_eq!(number(sequences), Some(plan.limits.max_batch_size));
        assert_eq!(number(step), Some(plan.limits.max_num_tokens));
    }
}

#[test]
fn sglang_gets_tokens_and_slots_for_bytes() {
    let plan = hybrid();
    let arguments = arguments(Target::Sglang, &newest(&plan, Target::Sglang));
    let paged = plan.pools.iter().find(|pool| pool.tokens_per_block.is_some()).unwrap();
    assert_eq!(arguments["max-total-tokens"], (paged.units - 1) * 32);
    assert_eq!(arguments["max-mamba-cache-size"], plan.slots.live + plan.slots.checkpoints);
    assert_eq!(arguments["page-size"], 32);
    assert_eq!(arguments["mamba-ssm-dtype"], "float32");
    assert_eq!(arguments["kv-cache-dtype"], "auto");
    let windowed = windowed();
    let arguments = self::arguments(Target::Sglang, &newest(&windowed, Target::Sglang));
    let tokens = |window: Option<u32>| {
        let pool = windowed.pools.iter().find(|pool| pool.window == window).unwrap();
        (pool.units - pool.reserved) as f64
    };
    let ratio = arguments["swa-full-tokens-ratio"].as_f64().unwrap();
    let exact = tokens(Some(1024)) / tokens(None);
    assert!((0.0..1e-6).contains(&(ratio - exact)), "{ratio} for {exact}");
    assert_eq!(arguments["kv-cache-dtype"], "fp8_e4m3");
}

#[test]
fn tensorrt_llm_gets_a_window_per_layer_and_the_average_length() {
    let windowed = arguments(Target::TensorRtLlm, &newest(&windowed(), Target::TensorRtLlm));
    let windows = serde_json::json!([16384, 1024, 16384, 1024, 16384, 1024]);
    assert_eq!(windowed["kv_cache_config"]["max_attention_window"], windows);
    assert_eq!(windowed["kv_cache_config"]["dtype"], "fp8");
    let plan = hybrid();
    let hybrid = arguments(Target::TensorRtLlm, &newest(&plan, Target::TensorRtLlm));
    let average = plan.capacity.tokens.unwrap() / plan.capacity.sequences;
    assert_eq!(hybrid["kv_cache_config"]["avg_seq_len"], average);
    assert_eq!(hybrid["kv_cache_config"]["mamba_ssm_cache_dtype"], "float32");
}

#[test]
fn a_block_size_is_stated_where_the_engine_does_not_align_it_to_states() {
    assert_eq!(yaml(&newest(&windowed(), Target::Vllm))["block-size"], 16);
    let hybrid = newest(&hybrid(), Target::Vllm);
    assert_eq!(yaml(&hybrid).get("block-size"), None);
    assert!(hybrid.not_expressed.iter().any(|gap| gap.starts_with("tokens_per_block")), "{:?}", hybrid.not_expressed);
}

#[test]
fn offloading_is_counted_as_each_engine_counts() {
    let parallel = Parallel { tp: 2, ..Parallel::default() };
    let serving = Serving { parallel: Some(parallel), host_bytes: Some(HOST_BYTES), ..serving() };
    let of = |target| arguments(target, &export(&hybrid(), target, None, &serving).unwrap());
    assert_eq!(of(Target::Vllm)["kv-offloading-size"], 128.0, "GiB over both ranks");
    assert_eq!(of(Target::Sglang)["hicache-size"], 68, "whole GB of each rank");
    assert_eq!(of(Target::TensorRtLlm)["kv_cache_config"]["host_cache_size"], HOST_BYTES);
}

#[test]
fn a_key_that_a_version_lacks_is_said_to_be_missing() {
    let serving = Serving { host_bytes: Some(HOST_BYTES), ..serving() };
    let old = export(&hybrid(), Target::Vllm, Some("0.11.0"), &serving).unwrap();
    assert_eq!(yaml(&old).get("kv-offloading-size"), None);
    let said = |what: &str| old.not_expressed.iter().any(|gap| gap.starts_with(what));
    assert!(said("`kv-offloading-size` = 64.0: this version has no such key"), "{:?}", old.not_expressed);
}

#[test]
fn a_name_that_breaks_lines_stays_in_its_place() {
    let serving = Serving { model: Some("a\nkv-cache-memory-bytes: 1\rb".into()), ..Serving::default() };
    for target in [Target::Vllm, Target::TensorRtLlm, Target::Ray] {
        let mut export = export(&windowed(), target, None, &serving).unwrap();
        let hostile = arguments(target, &export);
        export.text = newest(&windowed(), target).text;
        assert_eq!(hostile, arguments(target, &export));
    }
    let script = export(&windowed(), Target::Sglang, None, &serving).unwrap().text;
    assert!(words_of_a_shell(&script).contains(&"a".to_owned()), "one word, on two lines: {script}");
}

/// A model's type loads nothing; a name that no engine takes for a model's is seen at once.
#[rstest]
fn a_model_that_is_not_stated_has_a_name_that_must_be_replaced(#[values(true, false)] stated: bool) {
    let name = if stated { "org/Hybrid-30B" } else { "<MODEL>" };
    let serving = if stated { serving() } else { Serving::default() };
    for target in Target::ALL.into_iter().filter(|target| target.names_model()) {
        let export = export(&hybrid(), target, None, &serving).unwrap();
        let values = match target {
            Target::Sglang => words_of_a_shell(&export.text).join("\n"),
            _ => yaml(&export).to_string(),
        };
        assert!(values.contains(name) && !values.contains("nemotron_h"), "{target}: {values}");
        let said = export.not_expressed.iter().any(|gap| gap.contains("replace <MODEL>"));
        assert_eq!(said, !stated, "{target}: {:?}", export.not_expressed);
    }
    let vllm = export(&hybrid(), Target::Vllm, None, &serving).unwrap();
    let usage = if stated {
        format!("# vllm serve {name} --config FILE")
    } else {
        format!("# vllm serve '{name}' --config FILE")
    };
    assert!(vllm.text.contains(&usage), "{}", vllm.text);
}

#[test]
fn dynamos_version_decides_the_engines() {
    let engine = |target, version| export(&hybrid(), target, Some(version), &serving()).unwrap().engine;
    assert_eq!(engine(Target::Dynamo, "1.3.0"), "vLLM 0.24.0");
    assert_eq!(engine(Target::DynamoSglang, "1.3.0"), "SGLang 0.5.16");
    assert_eq!(engine(Target::DynamoTensorRtLlm, "v1.5.1"), "TensorRT-LLM 1.3.0rc25");
}

#[rstest]
#[case(
    Target::Vllm,
    "0.33.1",
    "unknown version `0.33.1` for vllm; the keys are known for 0.11.0, 0.24.0, 0.28.0, 0.33.0"
)]
#[case(Target::Ray, "2.55.0", "unknown version `2.55.0` for ray; the keys are known for 0.11.0")]
#[case(Target::Dynamo, "0.33.0", "unknown version `0.33.0` for dynamo; the keys are known for 1.3.0, 1.5.1")]
#[case(Target::EdgeLlm, "", "unknown version `` for edge-llm; the keys are known for 0.7.0")]
fn an_unknown_version_is_an_error_that_lists_the_known_ones(
    #[case] target: Target,
    #[case] version: &str,
    #[case] expected: &str,
) {
    let error = export(&hybrid(), target, Some(version), &serving()).unwrap_err().to_string();
    assert!(error.starts_with(expected), "{error}");
}

#[test]
fn what_engines_cannot_be_told_is_said() {
    let mixed = Model::new("m", 3)
        .with("a", 0, kv(8, 64))
        .with("b", 1, ResourceHandler::kv_paged(8, 128, DType::Int8).unwrap())
        .with("s", 2, ResourceHandler::ssm(8, 64, 128, DType::F8E4m3).unwrap());
    let budget = budget(
        "grouping = 'first-reference'\nmax_seq_len = 4096\n[memory]\nbytes = '4GiB'\nreserve = '1GiB'\n\
         [speculation]\ndraft_tokens = 3",
    );
    let mut plan = plan(&mixed.request(&budget)).unwrap();
    let second = plan.pools.iter_mut().filter(|pool| pool.tokens_per_block.is_some()).nth(1).unwrap();
    second.tokens_per_block = Some(64);
    let parallel = Parallel { dp: 2, ..Parallel::default() };
    let serving = Serving { parallel: Some(parallel), host_bytes: Some(HOST_BYTES), ..serving() };
    let expected = [
        (Target::Vllm, "pages of 16 and 64 tokens beside each other"),
        (Target::Vllm, "local allocations: b_1"),
        (Target::Vllm, "3 drafted tokens: "),
        (Target::Vllm, "parallel.dp = 2: "),
        (Target::Vllm, "keys and values in bf16 and int8: "),
        (Target::Vllm, "recurrent states in f8_e4m3: "),
        (Target::Sglang, "the sizes of kv_paged.0 and b_1: one count of tokens serves them all"),
        (Target::TensorRtLlm, "the sizes of "),
        (Target::LlmD, "the pod's memory limit and /dev/shm: both must exceed 68719476736 bytes"),
        (Target::Dynamo, "each container's image: "),
    ];
    for (target, gap) in expected {
        let said = export(&plan, target, None, &serving).unwrap().not_expressed;
        assert!(said.iter().any(|sentence| sentence.starts_with(gap)), "{target}: {gap} is not in {said:#?}");
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
        for target in Target::ALL {
            let error = export(&plan, target, None, &serving()).unwrap_err();
            assert!(matches!(error, ExportError::Damaged(_)), "{error}");
        }
    }
}

#[test]
fn targets_read_by_name_and_an_unknown_one_lists_them() {
    for target in Target::ALL {
        assert_eq!(target.to_string().parse(), Ok(target));
    }
    let error = "triton".parse::<Target>().unwrap_err();
    assert!(error.to_string().starts_with("unknown target `triton`; known are vllm, sglang"), "{error}");
}

/// What Edge-LLM has words for: 16-bit states are among them.
fn half_hybrid() -> CachePlan {
    let model = crate::common::nemotron_3_nano_with(DType::F16, DType::F32);
    plan(&model.request(&budget("max_seq_len = 4096\nmax_batch_size = 4"))).unwrap()
}

#[test]
fn edge_llm_gets_one_entry_per_layer_with_a_cache() {
    let config = arguments(Target::EdgeLlm, &newest(&half_hybrid(), Target::EdgeLlm));
    assert_eq!(config["model_type"], "hybrid_mamba");
    let types: Vec<&str> = strings(&config["layer_types"]).collect();
    let configs = config["kv_layer_configs"].as_array().unwrap();
    assert_eq!((types.len(), configs.len()), (29, 29));
    for (kind, config) in types.iter().zip(configs) {
        assert_eq!(*kind == "mamba", config.is_null());
    }
    assert_eq!((&types[..4], types[28]), (&["mamba", "mamba", "mamba", "attention"][..], "mamba"));
    assert_eq!(configs[3], serde_json::json!({ "num_kv_heads": 2, "head_dim": 128 }));
    assert_eq!((&config["conv_dim"], &config["conv_kernel"]), (&6144.into(), &4.into()));
    assert_eq!(config["recurrent_state_size"], 128);
    assert_eq!(config["recurrent_state_dtype"], "fp32");
}

#[rstest]
#[case(Model::new("m", 1).with("x", 0, ResourceHandler::mla_paged(512, 64, DType::Bf16).unwrap()), "`x_0` is mla_paged")]
#[case(
    Model::new("m", 2)
        .with("a", 0, ResourceHandler::ssm(8, 64, 128, DType::F32).unwrap())
        .with("b", 1, ResourceHandler::ssm(8, 64, 64, DType::F32).unwrap()),
    "its states have several shapes"
)]
#[case(
    Model::new("m", 1).with("kv", 0, kv(8, 64)).with("s", 0, ResourceHandler::ssm(8, 64, 64, DType::F32).unwrap()),
    "the layer of `kv_0` has a state as well"
)]
#[case(
    Model::new("m", 1).with("kv", 0, ResourceHandler::kv_paged(8, 64, DType::Nvfp4).unwrap()),
    "`kv_cache_dtype` takes one of"
)]
fn edge_llm_refuses_what_one_number_cannot_say(#[case] model: Model, #[case] expected: &str) {
    let plan = plan(&model.request(&budget(""))).unwrap();
    match export(&plan, Target::EdgeLlm, None, &serving()) {
        Err(ExportError::Unsupported { what, .. }) => assert!(what.starts_with(expected), "{what}"),
        other => panic!("{other:?}"),
    }
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
    let export = newest(&half_hybrid(), Target::EdgeLlm);
    insta::assert_snapshot!("hybrid_edge-llm", format!("{}\n{:#?}", export.text, export.not_expressed));
}

#[test]
fn the_offloading_size_of_vllm_is_that_of_all_ranks() {
    let parallel = Parallel { tp: 2, pp: 4, ..Parallel::default() };
    let serving = Serving { parallel: Some(parallel), host_bytes: Some(HOST_BYTES), ..serving() };
    let export = export(&hybrid(), Target::Vllm, None, &serving).unwrap();
    assert_eq!(yaml(&export)["kv-offloading-size"], 8.0 * 64.0);
}

#[rstest]
#[case(Target::EdgeLlm, HOST_BYTES)]
#[case(Target::Sglang, 512 << 20)]
fn a_host_tier_that_an_engine_does_not_get_is_said(#[case] target: Target, #[case] host_bytes: u64) {
    let plan = if target == Target::EdgeLlm { half_hybrid() } else { hybrid() };
    let serving = Serving { host_bytes: Some(host_bytes), ..serving() };
    let export = export(&plan, target, None, &serving).unwrap();
    let said = export.not_expressed.iter().any(|gap| gap.contains(&format!("{host_bytes} bytes of host memory")));
    assert!(said, "{:?}", export.not_expressed);
}

/// A plan of one of several ranks names them, also after it was written and read.
#[test]
fn an_export_states_the_ranks_of_the_plan() {
    let budget = budget("max_seq_len = 4096\n[memory]\nbytes = '4GiB'\n[parallel]\ntp = 2");
    let model = Model::new("m", 1).with("a", 0, kv(8, 128));
    let written = serde_json::to_string(&plan(&model.request(&budget)).unwrap()).unwrap();
    let plan: CachePlan = serde_json::from_str(&written).unwrap();
    for (target, flag) in [(Target::Vllm, "tensor-parallel-size: 2"), (Target::Sglang, "--tp-size=2")] {
        assert!(newest(&plan, target).text.contains(flag), "{}", newest(&plan, target).text);
    }
    let other = Serving { parallel: Some(Parallel { tp: 4, ..Parallel::default() }), ..serving() };
    let text = export(&plan, Target::Vllm, None, &other).unwrap().text;
    assert!(text.contains("tensor-parallel-size: 4"), "{text}");
}
