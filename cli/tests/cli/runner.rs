//! `doctor` and `bench` ask the runner of CUDA kernels.

use std::process::Command;

use rstest::rstest;

use super::{cacheplan, stderr};

/// The kernels' own command may be missing, and is then named.
#[rstest]
#[case(&["doctor"])]
#[case(&["bench", "--device", "cuda:0"])]
fn without_the_runner_a_device_is_refused(#[case] args: &[&str]) {
    let output = Command::new(env!("CARGO_BIN_EXE_cacheplan")).args(args).env("PATH", "").output().unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
    assert!(stderr(&output).contains("there is no cacheplan-gpu beside this command"), "{}", stderr(&output));
}

/// Figures are written, stand beside those of an earlier run, and fail it where they fall behind.
#[test]
fn a_bench_is_compared_with_an_earlier_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).into_os_string().into_string().unwrap();
    let (first, better, second) = (path("first.json"), path("better.json"), path("second.json"));
    let output = cacheplan(&["bench", "cache write", "--json", &first]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(String::from_utf8_lossy(&output.stdout).lines().all(|line| line.chars().count() <= 100));
    let mut bench: serde_json::Value = serde_json::from_slice(&std::fs::read(&first).unwrap()).unwrap();
    let part = bench["figures"][0]["part"].as_f64().unwrap();
    assert!(part > 0.0 && bench["figures"][0]["limit"] == "copy");
    bench["figures"][0]["part"] = (part * 100.0).into();
    std::fs::write(&better, bench.to_string()).unwrap();

    let output = cacheplan(&["bench", "cache write", "--against", &better, "--json", &second]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("more is lost than 0.1") && stderr(&output).contains("of copy before"));
    assert!(std::fs::exists(&second).unwrap());
    let allowed = cacheplan(&["bench", "cache write", "--against", &better, "--loss", "0.9999"]);
    assert!(allowed.status.success(), "{}", stderr(&allowed));

    bench["threads"] = 1000.into();
    std::fs::write(&better, bench.to_string()).unwrap();
    let refused = cacheplan(&["bench", "cache write", "--against", &better]);
    assert!(stderr(&refused).contains("measured with 1000 threads"), "{}", stderr(&refused));
}

/// What it is asked and what it ends with pass through.
#[cfg(unix)]
#[rstest]
#[case(&["doctor", "--device", "emulator", "--seed", "7"], "doctor --device emulator --format table --seed 7")]
#[case(&["bench", "norm", "--device", "cuda:1", "--json", "f"], "bench --device cuda:1 --json f -- norm")]
fn the_runner_is_asked_what_was_asked(#[case] args: &[&str], #[case] expected: &str, #[values(0, 3)] status: i32) {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let runner = folder.path().join("cacheplan-gpu");
    std::fs::write(&runner, format!("#!/bin/sh\necho \"$@\"\nexit {status}\n")).unwrap();
    std::fs::set_permissions(&runner, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_cacheplan"));
    let output = command.args(args).env("PATH", folder.path()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), expected);
    assert_eq!(output.status.success(), status == 0, "{}", stderr(&output));
}

/// What stands behind `--` is an engine's command, which no mistyped flag is a word of.
#[rstest]
#[case(&["fit", "m", "--user", "100"], "'--user'")]
#[case(&["plan", "--device", "h100", "vllm", "serve", "m"], "a command that starts an engine stands behind `--`")]
fn a_wrong_word_is_not_sent_behind_two_dashes(#[case] args: &[&str], #[case] expected: &str) {
    let output = cacheplan(args);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains(expected) && !message.contains("as a value"), "{message}");
}
