//! `verify`: an engine started on a model without weights. The engine is a script that says what one said.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rstest::rstest;

const QWEN: &str = "Qwen__Qwen3.5-9B";
/// What llama.cpp says of that model, of two sequences of 8192 tokens: lines of b11434 and b11549, with the sizes of the former.
const SAID: &str = "\
0.00.019.948 I llama_context: n_seq_max             = 2
0.00.019.949 I llama_context: n_ctx                 = 16384
0.00.019.951 I llama_context: kv_unified            = false
0.00.052.536 I llama_kv_cache:        CPU KV buffer size =   512.00 MiB
0.00.273.739 I llama_kv_cache: size =  512.00 MiB (  8192 cells,   8 layers,  2/2 seqs), K (f16):  256.00 MiB, V (f16):  256.00 MiB
0.00.344.413 I llama_memory_recurrent:        CPU RS buffer size =   100.50 MiB
0.00.344.452 I llama_memory_recurrent: size =  100.50 MiB (     2 cells,  32 layers,  2 seqs  0 rs_seq), R (f32):    4.50 MiB, S (f32):   96.00 MiB, P (f32):    0.00 MiB
0.00.401.249 I sched_reserve:        CPU compute buffer size =    52.02 MiB
";

/// A folder for the engine and what it is given.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// A script in place of an engine, which keeps its arguments.
fn engine(folder: &Path, rest: &str) -> PathBuf {
    let path = folder.join("llama-server");
    let kept = folder.join("arguments");
    fs::write(&path, format!("#!/bin/sh\necho \"$@\" > '{}'\n{rest}", kept.display())).unwrap();
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    path
}

fn says(said: &str) -> String {
    format!("cat <<'END'\n{said}END\nexec sleep 60\n")
}

fn verify(folder: &Path, program: &Path, model: &str, more: &[&str]) -> Output {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../tests/fixtures/configs/{model}.json"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_cacheplan"));
    command.arg("verify").arg(model).args(["--engine", "llama.cpp", "--max-seq-len", "8192", "--max-batch-size", "2"]);
    command.arg("--program").arg(program).args(more).env("TMPDIR", folder).env("NO_COLOR", "1").output().unwrap()
}

/// An engine behind a script is ended with it: what it has opened is closed.
#[test]
fn what_the_engine_has_started_ends_with_it() {
    let folder = folder();
    let pid = folder.path().join("pid");
    let program = engine(folder.path(), &format!("sleep 600 &\necho $! > '{}'\nwait\n", pid.display()));
    let output = verify(folder.path(), &program, QWEN, &["--within", "1"]);
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    let pid = fs::read_to_string(pid).unwrap();
    let is_running = || {
        // One that has ended may wait to be buried.
        let state = Command::new("ps").args(["-o", "stat=", "-p", pid.trim()]).output().unwrap().stdout;
        !state.is_empty() && !state.starts_with(b"Z")
    };
    let begun = std::time::Instant::now();
    while is_running() && begun.elapsed().as_secs() < 10 {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert!(!is_running(), "{pid} lives on");
}

/// Files of models without weights that were left behind.
fn left_behind(folder: &Path) -> usize {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    names.filter(|path| path.extension().is_some_and(|extension| extension == "gguf")).count()
}

/// It asks for all that a prediction needs: what is missing is the engine.
#[test]
fn the_line_of_the_readme_works_as_it_stands() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let readme = fs::read_to_string(top.join("README.md")).unwrap();
    let line = readme.split('`').find(|code| code.starts_with("cacheplan verify ")).unwrap();
    let words = line.split(' ').skip(1).map(|word| match word {
        "MODEL" => top.join(format!("tests/fixtures/configs/{QWEN}.json")),
        word => word.into(),
    });
    let mut command = Command::new(env!("CARGO_BIN_EXE_cacheplan"));
    let output = command.args(words).args(["--program", "./no-such-server"]).env("NO_COLOR", "1").output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("./no-such-server: "), "{error}");
}

#[test]
fn an_engine_that_allocates_what_is_predicted_ends_well() {
    let folder = folder();
    let look = "head -c 4 \"$2\" > \"$(dirname \"$0\")/magic\"\n";
    let program = engine(folder.path(), &(look.to_owned() + &says(SAID)));
    let output = verify(folder.path(), &program, QWEN, &[]);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{err}");
    assert!(out.contains("kv_bytes     512.00 MiB  512.00 MiB  equal"), "{out}");
    assert_eq!(fs::read(folder.path().join("magic")).unwrap(), b"GGUF");
    let arguments = fs::read_to_string(folder.path().join("arguments")).unwrap();
    assert!(arguments.contains(" -c 16384 -np 2 "), "{arguments}");
    assert_eq!(left_behind(folder.path()), 0);
}

#[rstest]
#[case::other_sizes(&says(&SAID.replace("512.00", "640.00")), 5, "does not allocate what is predicted: kv_bytes")]
#[case::no_states(&says(&SAID.replace("size =  100.50", "other")), 5, "conv_bytes")]
#[case::it_fails("echo 'error: unknown model architecture'\nexit 1\n", 1, "unknown model architecture")]
#[case::it_says_nothing("exec sleep 60\n", 1, "--within")]
fn an_engine_that_does_not_is_told_of_and_leaves_no_file(
    #[case] engine_does: &str,
    #[case] code: i32,
    #[case] why: &str,
) {
    let folder = folder();
    let program = engine(folder.path(), engine_does);
    let output = verify(folder.path(), &program, QWEN, &["--within", "5"]);
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{err}");
    assert!(err.contains(why), "{err}");
    assert_eq!(left_behind(folder.path()), 0);
}

#[rstest]
#[case::no_engine(QWEN, &[], 1, "install llama.cpp, or name its server with --program")]
#[case::no_architecture("Zyphra__Zamba2-7B", &[], 4, "has no architecture for zamba2")]
#[case::another_engine(QWEN, &["--engine", "vllm", "--memory-bytes", "8GiB"], 2, "does not start without a GPU")]
#[case::drafts(QWEN, &["--draft-tokens", "2"], 2, "leave the drafted tokens out")]
fn what_cannot_be_verified_is_said(#[case] model: &str, #[case] more: &[&str], #[case] code: i32, #[case] why: &str) {
    let folder = folder();
    let mut more = more.to_vec();
    let engines = more.iter().filter(|flag| **flag == "--engine").count();
    let missing = folder.path().join("no-such-server");
    let output = if engines == 0 {
        verify(folder.path(), &missing, model, &more)
    } else {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../tests/fixtures/configs/{model}.json"));
        let model = model.display().to_string();
        more.splice(0..0, ["verify", &model]);
        Command::new(env!("CARGO_BIN_EXE_cacheplan")).args(more).env("NO_COLOR", "1").output().unwrap()
    };
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{err}");
    assert!(err.contains(why), "{err}");
}
