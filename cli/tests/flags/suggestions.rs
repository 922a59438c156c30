//! What would admit more, in the words in which the budget is stated.

use rstest::rstest;

use super::{GEMMA, cacheplan, plan, stdout};

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
