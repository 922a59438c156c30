//! What strangers wrote steers no terminal, holds up no command, takes no memory, and what is written is not lost.

#![cfg(unix)]

mod limits;
mod mutated;
mod outputs;
mod tampered;
mod templates;
mod terminal;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(name)
}

fn command<S: AsRef<std::ffi::OsStr>>(args: &[S]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cacheplan"));
    command.args(args).env_remove("NO_COLOR").stdin(Stdio::null());
    command
}

fn cacheplan<S: AsRef<std::ffi::OsStr>>(args: &[S]) -> Output {
    command(args).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Nothing but text and the ends of our own lines went out, and no line is somebody else's.
fn assert_harmless(output: &Output) {
    for bytes in [&output.stdout, &output.stderr] {
        let text = String::from_utf8_lossy(bytes);
        let steers = |c: char| c != '\n' && (c.is_control() || "\u{202e}\u{2028}\u{2029}".contains(c));
        assert!(!text.contains(steers), "{text:?}");
        assert!(!text.lines().any(|line| line.trim_start().starts_with("MODEL    fake")), "{text}");
        assert!(text.len() < 200_000, "{} bytes were printed", text.len());
    }
}

fn llama() -> Value {
    json!({ "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "vocab_size": 32, "torch_dtype": "float32" })
}

/// A plan of a small llama, as a file.
fn plan(folder: &Path) -> PathBuf {
    fs::write(folder.join("config.json"), llama().to_string()).unwrap();
    let path = folder.join("plan.json");
    let output = cacheplan(&[Path::new("plan"), &folder.join("config.json"), Path::new("--out"), &path]);
    assert!(output.status.success(), "{}", stderr(&output));
    path
}

/// Runs to its end, within a minute however busy the machine is.
fn within_limits(command: &mut Command) -> Output {
    let start = Instant::now();
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            panic!("{command:?} does not end");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().unwrap()
}

/// The command itself, with all that it consists of, and in a debug build: 64 MiB beside its code, 2 seconds of a
/// processor.
fn confined(args: &[&str]) -> Command {
    let mut command = Command::new("sh");
    let limits = "ulimit -d $(( 64 * 1024 )) && ulimit -t 2 && exec \"$@\"";
    command.args(["-c", limits, "sh", env!("CARGO_BIN_EXE_cacheplan")]).args(args).stdin(Stdio::null());
    command
}
