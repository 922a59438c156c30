//! The command as its users meet it: exit codes, messages, and the JSON contract.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rstest::rstest;
use serde_json::Value;

const NANO: &str = "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16.json";

fn config(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/configs").join(name)
}

fn cacheplan<S: AsRef<std::ffi::OsStr>>(args: &[S]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_cacheplan")).args(args).env("NO_COLOR", "1").output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn plan_json(config_name: &str, budget: &str) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let budget_file = folder.path().join("budget.toml");
    std::fs::write(&budget_file, budget).unwrap();
    let (model, budget) = (config(config_name), budget_file);
    let output = cacheplan(&[
        "plan".as_ref(),
        model.as_os_str(),
        "--budget".as_ref(),
        budget.as_os_str(),
        "--format".as_ref(),
        "json".as_ref(),
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn nemotron_3_nano_costs_what_its_shapes_say() {
    let plan = plan_json(NANO, "");
    let of_kind = |kind: &str| {
        let resources = plan["resources"].as_array().unwrap().iter();
        resources.filter(|resource| resource["kind"] == kind).cloned().collect::<Vec<_>>()
    };
    assert_eq!(["ssm", "causal_conv", "kv_paged"].map(|kind| of_kind(kind).len()), [23, 23, 6]);
    for resource in plan["resources"].as_array().unwrap() {
        assert!(resource["owner"].as_str().unwrap().ends_with("_cache_manager"), "{resource}");
    }
    let state_bytes = |kind: &str, dtype: &str| -> u64 {
        let resources = of_kind(kind);
        assert!(resources.iter().all(|resource| resource["dtype"] == dtype));
        resources.iter().map(|resource| resource["bytes_per_sequence"].as_u64().unwrap()).sum()
    };
    assert_eq!(state_bytes("ssm", "f32"), 48_234_496);
    assert_eq!(state_bytes("causal_conv", "bf16"), 847_872);
    assert_eq!(plan["totals"]["kv_bytes_per_token"], 6_144);
    assert_eq!(plan["totals"]["state_bytes_per_sequence"], 49_082_368);
    assert_eq!(plan["manager"], "mamba_hybrid_cache_manager");
}

#[test]
fn the_json_has_every_key_of_its_contract() {
    let plan = plan_json(NANO, "");
    let has = |value: &Value, keys: &[&str]| {
        for key in keys {
            assert!(value.get(key).is_some(), "no `{key}` in {value}");
        }
    };
    has(&plan, &["schema_version", "model", "manager", "resources", "pools", "capacity", "totals"]);
    has(&plan["model"], &["type", "layers"]);
    has(&plan["capacity"], &["tokens", "sequences", "capped_by"]);
    has(&plan["totals"], &["kv_bytes_per_token", "state_bytes_per_sequence", "managed_bytes", "unmanaged_bytes"]);
    for resource in plan["resources"].as_array().unwrap() {
        has(
            resource,
            &[
                "name",
                "layer",
                "kind",
                "owner",
                "pool",
                "dtype",
                "bytes_per_token",
                "bytes_per_sequence",
                "bytes_fixed",
                "reason",
                "source",
            ],
        );
    }
    for pool in plan["pools"].as_array().unwrap() {
        has(pool, &["id", "owner", "unit", "unit_bytes", "units", "bytes", "layers"]);
        let (unit_bytes, units) = (pool["unit_bytes"].as_u64().unwrap(), pool["units"].as_u64().unwrap());
        assert_eq!(pool["bytes"].as_u64().unwrap(), unit_bytes * units);
    }
}

#[rstest]
#[case::hybrid(NANO)]
#[case::mla("deepseek-ai__DeepSeek-V3.json")]
#[case::attention("Qwen__Qwen3-8B.json")]
fn the_table_is_at_most_80_columns_wide_and_says_owner_and_reason(#[case] name: &str) {
    let output =
        cacheplan(&["plan", config(name).to_str().unwrap(), "--device", "16xmi355x", "--dp", "2", "--tp", "8"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let table = String::from_utf8(output.stdout).unwrap();
    for line in table.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    assert!(table.contains("kv_cache_manager"), "{table}");
    assert!(table.contains("layers 0") || table.contains("layers 5"), "{table}");
}

#[test]
fn the_graph_prints_as_dot_with_its_caches() {
    let output = cacheplan(&["plan".as_ref(), config(NANO).as_os_str(), "--format".as_ref(), "dot".as_ref()]);
    let dot = String::from_utf8(output.stdout).unwrap();
    assert!(dot.starts_with("digraph"), "{dot}");
    // 52 caches of 29 layers, in a pattern that is drawn once.
    let caches = dot.matches("shape=cylinder").count();
    assert!((3..30).contains(&caches) && dot.contains("\"× "), "{caches}\n{dot}");
}

#[test]
fn first_reference_leaves_what_does_not_match_local() {
    let plan = plan_json("google__gemma-4-26B-A4B.json", "grouping = 'first-reference'\nmax_seq_len = 8192");
    assert!(plan["totals"]["unmanaged_bytes"].as_u64().unwrap() > 0);
    let by_key = plan_json("google__gemma-4-26B-A4B.json", "max_seq_len = 8192");
    assert_eq!(by_key["totals"]["unmanaged_bytes"], 0);
}

/// A model file that is `text`, or the fixture with `find` replaced.
enum Model {
    Missing,
    Text(&'static str),
    Truncated,
    Edited(&'static str, &'static str),
    Good,
}

#[rstest]
#[case::missing_file(Model::Missing, "", 1, "there is no such file or folder; a model of the hub is named org/name")]
#[case::truncated_json(Model::Truncated, "", 1, "not valid JSON")]
#[case::no_object(Model::Text("[]"), "", 1, "config.json: JSON of another kind")]
#[case::another_object(Model::Text("{}"), "", 1, "there is no `model_type`")]
#[case::unknown_model_type(Model::Text(r#"{"model_type": "lama"}"#), "", 4, "llama")]
#[case::negative_dim(Model::Edited("\"head_dim\": 128", "\"head_dim\": -128"), "", 1, "head_dim")]
#[case::zero_dim(Model::Edited("\"head_dim\": 128", "\"head_dim\": 0"), "", 1, "head_dim")]
#[case::absurd_dim(Model::Edited("\"head_dim\": 128", "\"head_dim\": 1e30"), "", 1, "head_dim")]
#[case::budget_too_small(Model::Good, "[memory]\nbytes = '1MiB'", 3, "short")]
#[case::unknown_key(Model::Good, "max_seq_length = 4096", 1, "max_seq_len")]
#[case::fractional_count(Model::Good, "max_seq_len = 4096.5", 1, "`4096.5`, expected a whole number")]
#[case::a_list_for_a_section(Model::Good, "memory = ['24GiB']", 1, "`memory` is a list; a section `[memory]`")]
#[case::sections_of_one_name(Model::Good, "[[memory]]\nbytes = 5", 1, "`memory` is a list; a section `[memory]`")]
#[case::no_section(Model::Good, "memory = 5", 1, "expected the section Memory")]
#[case::no_histogram(Model::Good, "[workload]\nprompt = { file = 'no.csv' }", 1, "/no.csv: ")]
#[case::bad_size(Model::Good, "[memory]\nbytes = '24 bananas'", 1, "24 bananas")]
#[case::no_base(Model::Good, "[memory]\nfraction = 0.9", 1, "of")]
fn bad_input_is_a_clear_error_with_its_exit_code(
    #[case] model: Model,
    #[case] budget: &str,
    #[case] code: i32,
    #[case] says: &str,
) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.json");
    let good = std::fs::read_to_string(config(NANO)).unwrap();
    match model {
        Model::Missing => {}
        Model::Text(text) => std::fs::write(&file, text).unwrap(),
        Model::Truncated => std::fs::write(&file, &good[..good.len() / 2]).unwrap(),
        Model::Edited(find, replace) => {
            assert!(good.contains(find));
            std::fs::write(&file, good.replace(find, replace)).unwrap();
        }
        Model::Good => std::fs::write(&file, good).unwrap(),
    }
    let budget_file = folder.path().join("budget.toml");
    std::fs::write(&budget_file, budget).unwrap();
    let output = cacheplan(&["plan".as_ref(), file.as_os_str(), "--budget".as_ref(), budget_file.as_os_str()]);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{message}");
    assert!(message.contains(says), "{message}");
    assert!(!message.contains("panicked"), "{message}");
    assert!(output.stdout.is_empty());
}

#[rstest]
#[case(&["plan"])]
#[case(&["plan", "x", "--format", "xml"])]
#[case(&["fly"])]
#[case(&["bench", "flying"])]
#[case(&["simulate", "--workload", "chat", "--checkpoints", "-1"])]
fn wrong_usage_exits_with_2(#[case] args: &[&str]) {
    let output = cacheplan(args);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{}", stderr(&output));
}

#[test]
fn weights_that_are_not_there_are_not_downloaded() {
    let message = stderr(&cacheplan(&["run", "org/Model", "--prompt-ids", "1"]));
    assert!(message.contains("org/Model: there is no such file or folder, and no such model in"), "{message}");
    assert!(message.contains("weights are never fetched: `hf download org/Model`"), "{message}");
}

#[cfg(unix)]
#[test]
fn a_link_that_leads_nowhere_is_not_proposed_for_itself() {
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("nowhere", folder.path().join("link")).unwrap();
    let message = stderr(&cacheplan(&["plan".as_ref(), folder.path().join("link").as_os_str()]));
    assert!(message.contains("link: this link leads to nowhere, and there is no such file or folder"), "{message}");
    assert!(!message.contains("did you mean"), "{message}");
}

#[test]
fn a_command_that_is_too_long_ends_alike_from_a_file_and_piped() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("long.sh");
    std::fs::write(&file, "# a comment\n".repeat(100_000) + "vllm serve m\n").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_cacheplan"));
    command.args(["plan", "-", "--device", "h100"]).stdin(std::fs::File::open(&file).unwrap());
    let named = cacheplan(&["plan".as_ref(), file.as_os_str(), "--device".as_ref(), "h100".as_ref()]);
    for refused in [named, command.output().unwrap()] {
        assert_eq!(refused.status.code(), Some(1), "{}", stderr(&refused));
        assert!(stderr(&refused).contains("a manifest of more than 1048576 bytes is not read"), "{}", stderr(&refused));
    }
}

#[test]
fn a_dash_stands_for_what_is_piped_in() {
    let piped = |args: &[&str], text: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cacheplan"));
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), text.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let plan = piped(&["plan", "-", "--format", "json"], &std::fs::read_to_string(config(NANO)).unwrap());
    assert!(piped(&["plan", "check", "-"], &plan).contains("-: 52 resources in 3 pools are consistent"));
    let rows = piped(
        &["simulate", "--trace", "-"],
        "{\"prompt\": [{\"tokens\": [1, 2]}], \"output\": {\"id\": 7, \"len\": 5}}\n",
    );
    assert_eq!(rows.lines().count(), 5, "{rows}");
}

#[rstest]
#[case("", "the trace holds no request")]
#[case("{\"prompt\": [1, 2]}", "tokens are written {\"tokens\": [7, 9]}")]
fn a_trace_that_cannot_be_replayed_is_an_error(#[case] text: &str, #[case] says: &str) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.jsonl");
    std::fs::write(&file, text).unwrap();
    let output = cacheplan(&["simulate".as_ref(), "--trace".as_ref(), file.as_os_str()]);
    assert_eq!(output.status.code(), Some(1));
    let message = stderr(&output);
    assert!(message.contains("trace.jsonl: ") && message.contains(says), "{message}");
}

#[test]
fn a_wrong_description_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("heron.toml");
    std::fs::write(&file, "kinds = 3").unwrap();
    let model = config(NANO);
    let output = cacheplan(&["inspect".as_ref(), model.as_os_str(), "--description".as_ref(), file.as_os_str()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("heron.toml: architecture description"), "{}", stderr(&output));
}

fn fixture_model(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models").join(name)
}

fn planned_equals_actual(run: &Value) {
    let pools = run["report"]["pools"].as_array().unwrap();
    assert!(!pools.is_empty());
    for pool in pools {
        assert!(pool["actual_bytes"].as_u64().unwrap() > 0, "{pool}");
        assert_eq!(pool["planned_bytes"], pool["actual_bytes"], "{pool}");
    }
}

#[test]
fn the_demo_shows_both_owners_generates_and_ends_with_planned_beside_actual() {
    let table = cacheplan(&["demo"]);
    assert!(table.status.success(), "{}", stderr(&table));
    let table = String::from_utf8(table.stdout).unwrap();
    for said in ["mamba_cache_manager", "kv_cache_manager", "local", "RESIZE", "PLANNED BESIDE ACTUAL"] {
        assert!(table.contains(said), "{table}");
    }
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    let readme = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md")).unwrap();
    let (_, shown) = readme.split_once("```console\n").unwrap();
    assert!(table.contains(shown.split_once("```").unwrap().0), "the README shows another end than {table}");

    let json = cacheplan(&["demo", "--format", "json"]);
    let run: Value = serde_json::from_slice(&json.stdout).unwrap();
    planned_equals_actual(&run);
    let tokens = run["tokens"].as_array().unwrap();
    assert_eq!(tokens.len(), 3);
    assert!(tokens.iter().all(|tokens| tokens.as_array().unwrap().len() == 16));
    assert!(run["report"]["peak_bytes"].as_u64().unwrap() > 0);
}

/// The first six greedy tokens are those that follow from Hugging Face's golden logits.
#[rstest]
#[case("nemotron_h", "HND")]
#[case("nemotron_h", "NHD")]
#[case("llama", "HND")]
#[case("llama", "NHD")]
#[case("mamba2", "HND")]
fn run_generates_what_hugging_face_does_and_writes_its_logits(#[case] name: &str, #[case] layout: &str) {
    let golden = std::fs::read(fixture_model(name).join("golden.safetensors")).unwrap();
    let golden = safetensors::SafeTensors::deserialize(&golden).unwrap();
    let ids: Vec<i64> = numbers(&golden, "ids", i64::from_le_bytes);
    let prompt: Vec<String> = ids[..21].iter().map(ToString::to_string).collect();

    let folder = tempfile::tempdir().unwrap();
    let logits_file = folder.path().join("logits.safetensors");
    let model = fixture_model(name);
    let output = cacheplan(&[
        "run".as_ref(),
        model.as_os_str(),
        "--prompt-ids".as_ref(),
        prompt.join(",").as_ref(),
        "--max-new-tokens".as_ref(),
        "3".as_ref(),
        "--ignore-eos".as_ref(),
        "--layout".as_ref(),
        layout.as_ref(),
        "--format".as_ref(),
        "json".as_ref(),
        "--logits".as_ref(),
        logits_file.as_os_str(),
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    let run: Value = serde_json::from_slice(&output.stdout).unwrap();
    planned_equals_actual(&run);
    assert_eq!(run["requests"][0]["prompt_tokens"], 21);

    let written = std::fs::read(&logits_file).unwrap();
    let written = safetensors::SafeTensors::deserialize(&written).unwrap();
    let shape = written.tensor("logits").unwrap().shape().to_vec();
    assert_eq!(shape[0], 3);
    let ours: Vec<f32> = numbers(&written, "logits", f32::from_le_bytes);
    // The golden prefill holds every position of the prompt; its last row chooses the first token.
    let prefill: Vec<f32> = numbers(&golden, "prefill_logits", f32::from_le_bytes);
    let last = &prefill[prefill.len() - shape[1]..];
    let difference = ours[..shape[1]].iter().zip(last).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(difference < 1e-4, "{difference}");
    let best = (0..shape[1]).max_by(|&a, &b| last[a].total_cmp(&last[b])).unwrap();
    assert_eq!(run["tokens"][0][0], best);
}

fn numbers<const N: usize, T>(file: &safetensors::SafeTensors<'_>, name: &str, read: fn([u8; N]) -> T) -> Vec<T> {
    let tensor = file.tensor(name).unwrap();
    tensor.data().as_chunks::<N>().0.iter().map(|&bytes| read(bytes)).collect()
}

#[rstest]
#[case::empty_prompt(&["--prompt-ids", ""], 2, "not a token id")]
#[case::token_out_of_vocabulary(&["--prompt-ids", "1,99999999"], 1, "vocabulary")]
#[case::too_long(&["--prompt-ids", "1", "--max-new-tokens", "1000000000"], 1, "max_seq_len")]
#[case::unknown_device(&["--prompt-ids", "1", "--device", "tpu"], 2, "`cpu` or `cuda:N`")]
#[case::an_assumption_that_nothing_reads(&["--prompt-ids", "1", "--assume", "no_such_key=1"], 1, "no_such_key")]
#[case::an_engines_flag(&["--prompt-ids", "1", "--cache-bytes", "5GiB"], 2, "`engine.cache_bytes` tells an engine something")]
#[case::logits_of_two(&["--prompt-ids", "1", "--prompt-ids", "2", "--logits", "x"], 2, "single")]
fn a_bad_request_is_a_clear_error(#[case] args: &[&str], #[case] code: i32, #[case] says: &str) {
    let model = fixture_model("llama");
    let mut all = vec!["run".as_ref(), model.as_os_str()];
    all.extend(args.iter().map(std::ffi::OsStr::new));
    let output = cacheplan(&all);
    assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
    assert!(stderr(&output).contains(says), "{}", stderr(&output));
}

/// Each case: the flags, or what the budget file says; the key that asked; why a run does not use it.
#[rstest]
#[case::a_draft(&["--draft-tokens", "3", "--mtp-layers", "1"], "", 2, "flag --mtp-layers: `speculation.mtp_layers = 1`", "no prediction layers")]
#[case::a_draft_and_a_host(&["--draft-tokens", "3", "--mtp-layers", "1", "--host-bytes", "16MiB"], "", 2, "--mtp-layers", "no prediction layers")]
#[case::a_draft_of_a_file(&[], "max_seq_len = 64\n[speculation]\ndraft_tokens = 3\nmtp_layers = 1", 1, "budget.toml:4: `speculation.mtp_layers = 1`", "no prediction layers")]
#[case::ranks(&["--tp", "2"], "", 2, "flag --tp: `parallel.tp = 2`", "the whole model on one device")]
#[case::ranks_of_a_file(&[], "parallel = { dp = 2 }", 1, "`parallel.dp = 2`", "the whole model on one device")]
#[case::mxfp8_keys(&["--kv-dtype", "mxfp8"], "", 2, "flag --kv-dtype: `dtypes.kv = \"mxfp8\"`", "no keys and values in mxfp8; int8, fp8_e4m3")]
#[case::q5_0_keys_of_a_file(&[], "dtypes = { kv = 'q5_0' }", 1, "`dtypes.kv = ", "no keys and values in q5_0")]
fn what_a_run_would_not_use_is_refused_with_the_key_that_asked_for_it(
    #[values("llama", "bamba")] model: &str,
    #[case] flags: &[&str],
    #[case] budget: &str,
    #[case] code: i32,
    #[case] asked: &str,
    #[case] reason: &str,
) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("budget.toml");
    std::fs::write(&file, budget).unwrap();
    let model = fixture_model(model);
    let mut all = vec!["run".as_ref(), model.as_os_str(), "--prompt-ids".as_ref(), "1".as_ref()];
    all.extend(["--budget".as_ref(), file.as_os_str()]);
    all.extend(flags.iter().map(std::ffi::OsStr::new));
    let refused = cacheplan(&all);
    let said = stderr(&refused).split_whitespace().collect::<Vec<_>>().join(" ").replace(" │ ", " ");
    assert_eq!(refused.status.code(), Some(code), "{said}");
    assert!(said.contains(asked) && said.contains(reason), "{said}");
    assert!(refused.stdout.is_empty(), "it ran");
}

#[rstest]
#[case("llama", &["--ssm-dtype", "bf16"], "dtypes = { ssm = 'bf16' }", "keeps no cache that takes it")]
#[case("llama", &["--conv-dtype", "f16"], "dtypes = { conv = 'f16' }", "keeps no cache that takes it")]
#[case("llama", &["--mla-cache-mode", "kvcache"], "mla_cache_mode = 'kvcache'", "has none; leave the key out")]
#[case("llama", &["--checkpoints", "2"], "workload = { checkpoints_per_sequence = 2 }", "has no managed state")]
#[case("mamba2", &["--kv-dtype", "bf16"], "dtypes = { kv = 'bf16' }", "keeps no cache that takes it")]
fn what_no_cache_of_a_run_takes_is_wrong_usage_as_a_flag(
    #[case] model: &str,
    #[case] flags: &[&str],
    #[case] budget: &str,
    #[case] reason: &str,
) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("budget.toml");
    std::fs::write(&file, budget).unwrap();
    let model = fixture_model(model);
    let run = |more: &[&str]| cacheplan(&[&["run", model.to_str().unwrap(), "--prompt-ids", "1"], more].concat());
    for (refused, code) in [(run(flags), 2), (run(&["--budget", file.to_str().unwrap()]), 1)] {
        let said = stderr(&refused);
        assert_eq!(refused.status.code(), Some(code), "{said}");
        assert!(said.contains(reason), "{said}");
    }
}

/// Each change that a run suggests is one that it takes.
#[rstest]
#[case("llama", 3)]
#[case("bamba", 3)]
#[case("llama", 88)]
fn a_run_suggests_what_it_takes(#[case] model: &str, #[case] tokens: usize) {
    let model = fixture_model(model);
    let (model, length, ids) = (model.to_str().unwrap(), "200", vec!["7"; tokens].join(","));
    let mut tries = 0;
    for kib in [24, 40, 60, 100, 200] {
        let bytes = format!("{kib}KiB");
        let run = |more: &[&str]| {
            let own = ["run", model, "--memory-bytes", &bytes, "--max-batch-size", "1"];
            cacheplan(&[&own[..], &["--prompt-ids", &ids], more].concat())
        };
        let refused = run(&["--max-seq-len", length]);
        let said = stderr(&refused);
        for line in said.lines().filter_map(|line| line.trim_start_matches([' ', '│']).strip_prefix("try ")) {
            tries += 1;
            let (change, _) = line.split_once(": ").unwrap();
            let (key, value) = change.split_once(" = ").unwrap_or_else(|| panic!("{line}"));
            let flag = match key {
                "max_seq_len" => "--max-seq-len",
                "dtypes.kv" => "--kv-dtype",
                other => panic!("a run was told to try {other}"),
            };
            let length = if flag == "--max-seq-len" { &[][..] } else { &["--max-seq-len", length] };
            let taken = run(&[&[flag, value.trim_matches('"')], length].concat());
            assert_eq!(taken.status.code(), Some(0), "{kib} KiB, {line}: {}", stderr(&taken));
        }
    }
    assert!(tries > 0);
}

#[rstest]
fn live_states_in_which_none_is_computed_are_refused_when_they_are_planned(
    #[values(&["plan"], &["run", "--prompt-ids", "1"])] command: &[&str],
    #[values("--ssm-dtype", "--conv-dtype")] flag: &str,
    #[values("fp8", "int8")] dtype: &str,
) {
    let model = fixture_model("nemotron_h");
    let mut all: Vec<&std::ffi::OsStr> = command.iter().map(std::ffi::OsStr::new).collect();
    all.extend([model.as_os_str(), flag.as_ref(), dtype.as_ref()]);
    let refused = cacheplan(&all);
    let said = stderr(&refused);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    let expected = format!("no live states are stored in `{dtype}`; write one of f32, f16, bf16");
    assert!(said.contains(flag) && said.contains(&expected), "{said}");
}

#[test]
fn a_draft_model_guesses_and_changes_nothing() {
    let model = fixture_model("llama");
    let run = |more: &[&str]| {
        let mut all = vec!["run".as_ref(), model.as_os_str(), "--format".as_ref(), "json".as_ref()];
        all.extend(["--max-seq-len", "64", "--prompt-ids", "5,9,2,11,7"].map(std::ffi::OsStr::new));
        all.extend(more.iter().map(std::ffi::OsStr::new));
        let output = cacheplan(&all);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let drafted = run(&["--draft-tokens", "3", "--draft", model.to_str().unwrap()]);
    assert_eq!(drafted["tokens"], run(&[])["tokens"]);
    // The model itself is always right.
    assert!(drafted["speed"]["accepted_tokens"].as_u64().unwrap() > 8, "{}", drafted["speed"]);
    assert_eq!(drafted["speed"]["accepted_tokens"], drafted["speed"]["drafted_tokens"]);
}

#[test]
fn a_host_tier_is_refused_where_no_prefix_can_be_kept_that_would_go_there() {
    let model = fixture_model("nemotron_h");
    let refused = cacheplan(&[
        "run".as_ref(),
        model.as_os_str(),
        "--prompt-ids".as_ref(),
        "1".as_ref(),
        "--host-bytes".as_ref(),
        "16MiB".as_ref(),
        // Nobody makes way for others either.
        "--max-batch-size".as_ref(),
        "1".as_ref(),
    ]);
    let said = stderr(&refused);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("--host-bytes") && said.contains("no prefix can be kept"), "{said}");
}

#[rstest]
#[case("llama", &["--host-bytes", "16MiB"])]
#[case("nemotron_h", &["--checkpoints", "2", "--checkpoint-dtype", "int8"])]
#[case("nemotron_h", &["--checkpoints", "2", "--host-bytes", "16MiB"])]
#[case("nemotron_h", &["--checkpoints", "2", "--checkpoint-dtype", "int8", "--host-bytes", "16MiB"])]
fn checkpoints_in_8_bits_and_a_host_tier_are_used(#[case] model: &str, #[case] flags: &[&str]) {
    let model = fixture_model(model);
    let prompt = (1..40).map(|id: u32| id.to_string()).collect::<Vec<_>>().join(",");
    let mut all = vec!["run".as_ref(), model.as_os_str(), "--format".as_ref(), "json".as_ref()];
    // One after the other, so that the second finds what the first left.
    all.extend(
        ["--max-batch-size", "1", "--max-seq-len", "64", "--prompt-ids", &prompt, "--prompt-ids", &prompt]
            .map(std::ffi::OsStr::new),
    );
    all.extend(flags.iter().map(std::ffi::OsStr::new));
    let output = cacheplan(&all);
    assert!(output.status.success(), "{}", stderr(&output));
    let run: Value = serde_json::from_slice(&output.stdout).unwrap();
    planned_equals_actual(&run);
    assert!(run["no_reuse"].is_null(), "{run}");
    assert!(run["requests"][1]["cached_tokens"].as_u64().unwrap() >= 32, "{run}");
}

#[test]
fn running_a_model_without_weights_names_the_folder() {
    let output = cacheplan(&["run".as_ref(), config(NANO).as_os_str(), "--prompt-ids".as_ref(), "1".as_ref()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("safetensors"), "{}", stderr(&output));
}

#[test]
fn simulate_compares_the_policies_on_a_workload_and_draws_them() {
    let folder = tempfile::tempdir().unwrap();
    let chart = folder.path().join("chat.svg");
    let args = ["simulate", "--workload", "rag", "--checkpoints", "64", "--format", "json", "--svg"];
    let output = cacheplan(&[args.map(std::ffi::OsStr::new).as_slice(), &[chart.as_os_str()]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let reports: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rate = |policy: &str| {
        let mut reports = reports.as_array().unwrap().iter();
        reports.find(|report| report["scenario"]["policy"] == policy).unwrap()["hit_rate"].as_f64().unwrap()
    };
    assert!(rate("coverage") > 1.1 * rate("double-buffered"));
    assert!(std::fs::read_to_string(chart).unwrap().starts_with("<svg"));
}

#[rstest]
#[case(&["--checkpoints", "0"], "no state outlives its sequence; state `workload.checkpoints_per_sequence`")]
#[case(&["--chunk", "100000"], "tokens end before token 100000")]
fn a_simulation_in_which_nothing_can_be_reused_says_why(#[case] flags: &[&str], #[case] reason: &str) {
    let output = cacheplan(&[&["simulate", "--workload", "rag", "--policy", "coverage"], flags].concat());
    assert!(output.status.success() && stderr(&output).contains(reason), "{}", stderr(&output));
    let reused = cacheplan(&["simulate", "--workload", "rag", "--policy", "coverage"]);
    assert_eq!(stderr(&reused), "");
}

/// The example in the README is what the command prints; `UPDATE_README=1 cargo test --test cli` rewrites it.
#[test]
fn the_readme_shows_a_real_plan() {
    let output = cacheplan(&["plan".as_ref(), config(NANO).as_os_str()]);
    let table = String::from_utf8(output.stdout).unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let readme = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = readme.split_once("```text\n").unwrap();
    let (shown, after) = rest.split_once("```").unwrap();
    if std::env::var_os("UPDATE_README").is_some() {
        std::fs::write(&path, format!("{before}```text\n{table}```{after}")).unwrap();
    } else {
        assert_eq!(shown, table);
    }
}

#[rstest]
#[case(&["plan", "check", "nowhere.json"])]
#[case(&["export", "nowhere.json", "--to", "vllm"])]
fn a_missing_file_is_told_once(#[case] args: &[&str]) {
    let output = cacheplan(args);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stderr(&output).matches("No such file").count(), 1, "{}", stderr(&output));
}

#[rstest]
#[case("80", "80GiB")]
#[case("4090", "rtx-4090")]
#[case("a100", "a100-80gb")]
fn a_device_that_may_be_two_things_is_refused_with_what_would_do(#[case] stated: &str, #[case] instead: &str) {
    let output = cacheplan(&["plan", config(NANO).to_str().unwrap(), "--device-memory", stated]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains(instead), "{}", stderr(&output));
}

#[test]
fn what_fits_is_told_with_its_flags_and_what_does_not_ends_with_3() {
    let fit = |more: &[&str]| {
        let args = ["fit", config("deepseek-ai__DeepSeek-V3.json").to_str().unwrap(), "--context", "32k"]
            .map(str::to_owned)
            .into_iter()
            .chain(more.iter().map(|&arg| arg.to_owned()));
        cacheplan(&args.collect::<Vec<_>>())
    };
    let output = fit(&["--sequences", "100", "--gpus", "h200", "--max-gpus", "8"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", stderr(&output));
    // Seven stages are fewer devices than eight replicas of 13 each, which the planner's own test derives by hand.
    assert!(text.contains("7 x h200") && text.contains("--pipeline-parallel-size 7"), "{text}");
    let eight = fit(&["--sequences", "104", "--gpus", "h200", "--max-gpus", "8", "--format", "csv"]);
    let eight = String::from_utf8_lossy(&eight.stdout).into_owned();
    assert!(eight.lines().any(|row| row.starts_with("h200,8,1,1,8,8,,,,true,104,")), "{eight}");
    assert_eq!(fit(&["--sequences", "100", "--gpus", "l4", "--max-gpus", "1"]).status.code(), Some(3));
}

/// Four ways to ask for the longest, each with an answer that a plan of that length holds.
#[test]
fn the_longest_sequences_that_fit_are_found_by_plan_and_fit() {
    let model = config("Qwen__Qwen3-8B.json").to_str().unwrap().to_owned();
    let plan = |length: &str| {
        let args = ["plan", &model, "--device-memory", "rtx-4090", "--max-batch-size", "2", "--max-seq-len", length];
        cacheplan(&[&args[..], &["--format", "json"]].concat())
    };
    let found = plan("auto");
    assert!(found.status.success() && stderr(&found).contains("is the longest that fits"), "{}", stderr(&found));
    let found: Value = serde_json::from_slice(&found.stdout).unwrap();
    let longest = found["limits"]["max_seq_len"].as_u64().unwrap();
    let held = |length: u64| -> Value {
        serde_json::from_slice::<Value>(&plan(&length.to_string()).stdout).unwrap()["capacity"]["sequences"].clone()
    };
    assert_eq!((held(longest), held(longest + 1)), (2.into(), 1.into()));
    let fit = ["fit", &model, "--context", "auto", "--sequences", "2", "--gpus", "rtx-4090", "--max-gpus", "1"];
    let fit = cacheplan(&[&fit[..], &["--format", "json"]].concat());
    let fit: Value = serde_json::from_slice(&fit.stdout).unwrap();
    assert!(fit["fits"][0]["holds"] == true && fit["context"].as_u64() > Some(4096), "{fit}");
    for refused in [&["config", "show", "--max-seq-len", "auto"][..], &["plan", &model, "--max-seq-len", "auto"]] {
        let output = cacheplan(refused);
        assert!(matches!(output.status.code(), Some(1 | 2)), "{}", stderr(&output));
    }
}

#[test]
fn prices_are_stated_one_by_one_above_those_of_a_file() {
    let model = config("Qwen__Qwen3-8B.json").to_str().unwrap().to_owned();
    let fit = |more: &[&str]| {
        let asked = ["fit", &model, "--context", "8k", "--sequences", "4", "--gpus", "h100,l40s,l4"];
        cacheplan(&[&asked[..], more].concat())
    };
    let output = fit(&["--price", "h100=2.49,l40s=0.86"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("1 x l40s, the cheapest that holds") && text.contains("0.86 an hour"), "{text}");
    assert!(text.contains("without a price: "), "{text}");
    for (wrong, said) in [
        ("h100", "write one such as h100=2.49"),
        ("h1000=2", "neither a size"),
        ("l4=-1", "at least 0"),
        ("b200=2", "`b200` is none of the devices of --gpus"),
    ] {
        let output = fit(&[&format!("--price={wrong}")]);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(said), "{}", stderr(&output));
    }
}

/// Each row is the plan of its layout: windows of lengths around the context, states, shared experts.
#[rstest]
fn every_row_of_fit_is_what_plan_says_of_it(
    #[values(
        "mistralai__Mistral-7B-v0.1.json",
        "meta-llama__Llama-4-Scout-17B-16E-Instruct.json",
        "Qwen__Qwen3-Next-80B-A3B-Thinking.json"
    )]
    name: &str,
    #[values("2048", "32768")] context: &str,
) {
    let model = config(name).to_str().unwrap().to_owned();
    let asked = ["--context", context, "--sequences", "1", "--gpus", "h100", "--max-gpus", "8", "--format", "json"];
    let fits = cacheplan(&[&["fit", &model][..], &asked].concat());
    let fits: Value = serde_json::from_slice(&fits.stdout).unwrap();
    let rows = fits["fits"].as_array().unwrap().iter();
    let plain = rows.filter(|fit| ["kv_dtype", "state_dtype", "engine"].iter().all(|key| fit[*key].is_null()));
    let mut seen = 0;
    for fit in plain {
        let mut args = vec!["plan".to_owned(), model.clone(), "--device-memory".to_owned()];
        args.push(match fit["devices"].as_u64().unwrap() {
            1 => "h100".to_owned(),
            devices => format!("{devices}xh100"),
        });
        args.extend(["--max-seq-len", context, "--format", "json"].map(str::to_owned));
        for key in ["tp", "pp", "dp", "ep"] {
            args.extend([format!("--{key}"), fit["parallel"][key].to_string()]);
        }
        let output = cacheplan(&args);
        let sequences = match output.status.code() {
            Some(3) => 0,
            code => {
                assert_eq!(code, Some(0), "{}", stderr(&output));
                let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
                let all = plan["deployment"]["sequences"].as_u64();
                all.or(plan["capacity"]["sequences"].as_u64()).unwrap()
            }
        };
        assert_eq!(fit["sequences"].as_u64(), Some(sequences), "{args:?}");
        seen += 1;
    }
    assert!(seen >= 10, "{seen} rows");
}

#[rstest]
#[case("Qwen__Qwen2.5-7B-Instruct.json", &["--tp", "8"], "1, 2, 4, 28")]
#[case("deepseek-ai__DeepSeek-V3.json", &["--device-memory", "3xb300"], "1, 2")]
#[case("meta-llama__Llama-3.1-8B-Instruct.json", &["--tp", "64"], "1, 2, 4, 8, 16, 32")]
fn ranks_that_do_not_divide_the_query_heads_are_refused_with_those_that_do(
    #[case] name: &str,
    #[case] flags: &[&str],
    #[case] instead: &str,
) {
    let output = cacheplan(&[&["plan", config(name).to_str().unwrap()], flags].concat());
    assert_eq!(output.status.code(), Some(1));
    let message = stderr(&output);
    assert!(message.contains("query heads") && message.contains(&format!("these do: {instead}")), "{message}");
}

/// The kernels' own command may be missing, and is then named.
#[rstest]
#[case(&["doctor"])]
#[case(&["bench", "--device", "cuda:0"])]
fn without_the_runner_a_device_is_refused(#[case] args: &[&str]) {
    let output = Command::new(env!("CARGO_BIN_EXE_cacheplan")).args(args).env("PATH", "").output().unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
    assert!(stderr(&output).contains("there is no cacheplan-gpu beside this command"), "{}", stderr(&output));
}

/// Figures are written, stand beside those of an earlier run, and fail it where they fall behind.
#[test]
fn a_bench_is_compared_with_an_earlier_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).into_os_string().into_string().unwrap();
    let (first, better, second) = (path("first.json"), path("better.json"), path("second.json"));
    let output = cacheplan(&["bench", "cache write", "--json", &first]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(String::from_utf8_lossy(&output.stdout).lines().all(|line| line.chars().count() <= 100));
    let mut bench: serde_json::Value = serde_json::from_slice(&std::fs::read(&first).unwrap()).unwrap();
    let part = bench["figures"][0]["part"].as_f64().unwrap();
    assert!(part > 0.0 && bench["figures"][0]["limit"] == "copy");
    bench["figures"][0]["part"] = (part * 100.0).into();
    std::fs::write(&better, bench.to_string()).unwrap();

    let output = cacheplan(&["bench", "cache write", "--against", &better, "--json", &second]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("more is lost than 0.1") && stderr(&output).contains("of copy before"));
    assert!(std::fs::exists(&second).unwrap());
    let allowed = cacheplan(&["bench", "cache write", "--against", &better, "--loss", "0.9999"]);
    assert!(allowed.status.success(), "{}", stderr(&allowed));

    bench["threads"] = 1000.into();
    std::fs::write(&better, bench.to_string()).unwrap();
    let refused = cacheplan(&["bench", "cache write", "--against", &better]);
    assert!(stderr(&refused).contains("measured with 1000 threads"), "{}", stderr(&refused));
}

/// What it is asked and what it ends with pass through.
#[cfg(unix)]
#[rstest]
#[case(&["doctor", "--device", "emulator", "--seed", "7"], "doctor --device emulator --format table --seed 7")]
#[case(&["bench", "norm", "--device", "cuda:1", "--json", "f"], "bench --device cuda:1 --json f -- norm")]
fn the_runner_is_asked_what_was_asked(#[case] args: &[&str], #[case] expected: &str, #[values(0, 3)] status: i32) {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let runner = folder.path().join("cacheplan-gpu");
    std::fs::write(&runner, format!("#!/bin/sh\necho \"$@\"\nexit {status}\n")).unwrap();
    std::fs::set_permissions(&runner, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_cacheplan"));
    let output = command.args(args).env("PATH", folder.path()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), expected);
    assert_eq!(output.status.success(), status == 0, "{}", stderr(&output));
}

/// What stands behind `--` is an engine's command, which no mistyped flag is a word of.
#[rstest]
#[case(&["fit", "m", "--user", "100"], "'--user'")]
#[case(&["plan", "--device", "h100", "vllm", "serve", "m"], "a command that starts an engine stands behind `--`")]
fn a_wrong_word_is_not_sent_behind_two_dashes(#[case] args: &[&str], #[case] expected: &str) {
    let output = cacheplan(args);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains(expected) && !message.contains("as a value"), "{message}");
}

/// The names that people have for them mean what ours do.
#[test]
fn fit_knows_its_flags_by_other_names() {
    let model = config("Qwen__Qwen3-0.6B.json");
    let fit = |flags: &[&str]| cacheplan(&[&["fit", model.to_str().unwrap()][..], flags].concat());
    let ours = fit(&["--context", "4k", "--sequences", "2", "--gpus", "l4"]);
    let others = fit(&["--ctx", "4k", "--users", "2", "--device", "l4"]);
    assert!(ours.status.success(), "{}", stderr(&ours));
    assert_eq!(ours.stdout, others.stdout);
    // A dtype that is stated is not varied, and stands in the command that is printed.
    let stated = fit(&["--context", "4k", "--sequences", "2", "--gpus", "l4", "--kv-dtype", "bf16", "--format", "csv"]);
    let stated = String::from_utf8(stated.stdout).unwrap();
    assert!(stated.lines().count() > 1 && !stated.contains("f8_e4m3"), "{stated}");
}
