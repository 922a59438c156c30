//! Any bytes as a `.safetensors` file beside the config of a hybrid, and any text as the index of such files.
#![no_main]

mod limits;

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tempfile::TempDir;

const CONFIG: &str = include_str!("../../../tests/fixtures/models/nemotron_h/config.json");

static FOLDER: LazyLock<TempDir> = LazyLock::new(|| {
    let folder = TempDir::new().expect("a folder for the input");
    std::fs::write(folder.path().join("config.json"), CONFIG).expect("room for a config");
    folder
});

fuzz_target!(|bytes: &[u8]| {
    let index = FOLDER.path().join("model.safetensors.index.json");
    if bytes.starts_with(b"{") {
        if std::fs::write(&index, bytes).is_ok() {
            limits::walk(|| cacheplan_transforms::Model::read(FOLDER.path(), &Default::default()));
            let _ = std::fs::remove_file(&index);
        }
    } else {
        limits::walk_file(&FOLDER.path().join("model.safetensors"), bytes);
    }
});
