//! Models by their names on the hub, as its own tools have put them on this disk.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const CONFIG: &str = "tests/fixtures/configs/Qwen__Qwen3-0.6B.json";
const COMMIT: &str = "c1899de289a04d12100db370d81485cdf75e47ca";

fn plan(model: &str, cache: &Path) -> Output {
    let mut run = Command::new(env!("CARGO_BIN_EXE_cacheplan"));
    run.args(["plan", model, "--format", "json"]).env("HF_HUB_CACHE", cache).env_remove("RUST_BACKTRACE");
    run.output().unwrap()
}

/// As `huggingface_hub` lays it out: files of a snapshot are links to blobs.
#[cfg(unix)]
#[test]
fn a_model_of_the_hubs_cache_is_planned_by_its_name() {
    let cache = tempfile::tempdir().unwrap();
    let model = cache.path().join("models--Qwen--Qwen3-0.6B");
    let snapshot = model.join("snapshots").join(COMMIT);
    for folder in [model.join("refs"), model.join("blobs"), snapshot.clone()] {
        fs::create_dir_all(folder).unwrap();
    }
    fs::write(model.join("refs/main"), COMMIT).unwrap();
    fs::copy(CONFIG, model.join("blobs/a")).unwrap();
    std::os::unix::fs::symlink("../../blobs/a", snapshot.join("config.json")).unwrap();
    let by_path = plan(CONFIG, cache.path());
    assert!(by_path.status.success());
    for name in ["Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B@main", &format!("Qwen/Qwen3-0.6B@{COMMIT}")] {
        let by_name = plan(name, cache.path());
        assert!(by_name.status.success(), "{}", String::from_utf8_lossy(&by_name.stderr));
        assert_eq!(by_name.stdout, by_path.stdout, "{name}");
    }
}

#[test]
fn a_model_that_is_not_there_says_how_to_get_it() {
    let cache = tempfile::tempdir().unwrap();
    let output = plan("Qwen/Qwen3-0.6B", cache.path());
    let message = String::from_utf8(output.stderr).unwrap().replace("\n  │ ", "");
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("no such model in") && message.contains("`hf download Qwen/Qwen3-0.6B`"), "{message}");
}
