//! Flags that stand above the budget file, and the plans they lead to.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use cacheplan::planner::BudgetKey;
use rstest::rstest;
use serde_json::Value;

const NANO: &str = "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16.json";
const GEMMA: &str = "google__gemma-3-1b-it.json";

fn config(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/configs").join(name)
}

/// Runs `cacheplan COMMAND… MODEL FLAGS…`; `FILE` among the flags is a path in `folder`.
fn cacheplan(command: &[&str], model: Option<&str>, flags: &[&str], folder: &Path) -> Output {
    let mut run = Command::new(env!("CARGO_BIN_EXE_cacheplan"));
    run.args(command).env("NO_COLOR", "1");
    run.args(model.map(config));
    for flag in flags {
        match flag.strip_prefix("FILE:") {
            Some(name) => run.arg(folder.join(name)),
            None => run.arg(flag),
        };
    }
    run.output().unwrap()
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn plan(model: &str, flags: &[&str]) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let output = cacheplan(&["plan"], Some(model), &[flags, &["--format", "json"]].concat(), folder.path());
    serde_json::from_str(&stdout(&output)).unwrap()
}

#[test]
fn flags_size_a_plan_without_a_budget_file() {
    let flags = ["--max-seq-len", "4096", "--memory-bytes", "4GiB", "--prompt", "1000", "--output", "24"];
    let long = plan(NANO, &flags[..4]);
    let short = plan(NANO, &flags);
    let sequences = |plan: &Value| plan["capacity"]["sequences"].as_u64().unwrap();
    assert!(sequences(&short) > sequences(&long));
    let checkpoints = plan(NANO, &[&flags[..], &["--checkpoints", "2", "--checkpoint-dtype", "int8"]].concat());
    assert!(checkpoints["pools"].as_array().unwrap().iter().any(|pool| pool["id"] == "checkpoint.ssm.0"));
    let tiered = plan(NANO, &[&flags[..], &["--host-bytes", "1GiB"]].concat());
    assert!(tiered["host"]["sequences"].as_u64().unwrap() > 0);
    let drafting = plan(NANO, &[&flags[..], &["--draft-tokens", "3", "--draft-scheme", "replay"]].concat());
    assert_eq!(drafting["limits"]["draft_positions"], 4);
}

#[test]
fn a_device_alone_is_a_budget_and_what_does_not_fit_says_so() {
    let planned = plan(GEMMA, &["--device-memory", "24GiB", "--weights", "2GB", "--max-seq-len", "8192"]);
    assert_eq!(planned["capacity"]["capped_by"], "memory");
    let sum: u64 = planned["ledger"].as_array().unwrap().iter().map(|line| line["bytes"].as_u64().unwrap()).sum();
    assert_eq!(sum, (24u64 << 30) * 9 / 10);
    let folder = tempfile::tempdir().unwrap();
    let refused = cacheplan(&["plan"], Some(NANO), &["--device-memory", "24GiB"], folder.path());
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(3), "{message}");
    assert!(message.contains("most of it `weights`") && message.contains("of the 21.60 GiB allowed"), "{message}");
}

#[test]
fn a_device_by_name_has_its_nominal_memory_which_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--device-memory", "RTX-4090", "--weights", "2GB"];
    let explained = cacheplan(&["plan", "explain"], Some(GEMMA), &flags, folder.path());
    let notes = String::from_utf8_lossy(&explained.stderr).into_owned();
    assert!(notes.contains("note: NVIDIA RTX 4090 (nominal) has 23.99 GiB"), "{notes}");
    let text = stdout(&explained);
    assert!(text.contains("NVIDIA RTX 4090 (nominal): what nvidia-smi reports for one"), "{text}");
    let planned = plan(GEMMA, &flags);
    let sum: u64 = planned["ledger"].as_array().unwrap().iter().map(|line| line["bytes"].as_u64().unwrap()).sum();
    assert_eq!(sum, (24_564u64 << 20) * 9 / 10);
    let shown = stdout(&cacheplan(&["config", "show", "--origin"], None, &flags, folder.path()));
    assert!(shown.contains("default for the stated device"), "{shown}");
}

#[test]
fn a_flag_stands_above_the_environment_that_above_the_file_and_origins_say_so() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("b.toml");
    std::fs::write(&file, "max_seq_len = 1000\nmax_batch_size = 2\nmax_num_tokens = 512\n").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_cacheplan"))
        .args(["config", "show", "--origin", "--budget"])
        .arg(&file)
        .args(["--max-seq-len", "3000", "--cache-bytes", "1GiB", "--device-memory", "80GiB"])
        .env("CACHEPLAN__MAX_SEQ_LEN", "2000")
        .env("CACHEPLAN__MAX_BATCH_SIZE", "5")
        .output()
        .unwrap();
    let text = stdout(&output);
    let line = |key: &str| {
        let line = text.lines().find(|line| line.split_whitespace().next() == Some(key)).unwrap();
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(line("max_seq_len"), "max_seq_len 3000 flag --max-seq-len");
    assert_eq!(line("max_batch_size"), "max_batch_size 5 environment CACHEPLAN__MAX_BATCH_SIZE");
    assert!(line("max_num_tokens").ends_with("b.toml:3"), "{text}");
    assert_eq!(line("engine.cache_bytes"), "engine.cache_bytes 1073741824 flag --cache-bytes");
    assert_eq!(line("memory.fraction"), "memory.fraction 0.9 default for the stated device");
    assert_eq!(line("tokens_per_block"), "tokens_per_block 16 default");
}

#[test]
fn keys_without_a_short_story_have_flags_too() {
    let flags = ["--layout", "NHD", "--kv-dtype", "f32", "--memory-fraction", "0.5", "--memory-of", "total"];
    let planned = plan(GEMMA, &[&flags[..], &["--device-memory", "24GiB", "--weights", "2GB"]].concat());
    let resources = planned["resources"].as_array().unwrap();
    let paged = resources.iter().find(|resource| resource["kind"] == "kv_paged").unwrap();
    assert_eq!(paged["handler"]["layout"], "NHD");
    let sum: u64 = planned["ledger"].as_array().unwrap().iter().map(|line| line["bytes"].as_u64().unwrap()).sum();
    assert_eq!(sum, (24u64 << 30) / 2);
    let folder = tempfile::tempdir().unwrap();
    for (flag, value) in [("--prefix-caching", "true"), ("--prefix-caching=false", "false")] {
        let shown = stdout(&cacheplan(&["config", "show"], None, &[flag], folder.path()));
        assert_eq!(shown, format!("engine.prefix_caching = {value}\n"));
    }
}

#[test]
fn ranks_print_what_they_agreed_on_and_each_stage() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--pp", "2", "--tp", "2", "--memory-bytes", "4GiB"];
    let ranks = cacheplan(&["plan"], Some(NANO), &[&flags[..], &["--ranks"]].concat(), folder.path());
    let text = stdout(&ranks);
    assert!(text.starts_with("RANKS   4 (tp 2, pp 2), 2 alike in each stage\nAGREED  "), "{text}");
    assert!(text.contains("\nSTAGE 0\n") && text.contains("\nSTAGE 1\n"), "{text}");
    let json = plan(NANO, &[&flags[..], &["--ranks"]].concat());
    assert_eq!(json["stages"].as_array().unwrap().len(), 2);
    let second = plan(NANO, &[&flags[..], &["--stage", "1"]].concat());
    assert_eq!(second, json["stages"][1]);
    assert_eq!(second["capacity"]["sequences"], json["agreement"]["sequences"]);
}

/// What a plan was made with proves it; without one of these it is another plan's.
#[rstest]
#[case::flags(NANO, &["--memory-bytes", "4GiB"], &[])]
#[case::a_device(GEMMA, &["--device-memory", "24GiB", "--weights", "2GB"], &[])]
#[case::a_stage(NANO, &["--pp", "2", "--memory-bytes", "4GiB"], &["--stage", "1"])]
#[case::one_of_four_ranks(NANO, &["--tp", "4", "--memory-bytes", "4GiB"], &[])]
#[case::a_draft(NANO, &["--draft-tokens", "2", "--draft", "DRAFT"], &[])]
#[case::a_measurement(NANO, &["--device-memory", "141GiB", "--measurement", "FILE:measured.json"], &[])]
#[case::an_assumption(NANO, &["--assume", "head_dim=256"], &[])]
fn check_proves_a_plan_for_what_it_was_made_with(#[case] model: &str, #[case] made: &[&str], #[case] of: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let measured = r#"{ "resident_bytes": 60000000000, "forward_bytes": 1000000000, "free_bytes": 80000000000 }"#;
    std::fs::write(folder.path().join("measured.json"), measured).unwrap();
    let draft = config(GEMMA);
    let made: Vec<&str> =
        made.iter().map(|flag| if *flag == "DRAFT" { draft.to_str().unwrap() } else { flag }).collect();
    let out = ["--out", "FILE:plan.json"];
    stdout(&cacheplan(&["plan"], Some(model), &[&made[..], of, &out].concat(), folder.path()));
    let against = |flags: &[&str]| {
        let model = config(model);
        let checked = ["FILE:plan.json", "--model", model.to_str().unwrap()];
        cacheplan(&["plan", "check"], None, &[&checked[..], flags].concat(), folder.path())
    };
    let proved = stdout(&against(&made));
    assert!(proved.contains("are proved for this model, budget and device"), "{proved}");
    assert_eq!(against(&[]).status.code(), Some(5));
}

#[test]
fn flags_of_a_check_without_its_model_are_wrong_usage() {
    let folder = tempfile::tempdir().unwrap();
    stdout(&cacheplan(&["plan"], Some(NANO), &["--out", "FILE:plan.json"], folder.path()));
    let checked = cacheplan(&["plan", "check"], None, &["FILE:plan.json", "--tp", "2"], folder.path());
    assert_eq!(checked.status.code(), Some(2));
}

#[test]
fn a_written_plan_has_the_engine_that_was_asked_about() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--as", "vllm@0.24.0", "--cache-bytes", "24GiB", "--out", "FILE:p.json"];
    stdout(&cacheplan(&["plan"], Some(NANO), &flags, folder.path()));
    let written: Value = serde_json::from_slice(&std::fs::read(folder.path().join("p.json")).unwrap()).unwrap();
    assert_eq!((&written["engine"]["name"], &written["engine"]["version"]), (&"vllm".into(), &"0.24.0".into()));
}

#[rstest]
#[case("table", "\nENGINE  vllm 0.33.0\n")]
#[case("json", "\"engine\": {")]
#[case("yaml", "\nengine:\n  name: vllm\n")]
#[case("markdown", "\n## vllm 0.33.0 would allocate\n")]
fn every_format_of_a_text_prints_the_engine(#[case] format: &str, #[case] says: &str) {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--as", "vllm", "--cache-bytes", "24GiB", "--format", format];
    let text = stdout(&cacheplan(&["plan"], Some(NANO), &flags, folder.path()));
    assert!(text.contains(says), "{text}");
}

#[rstest]
#[case(&["--as", "vllm", "--cache-bytes", "24GiB", "--format", "svg"], "with --as use")]
#[case(&["--as", "vllm", "--cache-bytes", "24GiB", "--format", "html"], "with --as use")]
#[case(&["--as", "vllm", "--cache-bytes", "24GiB", "--format", "dot"], "with --as use")]
#[case(&["--ranks"], "there is one rank")]
#[case(&["--stage", "1"], "there is one rank")]
#[case(&["--pp", "2", "--stage", "2"], "the stages are 0 to 1")]
#[case(&["--pp", "2", "--ranks", "--format", "svg"], "--stage N")]
#[case(&["--pp", "2", "--ranks", "--format", "html"], "--stage N")]
#[case(&["--tp", "many"], "invalid value")]
#[case(&["--memory-bytes", "-1"], "-1")]
#[case(&["--mtp-layers", "4294967295", "--draft-tokens", "1"], "4294967295 is not in 0..=1024")]
#[case(&["--prompt", "{}"], "flag --prompt: expected one of `fixed`, `uniform`")]
#[case(&["--device-memory", "h1000"], "did you mean h100? Those are: a10, a100-40gb")]
#[case(&["--max-seq-len", "18446744073709551615"], "is not in 1..=4294967296")]
#[case(&["--max-seq-len", "-1"], "invalid value '-1' for '--max-seq-len")]
#[case(&["--max-batch-size", "0"], "0 is not in 1..=4294967296")]
#[case(&["--tp", "0"], "0 is not in 1..=4096")]
#[case(&["--prompt", "many"], "a number of tokens from 1 to 4294967296, or a distribution")]
#[case(&["--prompt", "18446744073709551615"], "a number of tokens from 1 to 4294967296, or a distribution")]
#[case(&["--prompt", "{ fixed = -4 }"], "flag --prompt")]
#[case(&["--prefix-reuse", "NaN"], "flag --prefix-reuse")]
#[case(&["--kv-dtype", "fp7"], "flag --kv-dtype: unknown dtype `fp7`")]
#[case(&["--ssm-dtype", "int8"], "flag --ssm-dtype: no live states are stored in `int8`; write one of f32, f16, bf16")]
#[case(&["--max-seq-len", "32q"], "`32q` is not a number of tokens; write one such as 32768, 32k")]
#[case(&["--cache-bytes", "5GiB"], "--cache-bytes tells an engine something; name the engine with --as")]
#[case(&["--draft-scheme", "replay"], "flag --draft-scheme: `speculation.draft_tokens` (--draft-tokens) is missing")]
fn what_cannot_be_shown_or_read_is_wrong_usage(#[case] flags: &[&str], #[case] says: &str) {
    let folder = tempfile::tempdir().unwrap();
    let output = cacheplan(&["plan"], Some(NANO), flags, folder.path());
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains(says), "{message}");
}

#[rstest]
#[case(&["--as", "vllm"], "a device (--device-memory)")]
#[case(&["--description", "FILE:none.toml"], "none.toml")]
#[case(&["--host-bytes", "1KiB"], "host.bytes")]
#[case(&["--measurement", "FILE:none.json"], "none.json")]
#[case(&["--measurement", "FILE:empty.json"], "no measurement: not valid JSON: EOF while parsing a value at line 1 column 0; JSON with resident_bytes")]
#[case(&["--budget", "FILE:bytes"], "bytes: this is no text")]
fn a_bad_value_names_its_flag(#[case] flags: &[&str], #[case] says: &str) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("empty.json"), "").unwrap();
    std::fs::write(folder.path().join("bytes"), b"\xff\xfe").unwrap();
    let output = cacheplan(&["plan"], Some(NANO), flags, folder.path());
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains(says) && !message.contains("panicked"), "{message}");
}

/// The message of a wrong file may begin like that of a wrong flag.
#[test]
fn a_wrong_file_is_no_wrong_usage_whatever_it_is_called() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("flag --budget"), "max_seq_length = 1\n").unwrap();
    let mut run = Command::new(env!("CARGO_BIN_EXE_cacheplan"));
    run.current_dir(folder.path()).arg("plan").arg(config(NANO)).args(["--budget", "flag --budget"]);
    let output = run.output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("flag --budget:1: unknown field `max_seq_length`"), "{message}");
}

#[test]
fn the_plan_of_a_full_device_says_which_change_admits_more() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--device-memory", "24GiB", "--weights", "2GB", "--max-seq-len", "8192"];
    let table = stdout(&cacheplan(&["plan"], Some(GEMMA), &flags, folder.path()));
    let sequences = |flags: &[&str]| plan(GEMMA, flags)["capacity"]["sequences"].as_u64().unwrap();
    let half = sequences(&[&flags[..4], &["--max-seq-len", "4096"]].concat());
    let narrow = sequences(&[&flags[..], &["--kv-dtype", "fp8"]].concat());
    for line in [
        format!("--max-seq-len 4096 would admit {half} sequences"),
        format!("--kv-dtype f8_e4m3 would admit {narrow} sequences"),
    ] {
        assert!(table.contains(&line), "{line}\n{table}");
    }
    let capped = cacheplan(&["plan"], Some(GEMMA), &[&flags[..], &["--max-batch-size", "2"]].concat(), folder.path());
    let most = format!("KNOBS     --max-batch-size {} would admit", sequences(&flags));
    assert!(stdout(&capped).contains(&most), "{most}");
    let unlimited = stdout(&cacheplan(&["plan"], Some(GEMMA), &[], folder.path()));
    assert!(!unlimited.contains("KNOBS"), "{unlimited}");
    let more = cacheplan(&["plan"], Some(GEMMA), &[&flags[..], &["--max-batch-size", "9000"]].concat(), folder.path());
    let said = String::from_utf8(more.stderr).unwrap();
    let missing =
        format!("note: max_batch_size 9000 was asked for, and {} fit: caches of 9000 need ", sequences(&flags));
    assert!(said.contains(&missing), "{said}");
}

/// A number of devices is stated with a layout for as many.
#[rstest]
#[case::that_fits("8xh200", "KNOBS")]
#[case::that_does_not_fit("8xh100", "try ")]
fn what_is_suggested_is_taken_as_it_stands(#[case] devices: &str, #[case] before: &str) {
    const DEEPSEEK: &str = "deepseek-ai__DeepSeek-V3.json";
    let folder = tempfile::tempdir().unwrap();
    let run = |flags: &[&str]| cacheplan(&["plan"], Some(DEEPSEEK), flags, folder.path());
    let output = run(&["--device-memory", devices]);
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    let mut lines = said.lines().filter_map(|line| line.split_once("--device-memory "));
    let (word, rest) = lines.next_back().unwrap_or_else(|| panic!("{said}"));
    assert!(said.contains(before) && !word.contains("note"), "{said}");
    let changes = rest.split([':', 'w']).next().unwrap();
    let flags: Vec<&str> = std::iter::once("--device-memory").chain(changes.split_whitespace()).collect();
    let taken = stdout(&run(&flags));
    let sequences: String = rest.chars().skip(changes.len()).skip_while(|c| !c.is_ascii_digit()).collect();
    let sequences = sequences.split_whitespace().next().unwrap();
    assert!(taken.contains(&format!("IN ALL    {sequences} sequences")), "{flags:?}: {sequences}\n{taken}");
}

/// Who wrote a file is told what to write in it.
#[test]
fn changes_are_worded_as_the_budget_is_stated() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("b.toml"), "max_seq_len = 8192\nmemory.bytes = '128MiB'\n").unwrap();
    let table = stdout(&cacheplan(&["plan"], Some(GEMMA), &["--budget", "FILE:b.toml"], folder.path()));
    assert!(table.contains("dtypes.kv = \"f8_e4m3\" would admit"), "{table}");
    let refused = |flags: &[&str]| {
        let output = cacheplan(&["plan"], Some(GEMMA), flags, folder.path());
        assert_eq!(output.status.code(), Some(3));
        String::from_utf8(output.stderr).unwrap()
    };
    let message = refused(&["--budget", "FILE:b.toml", "--memory-bytes", "8MiB"]);
    assert!(message.contains("try max_seq_len = "), "{message}");
    let message = refused(&["--memory-bytes", "8MiB"]);
    assert!(message.contains("try --max-seq-len ") && !message.contains("max_seq_len ="), "{message}");
}

/// Weights that tensor parallel ranks hold again and again are what experts over replicas hold once.
#[test]
fn more_devices_are_tried_in_the_layouts_that_engines_run() {
    let folder = tempfile::tempdir().unwrap();
    let model = "deepseek-ai__DeepSeek-V3.json";
    let flags = ["--device-memory", "h200", "--max-seq-len", "32768"];
    let refused = cacheplan(&["plan"], Some(model), &flags, folder.path());
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    let spread = plan(model, &[&flags[..], &["--dp", "8", "--ep", "8"]].concat());
    let sequences = spread["deployment"]["sequences"].as_u64().unwrap();
    assert!(message.contains(&format!("try --dp 8 --ep 8: {sequences} sequence")), "{message}");
}

#[rstest]
#[case(&["--memory-bytes", "80"], "`80` has no unit; write \"80GiB\", or \"80B\" for bytes", 2)]
#[case(&["--memory-bytes", "80g"], "write \"80GiB\" or \"80GB\"", 2)]
#[case(&["--memory-bytes", "80B"], "does not fit", 3)]
#[case(&["--device-memory", "24GiB", "--weights", "20"], "`20` has no unit", 2)]
fn a_size_without_a_unit_is_asked_again(#[case] flags: &[&str], #[case] expected: &str, #[case] code: i32) {
    let folder = tempfile::tempdir().unwrap();
    let refused = cacheplan(&["plan"], Some(GEMMA), flags, folder.path());
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(code) && message.contains(expected), "{message}");
}

#[test]
fn tokens_and_sizes_are_read_as_people_write_them() {
    let exact = plan(GEMMA, &["--max-seq-len", "32768", "--memory-bytes", "24GiB"]);
    assert_eq!(plan(GEMMA, &["--max-seq-len", "32k", "--memory-bytes", "24 gib"]), exact);
}

#[test]
fn a_note_about_the_device_stands_before_no_error_of_something_else() {
    let folder = tempfile::tempdir().unwrap();
    let refused = cacheplan(&["plan"], Some("none.json"), &["--device-memory", "h100"], folder.path());
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!message.contains("nvidia-smi") && message.contains("no such file"), "{message}");
}

/// An engine that divides its bytes may hold nothing where the caches alone would fit.
#[test]
fn what_an_engine_is_short_of_is_what_it_takes() {
    let folder = tempfile::tempdir().unwrap();
    let flags = |bytes: &str| ["--as", "vllm", "--max-seq-len", "262144", "--cache-bytes", bytes].map(str::to_owned);
    let at = |bytes: &str| {
        let flags = flags(bytes);
        let output = cacheplan(&["plan"], Some(NANO), &flags.each_ref().map(String::as_str), folder.path());
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, message) = at("1GiB");
    assert_eq!(code, Some(3), "{message}");
    let short = message.split_once("short of ").and_then(|(_, rest)| rest.split_once('(')?.1.split_once(" bytes"));
    let short: u64 = short.unwrap().0.parse().unwrap();
    assert!(short > 0, "{message}");
    assert_eq!(at(&((1u64 << 30) + short).to_string()).0, Some(0));
    assert_eq!(at(&((1u64 << 30) + short - 1).to_string()).0, Some(3));
}

#[test]
fn a_prediction_for_other_bytes_than_the_plans_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--memory-bytes", "64GiB", "--as", "vllm", "--cache-bytes", "20GiB"];
    let table = stdout(&cacheplan(&["plan"], Some(NANO), &flags, folder.path()));
    assert!(table.contains("for the 20.00 GiB that it is said to have, not the 64.00 GiB of the plan"), "{table}");
}

#[test]
fn inspect_lists_the_flags_that_tell_how_a_model_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let help = stdout(&cacheplan(&["inspect", "--help"], None, &[], folder.path()));
    assert!(help.contains("--kv-dtype") && help.contains("--assume"), "{help}");
    assert!(!help.contains("--max-batch-size") && !help.contains("--state-ratio"), "{help}");
}

/// What most people state fits a screen; all of it stands in the long help, under headings.
#[test]
fn short_help_has_what_matters() {
    let folder = tempfile::tempdir().unwrap();
    let short = stdout(&cacheplan(&["plan", "-h"], None, &[], folder.path()));
    assert!(short.lines().count() <= 60, "{} lines: {short}", short.lines().count());
    for flag in ["--device-memory", "--max-seq-len", "--max-batch-size", "--kv-dtype", "--tp", "--weights", "--as"] {
        assert!(short.contains(flag), "{flag} is not in {short}");
    }
    let long = stdout(&cacheplan(&["plan", "--help"], None, &[], folder.path()));
    for flag in ["--state-ratio", "--assume", "--strict", "--description"] {
        assert!(long.contains(flag) && !short.contains(flag), "{flag}: {short}");
    }
    // A line or two for each: all flags, of which none stands twice.
    assert!(long.lines().count() <= 200, "{} lines: {long}", long.lines().count());
    for key in BudgetKey::all() {
        let stated = long.lines().filter(|line| line.trim_start().split([' ', '[', '=']).next() == Some(key.flag));
        assert_eq!(stated.count(), 1, "{}: {long}", key.flag);
    }
    assert_eq!(stdout(&cacheplan(&["help", "plan"], None, &[], folder.path())), long);
}

/// A model that nobody knows is fitted by its description, which the printed command repeats.
#[test]
fn a_described_model_is_fitted_and_what_is_misspelt_is_shown_in_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let heron = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/heron");
    let text = std::fs::read_to_string(heron.join("heron.toml")).unwrap();
    let model = heron.join("config.json");
    let fit = |text: &str| {
        std::fs::write(folder.path().join("heron.toml"), text).unwrap();
        let size = ["--context", "4k", "--sequences", "8", "--gpus", "l4", "--description", "FILE:heron.toml"];
        cacheplan(&["fit", model.to_str().unwrap()], None, &size, folder.path())
    };
    let table = stdout(&fit(&text)).replace("\\\n   ", "");
    let file = folder.path().join("heron.toml").display().to_string();
    assert!(table.contains(&format!("--description {file} --device-memory l4")), "{table}");
    let refused = fit(&text.replace("glance_tokens", "glance_tokns"));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(1) && said.contains("(near: glance_tokens"), "{said}");
    let refused = fit(&text.replace("d_state", "d_stat"));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains(&format!("{file}: architecture description of `heron`, line 16")), "{said}");
    assert!(said.contains(&format!("╭─[{file}:16:1]")), "{said}");
}

/// `--engine` is what people write for it, and a name that is nearly an engine's is told.
#[test]
fn an_engine_is_asked_by_either_flag_and_a_near_name_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let asked = |flag: &str, engine: &str| {
        let flags = ["--memory-bytes", "64GiB", "--max-seq-len", "4096", flag, engine];
        cacheplan(&["plan"], Some(NANO), &flags, folder.path())
    };
    assert_eq!(stdout(&asked("--engine", "vllm")), stdout(&asked("--as", "vllm")));
    let refused = asked("--engine", "vlm");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(2) && said.contains("did you mean `vllm`?"), "{said}");
}

#[test]
fn a_name_that_tells_of_a_quantisation_which_the_config_does_not_state_is_doubted() {
    let folder = tempfile::tempdir().unwrap();
    let config = std::fs::read(config("Qwen__Qwen3-8B.json")).unwrap();
    std::fs::create_dir(folder.path().join("Qwen3-8B-FP8")).unwrap();
    for (file, doubted) in [("Qwen3-8B-FP8/config.json", true), ("Qwen3-8B_nvfp4.json", true), ("Qwen3-8B.json", false)]
    {
        std::fs::write(folder.path().join(file), &config).unwrap();
        let planned = cacheplan(&["plan"], None, &[&format!("FILE:{file}")], folder.path());
        let notes = String::from_utf8_lossy(&planned.stderr).into_owned();
        assert_eq!(notes.contains("states no quantization_config"), doubted, "{file}: {notes}");
    }
}

/// The config states float32; whoever states another dtype means it.
#[test]
fn a_stated_dtype_of_states_holds_whatever_the_config_says() {
    let state = |flags: &[&str]| {
        let plan = plan(NANO, flags);
        let resources = plan["resources"].as_array().unwrap().clone();
        resources.into_iter().find(|resource| resource["kind"] == "ssm").unwrap()["dtype"].clone()
    };
    assert_eq!(state(&[]), "f32");
    assert_eq!(state(&["--ssm-dtype", "bf16"]), "bf16");
}

/// Both come from the definition of the flags, those made from the budget's keys included.
#[rstest]
#[case(&["completions", "bash"], &["--max-seq-len", "calibrate"])]
#[case(&["completions", "zsh"], &["--max-seq-len", "calibrate"])]
#[case(&["completions", "fish"], &["max-seq-len", "calibrate"])]
#[case(&["man"], &[".TH cacheplan 1", "cacheplan\\-calibrate(1)"])]
#[case(&["man", "plan"], &[".TH cacheplan-plan 1", "\\-\\-max\\-seq\\-len"])]
#[case(&["man", "plan", "explain"], &["cacheplan\\-plan\\-explain"])]
fn shells_and_manuals_know_every_flag(#[case] command: &[&str], #[case] expected: &[&str]) {
    let text = stdout(&cacheplan(command, None, &[], Path::new("")));
    for text_of_it in expected {
        assert!(text.contains(text_of_it), "{text_of_it}");
    }
}

/// The layers of a real model tell what a step takes, and a plan that keeps more free admits less and proves right.
#[test]
fn a_plan_can_be_safe_of_what_is_assumed() {
    let folder = tempfile::tempdir().unwrap();
    let model = "Qwen__Qwen3-8B.json";
    let flags = ["--device-memory", "h100", "--max-seq-len", "8192"];
    let (plain, safe) = (plan(model, &flags), plan(model, &[&flags[..], &["--safe"]].concat()));
    let sequences = |plan: &Value| plan["capacity"]["sequences"].as_u64().unwrap();
    assert!(sequences(&safe) < sequences(&plain));
    let names = |plan: &Value| -> Vec<String> {
        plan["ledger"].as_array().unwrap().iter().map(|line| line["name"].as_str().unwrap().to_owned()).collect()
    };
    assert!(names(&plain).contains(&"graphs".to_owned()) && names(&safe).contains(&"margin".to_owned()));
    let out = [&flags[..], &["--safe", "--out", "FILE:plan.json"]].concat();
    stdout(&cacheplan(&["plan"], Some(model), &out, folder.path()));
    let model = config(model);
    let proof = ["FILE:plan.json", "--model", model.to_str().unwrap(), "--safe"];
    let checked = stdout(&cacheplan(&["plan", "check"], None, &[&proof[..], &flags].concat(), folder.path()));
    assert!(checked.contains("are proved"), "{checked}");
}

/// Its ledger assumes what that engine logged, and so does the proof.
#[test]
fn a_plan_beside_an_engine_is_proved_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let model = "Qwen__Qwen3-8B.json";
    let flags = ["--device-memory", "h100", "--max-seq-len", "8192", "--as", "sglang"];
    let made = [&flags[..], &["--out", "FILE:plan.json"]].concat();
    let text = stdout(&cacheplan(&["plan"], Some(model), &made, folder.path()));
    assert!(text.contains("one log of sglang"), "{text}");
    let model = config(model);
    let proof = ["FILE:plan.json", "--model", model.to_str().unwrap()];
    let checked = stdout(&cacheplan(&["plan", "check"], None, &[&proof[..], &flags].concat(), folder.path()));
    assert!(checked.contains("are proved"), "{checked}");
    let alone = cacheplan(&["plan", "check"], None, &[&proof[..], &flags[..4]].concat(), folder.path());
    assert_eq!(alone.status.code(), Some(5));
}

#[test]
fn weights_of_unknown_size_are_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let refused = cacheplan(&["plan"], Some(GEMMA), &["--device-memory", "24GiB"], folder.path());
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{message}");
    assert!(message.contains("`moe_intermediate_size` is missing"), "{message}");
    assert!(message.contains("state `memory.weights` (--weights)"), "{message}");
}

#[test]
fn the_weights_of_a_draft_model_are_counted_and_divided_over_ranks() {
    let draft = config(NANO);
    let planned = |ranks: &[&str]| {
        let flags = ["--memory-bytes", "4GiB", "--draft-tokens", "2", "--draft", draft.to_str().unwrap()];
        plan(NANO, &[&flags[..], ranks].concat())
    };
    let lines = |plan: &Value| {
        let ledger = plan["ledger"].as_array().unwrap().clone();
        let bytes = |name: &str| ledger.iter().find(|line| line["name"] == name).unwrap()["bytes"].as_u64().unwrap();
        (bytes("weights"), bytes("draft weights"))
    };
    let (alone, ranks) = (planned(&[]), planned(&["--tp", "2", "--pp", "2"]));
    let (whole, share) = (lines(&alone), lines(&ranks));
    assert_eq!((whole.0, share.0), (whole.1, share.1));
    // Norms and routers are whole on both ranks of a stage, everything else is divided over all four.
    let classes = ranks["deployment"]["weights"].as_array().unwrap();
    let of_rank = classes.iter().map(|class| {
        let ranks = if class["class"] == "replicated" { 2 } else { 4 };
        class["bytes"].as_u64().unwrap().div_ceil(ranks)
    });
    assert_eq!(share.1, of_rank.sum::<u64>());
    assert_eq!(whole.1, classes.iter().map(|class| class["bytes"].as_u64().unwrap()).sum::<u64>());
}

#[test]
fn the_weights_of_a_draft_model_that_does_not_tell_are_asked_for() {
    let draft = config(GEMMA);
    let flags = ["--device-memory", "141GiB", "--draft-tokens", "2", "--draft", draft.to_str().unwrap()];
    let folder = tempfile::tempdir().unwrap();
    let refused = cacheplan(&["plan"], Some(NANO), &flags, folder.path());
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(1) && message.contains("(--draft-weights)"), "{message}");
    let planned = plan(NANO, &[&flags[..], &["--draft-weights", "2GB"]].concat());
    let ledger = planned["ledger"].as_array().unwrap();
    assert!(ledger.iter().any(|line| line["name"] == "draft weights" && line["bytes"] == 2_000_000_000));
}

/// vLLM stores states in the model's dtype where the model states none, those of a draft model likewise.
#[test]
fn a_comparison_stores_the_states_of_a_draft_model_as_the_engine_does() {
    let model = "Qwen__Qwen3-Next-80B-A3B-Thinking.json";
    let draft = config(model);
    let flags = ["--cache-bytes", "40GiB", "--draft-tokens", "2", "--draft", draft.to_str().unwrap()];
    let predicted = plan(model, &[&flags[..], &["--as", "vllm"]].concat());
    let folder = tempfile::tempdir().unwrap();
    let with = ["--with", "vllm", "--format", "json"];
    let compared = stdout(&cacheplan(&["compare"], Some(model), &[&flags[..], &with].concat(), folder.path()));
    let compared: Value = serde_json::from_str(&compared).unwrap();
    assert_eq!(compared[0]["engine_sequences"], predicted["engine"]["sequences"]);
}

#[test]
fn a_comparison_beside_weights_that_leave_nothing_does_not_fit() {
    let folder = tempfile::tempdir().unwrap();
    let refused = cacheplan(&["compare"], Some(NANO), &["--device-memory", "24GiB"], folder.path());
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(3), "{message}");
    assert!(message.contains("most of it `weights`"), "{message}");
}

#[test]
fn a_comparison_in_which_nothing_holds_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--memory-bytes", "1MiB", "--with", "vllm"];
    let compared = cacheplan(&["compare"], Some("Qwen__Qwen3-8B.json"), &flags, folder.path());
    assert_eq!(compared.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&compared.stdout).contains("not one sequence fits"));
}

#[test]
fn sequences_longer_than_the_model_or_the_limit_are_noted() {
    let folder = tempfile::tempdir().unwrap();
    let planned = cacheplan(&["plan"], Some(NANO), &["--max-seq-len", "4294967296"], folder.path());
    let notes = String::from_utf8_lossy(&planned.stderr).into_owned();
    assert!(planned.status.success() && notes.contains("is longer than the 262144 tokens"), "{notes}");
    let planned = cacheplan(&["plan"], Some(NANO), &["--prompt", "8000"], folder.path());
    let notes = String::from_utf8_lossy(&planned.stderr).into_owned();
    assert!(notes.contains("note: 100 % of the workload's sequences are longer than max_seq_len 4096"), "{notes}");
}

/// The ranks of the poorest stage decide for all, so that a stage by itself would be explained with other numbers.
#[rstest]
#[case("0")]
#[case("2")]
fn a_stage_is_explained_with_what_all_ranks_agreed_on(#[case] stage: &str) {
    let flags = ["--pp", "3", "--max-seq-len", "131072", "--memory-bytes", "24GiB", "--stage", stage];
    let planned = plan(NANO, &flags);
    assert_eq!(planned["capacity"]["capped_by"], "another rank");
    let folder = tempfile::tempdir().unwrap();
    let explained = stdout(&cacheplan(&["plan", "explain"], Some(NANO), &flags, folder.path()));
    let sequences = planned["capacity"]["sequences"].as_u64().unwrap();
    assert!(explained.starts_with(&format!("{sequences} sequences ")), "{explained}");
}

/// What `fit` looks for nobody states; what holds of every device anybody may.
#[rstest]
#[case(
    "CACHEPLAN__MEMORY__BYTES",
    "10GiB",
    2,
    "environment CACHEPLAN__MEMORY__BYTES: `memory.bytes` is what fit looks for"
)]
#[case("CACHEPLAN__MAX_BATCH_SIZE", "4", 2, "`max_batch_size` is what fit looks for")]
#[case("CACHEPLAN__MEMORY__SAFE", "true", 0, "")]
#[case("CACHEPLAN__MEMORY__RESERVE", "200GiB", 3, "nothing tried holds")]
fn fit_takes_of_the_environment_what_holds_of_every_device(
    #[case] name: &str,
    #[case] value: &str,
    #[case] code: i32,
    #[case] said: &str,
) {
    let mut run = Command::new(env!("CARGO_BIN_EXE_cacheplan"));
    let fit = run.arg("fit").arg(config(NANO)).args(["--context", "4096", "--sequences", "4", "--gpus", "h200"]);
    let output = fit.args(["--max-gpus", "1"]).env(name, value).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(code) && error.contains(said), "{error}");
}

#[cfg(unix)]
#[test]
fn a_variable_of_ours_that_is_no_text_is_an_error() {
    use std::os::unix::ffi::OsStrExt;
    let value = std::ffi::OsStr::from_bytes(b"2\xff");
    let mut run = Command::new(env!("CARGO_BIN_EXE_cacheplan"));
    let output = run.arg("plan").arg(config(NANO)).env("CACHEPLAN__MAX_BATCH_SIZE", value).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("CACHEPLAN__MAX_BATCH_SIZE"), "{said}");
}
