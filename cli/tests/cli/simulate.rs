//! `simulate` compares the policies of the prefix tree.

use rstest::rstest;
use serde_json::Value;

use super::{cacheplan, stderr};

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
