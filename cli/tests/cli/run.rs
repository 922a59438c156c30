//! `run` and `demo` generate, in caches that are as they were planned.

use std::path::{Path, PathBuf};

use rstest::rstest;
use serde_json::Value;

use super::{cacheplan, stderr};

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
