//! Plans beside engines, and comparisons with them.

use rstest::rstest;
use serde_json::Value;

use super::{NANO, cacheplan, config, plan, stdout};

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
