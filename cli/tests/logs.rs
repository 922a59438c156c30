//! `check` and `calibrate`: an engine's log beside a plan, as their users meet them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rstest::rstest;
use serde_json::Value;

fn fixture(folder: &str, name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(folder).join(name)
}

fn log(name: &str) -> String {
    fixture("logs", name).display().to_string()
}

fn cacheplan(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_cacheplan")).args(args).env("NO_COLOR", "1").output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Writes the plan of Qwen3.5-9B for what the engine of the log was given, with `more` flags.
fn plan(folder: &Path, memory: &str, more: &[&str]) -> String {
    let model = fixture("configs", "Qwen__Qwen3.5-9B.json").display().to_string();
    let file = folder.join("plan.json").display().to_string();
    let mut args = vec!["plan", &model, "--as", "vllm@0.19.0", "--max-seq-len", "262144", "--max-num-tokens", "8192"];
    args.extend(["--memory-bytes", memory, "--out", &file]);
    args.extend(more);
    let output = cacheplan(&args);
    assert!(output.status.success(), "{}", text(&output.stderr));
    file
}

const VLLM: &str = "vllm-0.19.0-qwen3.5-9b.log";

#[test]
fn a_plan_that_the_engine_holds_ends_well_and_says_every_number() {
    let folder = tempfile::tempdir().unwrap();
    let plan = plan(folder.path(), "20.27GiB", &[]);
    let output = cacheplan(&["check", "--log", &log(VLLM), "--plan", &plan]);
    let table = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{table}{}", text(&output.stderr));
    for name in ["max_seq_len", "cache_bytes", "tokens_per_block", "tokens", "concurrency", "weights", "graphs"] {
        assert!(table.lines().any(|line| line.starts_with(name)), "{name}: {table}");
    }
    assert!(table.starts_with("vllm 0.19.0\n"), "{table}");
}

#[test]
fn drift_has_its_exit_code_its_names_and_its_reason_as_json() {
    let folder = tempfile::tempdir().unwrap();
    let plan = plan(folder.path(), "24GiB", &[]);
    let output = cacheplan(&["check", "--log", &log(VLLM), "--plan", &plan, "--format", "json"]);
    assert_eq!(output.status.code(), Some(5), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("plans it: cache_bytes"), "{}", text(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&found["engine"], &found["version"]), (&"vllm".into(), &"0.19.0".into()));
    assert_eq!(found["drifted"], true);
    let row = |name: &str| found["rows"].as_array().unwrap().iter().find(|row| row["name"] == name).unwrap().clone();
    assert_eq!(row("cache_bytes")["drift"], "drift");
    assert_eq!(row("cache_bytes")["planned"], 24u64 << 30);
    assert_eq!(row("tokens")["drift"], "follows");
    assert_eq!(row("tokens")["logged"], serde_json::json!({"low": 165_792, "high": 165_792}));
    assert_eq!(row("tokens_per_block")["drift"], "none");
    assert_eq!(row("weights")["drift"], "estimate");
}

#[test]
fn a_log_can_be_piped_in() {
    let folder = tempfile::tempdir().unwrap();
    let plan = plan(folder.path(), "20.27GiB", &[]);
    let mut child = Command::new(env!("CARGO_BIN_EXE_cacheplan"))
        .args(["check", "--log", "-", "--plan", &plan])
        .stdin(Stdio::from(std::fs::File::open(log(VLLM)).unwrap()))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let both = cacheplan(&["check", "--log", "-", "--plan", "-"]);
    assert_eq!(both.status.code(), Some(2));
}

#[test]
fn what_an_engine_logged_is_measured_in_the_next_plan() {
    let folder = tempfile::tempdir().unwrap();
    let measured = folder.path().join("measured.toml").display().to_string();
    let output = cacheplan(&["calibrate", "--log", &log(VLLM), "--out", &measured]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let plan = plan(folder.path(), "20.27GiB", &["--measured", &measured]);
    let plan: Value = serde_json::from_str(&std::fs::read_to_string(plan).unwrap()).unwrap();
    let line =
        |name: &str| plan["ledger"].as_array().unwrap().iter().find(|line| line["name"] == name).unwrap().clone();
    assert_eq!(line("weights")["source"], "measured");
    assert_eq!(line("weights")["note"], format!("logged by vllm 0.19.0, {VLLM}"));
    assert_eq!(line("graphs")["source"], "measured");
    // Without a file they are printed.
    let printed = cacheplan(&["calibrate", "--log", &log(VLLM)]);
    assert_eq!(text(&printed.stdout), std::fs::read_to_string(&measured).unwrap());
    let other = cacheplan(&[
        "plan",
        &fixture("configs", "Qwen__Qwen3.5-9B.json").display().to_string(),
        "--tp",
        "2",
        "--measured",
        &measured,
    ]);
    assert_eq!(other.status.code(), Some(1));
    assert!(text(&other.stderr).contains("the measured lines are those of tp 1, the plan is for tp 2"));
}

/// What a run measures itself is written by the same writer, and a plan from it says so.
#[test]
fn what_a_profile_measured_is_measured_in_the_next_plan() {
    let folder = tempfile::tempdir().unwrap();
    let measured = folder.path().join("measured.toml").display().to_string();
    let model = fixture("models", "llama").display().to_string();
    let limits = ["--max-seq-len", "64", "--max-batch-size", "2", "--max-num-tokens", "32"];
    let output = cacheplan(&[&["profile", &model, "--out", &measured], &limits[..]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let plan = |tokens: &str| -> Value {
        let limits = ["--max-seq-len", "64", "--max-batch-size", "2", "--max-num-tokens", tokens];
        let flags = ["plan", &model, "--measured", &measured, "--format", "json"];
        let output = cacheplan(&[&flags, &limits[..]].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let line = |plan: &Value, name: &str| {
        plan["ledger"].as_array().unwrap().iter().find(|line| line["name"] == name).unwrap().clone()
    };
    let same = plan("32");
    for name in ["weights", "activations"] {
        let line = line(&same, name);
        assert_eq!((&line["source"], &line["note"]), (&"measured".into(), &"measured on the device".into()));
    }
    // The file of the weights has 347,480 bytes; the process holds little beside them.
    let bytes = line(&same, "weights")["bytes"].as_u64().unwrap();
    assert!((345_344..1_345_344).contains(&bytes), "{bytes}");
    // At other limits the step is scaled, and no longer measured.
    assert_eq!(line(&plan("64"), "activations")["source"], "assumed");
    let unwritable = cacheplan(&["profile", &model, "--out", "/nowhere/m.toml"]);
    assert_eq!(unwritable.status.code(), Some(1));
    assert!(text(&unwritable.stderr).contains("/nowhere/m.toml"), "{}", text(&unwritable.stderr));
}

/// A draft's step is measured behind the model's, and its weights are not counted among the model's.
#[test]
fn a_profile_measures_a_draft_beside_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let measured = folder.path().join("measured.toml").display().to_string();
    let model = fixture("models", "llama").display().to_string();
    let limits = ["--max-seq-len", "64", "--max-batch-size", "2", "--max-num-tokens", "32"];
    let drafting = ["--draft", &model, "--draft-tokens", "3"];
    let output = cacheplan(&[&["profile", &model, "--out", &measured], &drafting[..], &limits[..]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let plan = ["plan", &model, "--measured", &measured, "--format", "json"];
    let output = cacheplan(&[&plan, &drafting[..], &limits[..]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
    let line =
        |name: &str| plan["ledger"].as_array().unwrap().iter().find(|line| line["name"] == name).unwrap().clone();
    assert_eq!(line("activations")["source"], "measured");
    let (weights, draft) =
        (line("weights")["bytes"].as_u64().unwrap(), line("draft weights")["bytes"].as_u64().unwrap());
    // The same file twice: the process holds little beside it.
    assert!((345_344..1_345_344).contains(&weights) && (345_344..350_000).contains(&draft), "{weights}, {draft}");
}

/// A start that failed: what failed, and what its command says would do.
#[test]
fn a_failed_start_is_answered_by_its_command() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, file) = (std::fs::read_to_string(log(VLLM)).unwrap(), folder.path().join("failed.log"));
    let begun = &whole[..whole.find("GPU KV cache size").unwrap()];
    let begun = &begun[..begun.rfind('\n').unwrap()];
    std::fs::write(&file, format!("{begun}\nValueError: To serve at least one request with the model's max seq len"))
        .unwrap();
    let failed = "vllm did not start: one sequence of the longest length does not fit";
    let checked = |args: &[&str]| {
        let output = cacheplan(&[&["check", "--log", file.to_str().unwrap()][..], args].concat());
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let model = fixture("configs", "meta-llama__Llama-3.1-8B-Instruct.json").display().to_string();
    let command =
        |device, length| checked(&["--device", device, "--", "vllm", "serve", &model, "--max-model-len", length]);
    let (code, out, err) = command("l4", "131072");
    assert!(code == Some(3) && err.contains(failed) && out.contains("CHANGES"), "{out}{err}");
    let (code, _, err) = command("h100", "4096");
    assert!(code == Some(5) && err.contains(failed) && err.contains("its command starts"), "{err}");
    let said = "ValueError: max_num_active_seqs (9) cannot be greater than max_num_seqs (8).";
    std::fs::write(&file, format!("{begun}\n{said}")).unwrap();
    let refused = ["vllm", "serve", &model, "--max-num-seqs", "8", "--max-num-active-seqs", "9"];
    let (code, _, err) = checked(&[&["--device", "h100", "--"][..], &refused].concat());
    assert!(code == Some(3) && err.contains("did not start: what its command is refused for"), "{err}");
}

#[rstest]
#[case("torn.log", "this looks like vllm, but it ends before `GPU KV cache size: 165,792 tokens`")]
#[case("foreign.log", "none of its 2 lines is of the start of vllm, sglang, tensorrt-llm, llama.cpp")]
#[case("large.log", "line 1 has a number that is more than any device has")]
#[case("both.log", "lines of both vllm and llama.cpp")]
#[case("absent.log", "No such file")]
fn a_log_that_says_nothing_is_an_error_that_names_it(#[case] name: &str, #[case] expected: &str) {
    let folder = tempfile::tempdir().unwrap();
    let whole = std::fs::read_to_string(log(VLLM)).unwrap();
    let torn = &whole[..whole.find("GPU KV cache size").unwrap()];
    let both = whole.clone() + &std::fs::read_to_string(log("llama.cpp-gpt-oss-20b.log")).unwrap();
    let logs = [
        ("torn.log", torn),
        ("foreign.log", "hello\u{1b}[2J\nworld\n"),
        ("large.log", "GPU KV cache size: 99999999999999999999999 tokens\n"),
        ("both.log", &both),
    ];
    for (name, text) in logs {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let file = folder.path().join(name).display().to_string();
    let output = cacheplan(&["calibrate", "--log", &file]);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains(&file) && error.contains(expected), "{error}");
    assert!(!error.contains('\u{1b}'), "{error:?}");
}

#[rstest]
#[case("[lines]\nweight = { bytes = 1 }\n", "measured.toml:2: unknown field `weight`")]
#[case("[lines]\n", "`[lines]` is empty")]
fn measured_lines_that_are_wrong_name_the_line(#[case] toml: &str, #[case] expected: &str) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("measured.toml");
    std::fs::write(&file, toml).unwrap();
    let model = fixture("configs", "Qwen__Qwen3.5-9B.json").display().to_string();
    let output = cacheplan(&["plan", &model, "--measured", &file.display().to_string()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
}

#[test]
fn a_plan_of_an_engine_without_a_version_in_its_log_takes_it_from_the_flag() {
    let folder = tempfile::tempdir().unwrap();
    let model = fixture("configs", "meta-llama__Llama-3.1-8B-Instruct.json").display().to_string();
    let plan = folder.path().join("plan.json").display().to_string();
    let made = cacheplan(&[
        "plan",
        &model,
        "--as",
        "tensorrt-llm",
        "--kv-dtype",
        "fp8",
        "--memory-bytes",
        "16.05GiB",
        "--max-seq-len",
        "4096",
        "--out",
        &plan,
    ]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    let file = log("tensorrt-llm-llama-3.1-8b-fp8.log");
    let output = cacheplan(&["check", "--log", &file, "--plan", &plan, "--as", "tensorrt-llm@1.0.0"]);
    assert_eq!(output.status.code(), Some(0), "{}{}", text(&output.stdout), text(&output.stderr));
    assert!(text(&output.stdout).starts_with("tensorrt-llm 1.0.0\n"), "{}", text(&output.stdout));
}
