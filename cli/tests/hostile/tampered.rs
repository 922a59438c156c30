//! What was tampered with, or states a thing twice, is found.

use std::fs;
use std::path::Path;

use rstest::rstest;
use serde_json::{Value, json};

use super::{cacheplan, command, llama, plan, stderr, within_limits};

#[test]
fn a_key_that_is_stated_twice_is_refused_everywhere() {
    let folder = tempfile::tempdir().unwrap();
    let path = plan(folder.path());
    let twice = |file: &Path, key: &str| {
        let text = fs::read_to_string(file).unwrap();
        fs::write(file, text.replacen('{', &format!("{{\"{key}\": 7,"), 1)).unwrap();
    };
    twice(&path, "manager");
    let output = cacheplan(&[Path::new("plan"), Path::new("check"), &path]);
    assert!(stderr(&output).contains("the key `manager` is stated twice"), "{}", stderr(&output));
    twice(&folder.path().join("config.json"), "hidden_size");
    let output = cacheplan(&[Path::new("plan"), folder.path()]);
    assert!(stderr(&output).contains("the key `hidden_size` is stated twice"), "{}", stderr(&output));
}

#[rstest]
#[case("/slots/live", json!(7), "slots")]
#[case("/limits/max_num_tokens", json!(0), "limits.max_num_tokens is 0")]
#[case("/limits/max_batch_size", json!(0), "limits.max_batch_size is 0")]
#[case("/pools/0/units", json!(2_147_483_647_u64), "bytes")]
fn a_plan_that_was_tampered_with_is_found_by_every_command(
    #[case] place: &str,
    #[case] value: Value,
    #[case] expected: &str,
) {
    let folder = tempfile::tempdir().unwrap();
    let path = plan(folder.path());
    let mut changed: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    *changed.pointer_mut(place).unwrap() = value;
    fs::write(&path, changed.to_string()).unwrap();
    let file = path.to_str().unwrap();
    for args in [
        &["plan", "check", file][..],
        &["plan", "diff", file, file],
        &["export", file, "--to", "vllm", "--model", "m"],
        &["simulate", "--workload", "agents", "--plan", file],
    ] {
        let output = within_limits(&mut command(args));
        assert_eq!(output.status.code(), Some(5), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    }
}

#[test]
fn a_check_names_what_differs() {
    let folder = tempfile::tempdir().unwrap();
    let path = plan(folder.path());
    let output = command(&["plan", "check"])
        .arg(&path)
        .args(["--max-batch-size", "3", "--model"])
        .arg(folder.path().join("config.json"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(5));
    let text = stderr(&output);
    assert!(text.contains("another budget") && text.contains("max_batch_size"), "{text}");
}

#[rstest]
#[case::a_flag("--trust-remote-code")]
#[case::a_line("m\u{2028}trust-remote-code: true")]
#[case::nothing("")]
fn a_model_name_that_is_none_is_refused(#[case] name: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = plan(folder.path());
    for target in ["vllm", "sglang", "llm-d", "dynamo", "ray"] {
        let output =
            command(&["export"]).arg(&path).args(["--to", target, &format!("--model={name}")]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stdout));
        assert!(stderr(&output).contains("cannot be told to an engine"), "{}", stderr(&output));
    }
}

#[test]
fn ranks_that_do_not_divide_the_heads_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = plan(folder.path());
    let ranks = |tp: &str| command(&["export"]).arg(&path).args(["--to", "vllm", "--model", "m", "--tp", tp]).output();
    assert!(ranks("2").unwrap().status.success());
    let output = ranks("3").unwrap();
    assert!(stderr(&output).contains("3 tensor-parallel ranks do not divide the 2 heads"), "{}", stderr(&output));
}

#[test]
fn a_histogram_does_not_tell_what_is_in_a_file() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("secret"), "root:x:0:0\n").unwrap();
    let budget = folder.path().join("budget.toml");
    fs::write(&budget, "[workload]\nprompt = { file = \"secret\" }\n").unwrap();
    fs::write(folder.path().join("config.json"), llama().to_string()).unwrap();
    let output =
        command(&["plan"]).arg(folder.path().join("config.json")).arg("--budget").arg(&budget).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("secret:1") && !stderr(&output).contains("root"), "{}", stderr(&output));
    let rows: String = (1..=200_000).map(|tokens| format!("{tokens},1\n")).collect();
    fs::write(folder.path().join("secret"), &rows[..1 << 20]).unwrap();
    let output =
        command(&["plan"]).arg(folder.path().join("config.json")).arg("--budget").arg(&budget).output().unwrap();
    assert!(stderr(&output).contains("more than 10000 lines"), "{}", stderr(&output));
}
