//! Devices by size and by name, one or several.

use rstest::rstest;

use super::{GEMMA, NANO, cacheplan, plan, stdout};

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

#[test]
fn a_note_about_the_device_stands_before_no_error_of_something_else() {
    let folder = tempfile::tempdir().unwrap();
    let refused = cacheplan(&["plan"], Some("none.json"), &["--device-memory", "h100"], folder.path());
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!message.contains("nvidia-smi") && message.contains("no such file"), "{message}");
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
