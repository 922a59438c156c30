//! What bash runs of scripts is what is read of them, or they are refused by name: `tests/fixtures/oracles/scripts.bash.jsonl`, which
//! has what a program in the engine's place was called with. `there.sh` sets `LEN`; `absent.sh` is not there.
//!
//! The same of units, which are made by chance of what units are made of: `units.systemd.jsonl` has what systemd 252 makes of each
//! (`systemd --test`, and `replace_env_argv` of its library), and whether it loads it at all.

use std::path::Path;

use cacheplan_serve::{Launch, Options, answer, manifest};
use cacheplan_transforms::{Model, ReadOptions};
use serde::Deserialize;

#[derive(Deserialize)]
struct Script {
    script: String,
    runs: Vec<Vec<String>>,
}

fn fixture(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Parts of scripts that are read otherwise, and why.
const OTHERWISE: [(&str, &str); 9] = [
    ("local LEN", "bash refuses it outside of functions, in which nobody else writes it"),
    ("typeset -n", "names of names are not followed"),
    ("set -e\nfalse", "whether commands succeed is not known"),
    ("false && vllm", "whether commands succeed is not known"),
    ("vllm() {", "the engine's name stands for the engine"),
    ("export -n", "what is exported stays so"),
    ("$'a\\tb'", "no cache depends on the flag that it is of"),
    ("if true; then exit", "whether commands succeed is not known"),
    ("\r", "files of Windows end lines so"),
];

#[test]
fn scripts_are_read_as_bash_runs_them() {
    let config = fixture("configs/Qwen__Qwen3-8B.json");
    let is_refused = |launch: &Launch| {
        let model = Model::read_config("config.json", &config, &ReadOptions::default()).unwrap();
        let options = Options { devices: Some("h100".parse().unwrap()), ..Options::default() };
        answer(launch, model, &options).is_err()
    };
    let (mut equal, mut refused, mut differ) = (0, 0, Vec::new());
    for line in fixture("oracles/scripts.bash.jsonl").lines() {
        let Script { script, mut runs } = serde_json::from_str(line).unwrap();
        let Ok(launches) = manifest::read("s.sh", script.as_bytes()) else {
            refused += 1;
            continue;
        };
        let mut words: Vec<Vec<String>> = launches.iter().map(|launch| launch.words.clone()).collect();
        words.sort();
        runs.sort();
        if words == runs {
            equal += 1;
        } else if !launches.is_empty() && launches.iter().any(is_refused) {
            refused += 1;
        } else if !OTHERWISE.iter().any(|(part, _)| script.contains(part)) {
            differ.push(format!("{script}\n  bash {runs:?}\n  read {words:?}"));
        }
    }
    assert!(differ.is_empty(), "{equal} equal, {refused} refused, {} differ:\n{}", differ.len(), differ.join("\n"));
    assert_eq!((equal, refused), (457, 433));
}

#[derive(Deserialize)]
struct Unit {
    unit: String,
    loads: bool,
    runs: Vec<Vec<String>>,
}

#[test]
fn units_are_read_as_systemd_reads_them() {
    let (mut equal, mut refused, mut differ) = (0, 0, Vec::new());
    for line in fixture("oracles/units.systemd.jsonl").lines() {
        let Unit { unit, loads, runs } = serde_json::from_str(line).unwrap();
        match manifest::read("a.service", unit.as_bytes()) {
            Err(_) => refused += 1,
            Ok(launches) => {
                let words: Vec<Vec<String>> = launches.into_iter().map(|launch| launch.words).collect();
                if loads && words == runs {
                    equal += 1;
                } else {
                    differ.push(format!("{unit}\n  systemd {runs:?}\n  read    {words:?}"));
                }
            }
        }
    }
    assert!(differ.is_empty(), "{equal} equal, {refused} refused, {} differ:\n{}", differ.len(), differ.join("\n"));
    assert_eq!((equal, refused), (439, 161));
}
