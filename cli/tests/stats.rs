//! `cacheplan stats`, on the snapshot that a run leaves.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn cacheplan<S: AsRef<std::ffi::OsStr>>(args: &[S]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_cacheplan")).args(args).env("NO_COLOR", "1").output().unwrap()
}

fn show(snapshot: &Path, format: &str) -> String {
    let output = cacheplan(&["stats".as_ref(), snapshot.as_os_str(), "--format".as_ref(), format.as_ref()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_run_leaves_a_snapshot_of_every_pool() {
    let folder = tempfile::tempdir().unwrap();
    let snapshot = folder.path().join("stats.json");
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models/nemotron_h");
    let run = cacheplan(&[
        "run".as_ref(),
        model.as_os_str(),
        "--prompt-ids".as_ref(),
        "1,2,3".as_ref(),
        "--max-new-tokens".as_ref(),
        "2".as_ref(),
        "--stats".as_ref(),
        snapshot.as_os_str(),
    ]);
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));

    let json: Value = serde_json::from_str(&show(&snapshot, "json")).unwrap();
    let pools = json["pools"].as_array().unwrap();
    let live = pools.iter().find(|pool| pool["id"] == "slots.live").unwrap();
    // The sequence is finished, but it was there.
    assert_eq!((live["used"].as_u64(), live["high_water"].as_u64()), (Some(0), Some(1)));
    assert!(pools.iter().any(|pool| pool["id"] == "kv_paged.0" && pool["high_water"].as_u64() > Some(0)));

    let metrics = show(&snapshot, "prometheus");
    assert!(metrics.contains("cacheplan_pool_high_water_units{pool=\"slots.live\"} 1\n"), "{metrics}");
    let table = show(&snapshot, "table");
    assert!(table.lines().all(|line| line.len() <= 100), "{table}");
    assert!(table.contains("kv_paged.0"));
}

#[test]
fn a_file_that_is_no_snapshot_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("other.json");
    std::fs::write(&file, "{\"pools\": 3}").unwrap();
    let output = cacheplan(&["stats".as_ref(), file.as_os_str()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("other.json: no snapshot: "));
}
