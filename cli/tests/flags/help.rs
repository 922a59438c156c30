//! Help, manuals and completions.

use std::path::Path;

use cacheplan::planner::BudgetKey;
use rstest::rstest;

use super::{cacheplan, stdout};

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
