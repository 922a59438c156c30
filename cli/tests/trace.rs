//! The phases of planning and of steps, as a log and as trace events.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(path)
}

fn cacheplan(args: &[&str], log: Option<&str>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cacheplan"));
    command.args(args).env_remove("CACHEPLAN_LOG").env_remove("RUST_LOG");
    command.envs(log.map(|asked| ("RUST_LOG", asked)));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

/// Phases of a trace as `parent/name`, having checked that each ends before what it began in does.
fn phases(file: &Path) -> Vec<String> {
    let events: Vec<Value> = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert_eq!(events[0]["ph"], "M");
    let (mut open, mut found, mut last) = (Vec::new(), Vec::new(), 0.0);
    for event in &events[1..] {
        let at = event["ts"].as_f64().unwrap();
        assert!(at >= last && event["pid"] == 1 && event["tid"] == events[1]["tid"], "{event}");
        last = at;
        let name = event["name"].as_str().unwrap().to_owned();
        match event["ph"].as_str().unwrap() {
            "B" => {
                found.push(format!("{}/{name}", open.last().map_or("", String::as_str)));
                open.push(name);
            }
            "E" => assert_eq!(open.pop(), Some(name)),
            other => panic!("a phase `{other}`"),
        }
    }
    assert!(open.is_empty(), "{open:?}");
    found
}

#[test]
fn a_trace_has_every_phase_of_a_run_within_the_one_that_it_is_of() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.json");
    let model = fixture("models/nemotron_h");
    let prompt = [
        "--prompt-ids",
        "5,9,5,9,5,9",
        "--frequency-penalty=-4",
        "--max-new-tokens",
        "12",
        "--ignore-eos",
        "--draft-tokens",
        "2",
        "--max-seq-len",
        "64",
    ];
    let trace = ["--trace", file.to_str().unwrap()];
    cacheplan(&[&["run", model.to_str().unwrap()], &prompt[..], &trace].concat(), None);
    // One that is there is written anew.
    let length = std::fs::metadata(&file).unwrap().len();
    cacheplan(&["plan", model.to_str().unwrap(), trace[0], trace[1]], None);
    assert!(std::fs::metadata(&file).unwrap().len() < length);
    assert!(phases(&file).contains(&"/planning".to_owned()));
    cacheplan(&[&["run", model.to_str().unwrap()], &prompt[..], &trace].concat(), None);
    let found = phases(&file);
    let expected = [
        "/import",
        "/planning",
        "planning/passes",
        "passes/pass",
        "planning/grouping",
        "planning/solving",
        "/weights",
        "/allocation",
        "/profile",
        "/resize",
        "resize/allocation",
        "/generation",
        "generation/admission",
        "generation/step",
        "step/scheduling",
        "step/guessing",
        "step/forward",
        "step/sampling",
        "step/commit",
        "step/prefixes",
        "step/retirement",
    ];
    for phase in expected {
        assert!(found.iter().any(|found| found == phase), "{phase} is not in {found:?}");
    }
}

#[test]
fn a_trace_takes_the_place_of_no_other_file() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.json");
    std::fs::copy(fixture("models/llama/config.json"), &config).unwrap();
    let (before, config) = (std::fs::read(&config).unwrap(), config.to_str().unwrap());
    let command = Command::new(env!("CARGO_BIN_EXE_cacheplan")).args(["plan", config, "--trace", config]).output();
    let output = command.unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("this file is no trace"));
    assert_eq!(std::fs::read(config).unwrap(), before);
}

#[test]
fn a_log_tells_the_story_of_a_plan() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("plan.json");
    let model = fixture("models/nemotron_h");
    let (model, plan) = (model.to_str().unwrap(), plan.to_str().unwrap());
    let told = cacheplan(&["plan", model, "--out", plan], Some("cacheplan=debug"));
    let stderr = String::from_utf8(told.stderr).unwrap();
    let at = |phase: &str| {
        stderr.lines().position(|line| line.contains(phase)).unwrap_or_else(|| panic!("{phase}: {stderr}"))
    };
    // Each when it ends, further in than what it is a part of.
    assert!(
        at(": import ") < at(":   pass ") && at(":   pass ") < at(": passes ") && at(": passes ") < at(": planning ")
    );
    assert!(at(":   solving ") < at(": planning "));
    let checked = cacheplan(&["plan", "check", plan, "--model", model], Some("cacheplan_planner=debug"));
    assert!(String::from_utf8(checked.stderr).unwrap().contains(" proof "));
    assert!(cacheplan(&["plan", model], None).stderr.is_empty());
}
