//! The runner behind a stand-in for the driver, which is the emulator's memory and kernels.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::PathBuf;
use std::process::{Command, Output};

/// The folder with the stand-in under the name of the driver's library.
fn stub() -> PathBuf {
    let built = PathBuf::from(env!("CARGO_BIN_EXE_cacheplan-gpu")).with_file_name("examples/libcuda_stub.so");
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("driver-{:?}", std::thread::current().id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::copy(built, folder.join("libcuda.so.1")).unwrap();
    folder
}

fn runner(stub: Option<&str>, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cacheplan-gpu"));
    if let Some(mode) = stub {
        command.env("LD_LIBRARY_PATH", self::stub()).env("STUB", mode);
    }
    command.args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Uploads, launches with their parameters, guards and downloads: as on a device, in the emulator's memory.
#[test]
fn a_device_that_computes_as_the_emulator_holds() {
    let output = runner(Some("works"), &["doctor", "--small", "--seed", "3"]);
    let (found, said) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{found}\n{said}");
    assert!(found.starts_with("cuda:0: Stub, compute capability 9.0, 32 processors"), "{found}");
    assert!(found.contains("checks hold.") && !found.contains("no check asked for"), "{found}");
}

/// What is left of the poison is no number, and no pool has changed.
#[test]
fn a_device_that_computes_nothing_does_not_hold() {
    let output = runner(Some("idle"), &["doctor", "--small", "--format", "json"]);
    assert_eq!(output.status.code(), Some(1));
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = found["checks"].as_array().unwrap();
    let wrong = checks.iter().filter(|check| check["verdict"] == "wrong").count();
    let portable = checks.iter().filter(|check| check["verdict"] == "portable").count();
    assert_eq!((found["holds"].as_bool(), wrong + portable), (Some(false), checks.len()), "{found}");
}

#[test]
fn what_is_missing_is_named() {
    for (stub, arguments, says) in [
        (Some("old"), &["doctor"][..], "the driver speaks CUDA 12.8, kernels are built for 13.0"),
        (Some("bare"), &["doctor"], "there is no device cuda:0: the driver has 0"),
        (Some("works"), &["doctor", "--device", "cuda:7"], "there is no device cuda:7: the driver has 1"),
        (Some("works"), &["bench", "flying"], "no op is called like `flying`"),
    ] {
        let output = runner(stub, arguments);
        let said = text(&output.stderr);
        assert_eq!((output.status.code(), said.contains(says)), (Some(1), true), "{said}");
    }
}

/// The system's own word on it stands behind ours.
#[test]
fn without_a_driver_its_library_is_named() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("no-driver");
    std::fs::create_dir_all(&folder).unwrap();
    // No library, whatever this machine has.
    std::fs::write(folder.join("libcuda.so.1"), "nothing").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_cacheplan-gpu"));
    let output = command.env("LD_LIBRARY_PATH", &folder).arg("doctor").output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(said.starts_with("error: there is no libcuda.so.1, which comes with NVIDIA's driver"), "{said}");
    assert!(said.contains("file too short"), "{said}");
}

/// Times are the stand-in's; what is made of them is not.
#[test]
fn a_bench_writes_its_figures() {
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("bench.json");
    let output = runner(Some("idle"), &["bench", "weighted", "--json", file.to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let found: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let copy = found["limits"]["copy_bytes_per_second"].as_f64().unwrap();
    assert!((copy - 2.0 * f64::from(1 << 30) / 5e-4).abs() < 1.0, "{copy}");
    for figure in found["figures"].as_array().unwrap() {
        let part = figure["bytes"].as_f64().unwrap() / copy / 5e-4;
        assert_eq!((figure["microseconds"].as_f64(), figure["limit"].as_str()), (Some(500.0), Some("copy")));
        assert!((figure["part"].as_f64().unwrap() - part).abs() < 1e-9, "{figure}");
    }
}

#[test]
fn sizes_are_listed_without_a_device() {
    let output = runner(None, &["bench", "MLA decode", "--list"]);
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let figures = found["figures"].as_array().unwrap();
    assert!(
        figures.iter().any(|figure| figure["sizes"]["batch"] == 128 && figure["sizes"]["context"] == 4096),
        "{found}"
    );
}
