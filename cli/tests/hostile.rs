//! What strangers wrote steers no terminal, holds up no command, takes no memory, and what is written is not lost.

#![cfg(unix)]

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rstest::rstest;
use serde_json::{Value, json};

/// Colours, the clipboard, one-byte escapes, a second line, another direction, separators of lines.
const HOSTILE: &str = "a\u{1b}[31m\u{1b}]52;c;QQ==\u{7}\u{9b}2J\nMODEL    fake\r\u{202e}\u{2028}\u{2029}\u{85}b";

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

#[rstest]
#[case::model_type("model_type", json!(HOSTILE))]
#[case::dtype("torch_dtype", json!(HOSTILE))]
#[case::layer_types("layer_types", json!([HOSTILE, HOSTILE]))]
#[case::number("hidden_size", json!(HOSTILE))]
#[case::long("model_type", json!("x".repeat(4 << 20)))]
fn a_config_steers_no_terminal(#[case] key: &str, #[case] value: Value) {
    let folder = tempfile::tempdir().unwrap();
    let mut config = llama();
    config["model_type"] = "qwen3".into();
    config["head_dim"] = 16.into();
    config[key] = value;
    let path = folder.path().join(format!("{}.json", HOSTILE.replace('/', "")));
    fs::write(&path, config.to_string()).unwrap();
    for subcommand in [&["plan"][..], &["inspect"], &["compare"], &["plan", "explain"]] {
        let output = command(subcommand).arg(&path).output().unwrap();
        assert!(!output.status.success());
        assert_harmless(&output);
    }
}

#[test]
fn a_description_steers_no_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let (config, description) = (folder.path().join("config.json"), folder.path().join("d.toml"));
    let mut model = llama();
    model["model_type"] = HOSTILE.into();
    fs::write(&config, model.to_string()).unwrap();
    let llama = fs::read_to_string(fixture("../../transforms/src/frontend/config/architectures/llama.toml")).unwrap();
    let (_, rest) = llama.split_once('\n').unwrap();
    fs::write(&description, format!("model_types = [{}]\n{rest}", json!(HOSTILE))).unwrap();
    for format in ["table", "json", "yaml", "markdown", "svg", "html", "dot"] {
        let mut plan = command(&["plan"]);
        plan.arg(&config).arg("--description").arg(&description).args(["--format", format]);
        assert_harmless(&plan.output().unwrap());
    }
    let inspected = command(&["inspect"]).arg(&config).arg("--description").arg(&description).output().unwrap();
    assert_harmless(&inspected);
    fs::write(&description, format!("model_types = [\"x\"]\nlayers = {}\n", json!(HOSTILE))).unwrap();
    assert_harmless(&command(&["plan"]).arg(&config).arg("--description").arg(&description).output().unwrap());
}

#[rstest]
#[case(&["/model/type"])]
#[case(&["/pools/0/id", "/resources/0/pool", "/resources/1/pool"])]
#[case(&["/resources/0/name", "/pools/0/members/0/resource"])]
#[case(&["/ledger/0/name"])]
#[case(&["/capacity/capped_by"])]
fn a_plan_steers_no_terminal(#[case] places: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let path = plan(folder.path());
    let mut changed: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    for place in places {
        *changed.pointer_mut(place).unwrap() = HOSTILE.into();
    }
    fs::write(&path, changed.to_string()).unwrap();
    let file = path.to_str().unwrap();
    for args in [
        &["plan", "check", file][..],
        &["plan", "diff", file, file],
        &["export", file, "--to", "vllm"],
        &["export", file, "--to", "ray", "--model", "m"],
        &["simulate", "--workload", "chat", "--policy", "no-buffer", "--plan", file],
    ] {
        assert_harmless(&cacheplan(args));
    }
}

/// A GGUF file with one key of this name and value, and a tensor of this name.
fn gguf(key: &str, value: &str, tensor: &str) -> Vec<u8> {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let counts = [1u64.to_le_bytes(), 1u64.to_le_bytes()].concat();
    let pair = [text(key), 8u32.to_le_bytes().to_vec(), text(value)].concat();
    // Five axes are more than there are.
    let tensor = [text(tensor), 5u32.to_le_bytes().to_vec(), [0; 60].to_vec()].concat();
    [b"GGUF\x03\0\0\0".to_vec(), counts, pair, tensor].concat()
}

#[test]
fn names_inside_files_steer_no_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let config = llama().to_string();
    let safetensors = |header: Value| {
        let header = header.to_string();
        [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat()
    };
    let lying = json!({ "dtype": "F32", "shape": [7], "data_offsets": [0, 4] });
    let files: [(&str, &[&str], Vec<u8>); 8] = [
        ("architecture.gguf", &["plan"], gguf("general.architecture", HOSTILE, "t")),
        ("key.gguf", &["plan"], gguf(HOSTILE, "llama", "t")),
        ("tensor.gguf", &["plan"], gguf("general.architecture", "llama", HOSTILE)),
        ("tensor.safetensors", &["plan"], safetensors(json!({ HOSTILE: lying }))),
        ("trace.jsonl", &["simulate", "--trace"], json!({ HOSTILE: 1 }).to_string().into_bytes()),
        ("value.jsonl", &["simulate", "--trace"], json!({ "prompt": HOSTILE }).to_string().into_bytes()),
        ("stats.json", &["stats"], json!({ HOSTILE: HOSTILE }).to_string().into_bytes()),
        ("start.log", &["calibrate", "--out", "/dev/null", "--log"], format!("INFO vLLM {HOSTILE}\n").into_bytes()),
    ];
    fs::write(folder.path().join("config.json"), &config).unwrap();
    for (name, args, bytes) in files {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        let output = command(args).arg(&path).output().unwrap();
        assert!(!output.status.success(), "{name}");
        assert_harmless(&output);
        fs::remove_file(path).unwrap();
    }
    let index = json!({ "metadata": { "total_size": 1 }, "weight_map": { "a": HOSTILE } }).to_string();
    fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
    for subcommand in ["plan", "inspect", "run"] {
        let output = command(&[subcommand]).arg(folder.path()).output().unwrap();
        assert_harmless(&output);
    }
}

#[test]
fn arguments_and_the_environment_steer_no_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let path = plan(folder.path());
    let file = path.to_str().unwrap();
    let one_line = HOSTILE.replace(['\n', '\r'], "");
    for args in [
        &[one_line.as_str()][..],
        &["plan", &one_line],
        &["plan", file, "--assume", &one_line],
        &["export", file, "--to", &one_line],
        &["export", file, "--to", "vllm", "--model", &one_line],
        &["bench", &one_line],
        &["plan", "explain", file, &one_line],
    ] {
        let output = cacheplan(args);
        assert!(!output.status.success());
        assert_harmless(&output);
    }
    for (name, value) in [("CACHEPLAN__GROUPING", HOSTILE), ("CACHEPLAN__NONE", HOSTILE), ("CACHEPLAN_LOG", HOSTILE)] {
        assert_harmless(&command(&["config", "show"]).env(name, value).output().unwrap());
    }
    let budget = folder.path().join("budget.toml");
    fs::write(&budget, format!("{} = 1\n", json!(HOSTILE))).unwrap();
    assert_harmless(&command(&["config", "show", "--budget"]).arg(&budget).output().unwrap());
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

#[rstest]
#[case::model(&["plan", "PATH"])]
#[case::description(&["plan", "CONFIG", "--description", "PATH"])]
#[case::budget(&["plan", "CONFIG", "--budget", "PATH"])]
#[case::measurement(&["plan", "CONFIG", "--measurement", "PATH"])]
#[case::draft(&["plan", "CONFIG", "--draft-tokens", "2", "--draft", "PATH"])]
#[case::checked(&["plan", "check", "PATH"])]
#[case::exported(&["export", "PATH", "--to", "vllm"])]
#[case::trace(&["simulate", "--trace", "PATH"])]
#[case::stats(&["stats", "PATH"])]
fn what_never_ends_is_refused_at_once(#[case] args: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.json");
    fs::write(&config, llama().to_string()).unwrap();
    for (name, target) in [("zero", "/dev/zero"), ("zero.gguf", "/dev/zero"), ("zero.safetensors", "/dev/zero")] {
        symlink(target, folder.path().join(name)).unwrap();
    }
    for name in ["pipe", "pipe.gguf", "pipe.onnx"] {
        assert!(Command::new("mkfifo").arg(folder.path().join(name)).status().unwrap().success());
    }
    for name in ["zero", "zero.gguf", "zero.safetensors", "pipe", "pipe.gguf", "pipe.onnx"] {
        let path = folder.path().join(name);
        let args = args.iter().map(|arg| match *arg {
            "PATH" => path.as_os_str(),
            "CONFIG" => config.as_os_str(),
            other => other.as_ref(),
        });
        let output = within_limits(&mut command(&args.collect::<Vec<_>>()));
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        assert!(stderr(&output).contains("a regular file was expected"), "{}", stderr(&output));
    }
}

#[rstest]
#[case("config.json")]
#[case("hf_quant_config.json")]
#[case("model.safetensors")]
#[case("model.safetensors.index.json")]
fn a_pipe_in_a_folder_is_refused_at_once(#[case] name: &str) {
    let folder = tempfile::tempdir().unwrap();
    if name != "config.json" {
        fs::write(folder.path().join("config.json"), llama().to_string()).unwrap();
    }
    assert!(Command::new("mkfifo").arg(folder.path().join(name)).status().unwrap().success());
    let output = within_limits(command(&["plan"]).arg(folder.path()));
    assert!(stderr(&output).contains("this is a pipe"), "{}", stderr(&output));
}

#[rstest]
#[case::config(&["plan", "-"], "[")]
#[case::spaces(&["plan", "-"], " ")]
#[case::trace(&["simulate", "--trace", "-"], "x")]
#[case::stats(&["stats", "-"], " ")]
fn endless_input_is_read_to_its_limit_only(#[case] args: &[&str], #[case] text: &str) {
    let mut child = command(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let chunk = text.repeat(1 << 16);
    let mut written = 0usize;
    // Ends where nobody reads any more.
    while input.write_all(chunk.as_bytes()).is_ok() {
        written += chunk.len();
        assert!(written < 100 << 20, "more than 100 MiB were taken");
    }
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("is not read") || stderr(&output).contains("line 1"), "{}", stderr(&output));
}

/// The command itself, with all that it consists of, and in a debug build: 64 MiB beside its code, 2 seconds of a
/// processor.
fn confined(args: &[&str]) -> Command {
    let mut command = Command::new("sh");
    let limits = "ulimit -d $(( 64 * 1024 )) && ulimit -t 2 && exec \"$@\"";
    command.args(["-c", limits, "sh", env!("CARGO_BIN_EXE_cacheplan")]).args(args).stdin(Stdio::null());
    command
}

const LLAMA: &str = r#""model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4"#;

#[rstest]
#[case::keys(&["plan", "CONFIG", "--budget", "FILE"], (0..1_000_000).map(|n| format!("key{n} = 1\n")).collect())]
#[case::comment(&["plan", "CONFIG", "--budget", "FILE"], format!("# {}\n", "x".repeat(100 << 20)))]
#[case::dotted(&["plan", "CONFIG", "--budget", "FILE"], format!("{}a = 1\n", "a.".repeat(50_000)))]
#[case::deep(&["plan", "CONFIG", "--budget", "FILE"], format!("a = {}\n", "[".repeat(100_000)))]
#[case::description(&["plan", "CONFIG", "--description", "FILE"], "layers = 1\n".repeat(1_000_000))]
#[case::sum(&["plan", "CONFIG", "--description", "FILE"], format!("model_types = [\"llama\"]\nlayers = \"1{}\"\n", "+1".repeat(50_000)))]
#[case::calls(&["plan", "CONFIG", "--description", "FILE"], format!("model_types = [\"llama\"]\nlayers = \"{}\"\n", "len(".repeat(20_000)))]
#[case::measured(&["plan", "CONFIG", "--measured", "FILE"], "[lines]\n".repeat(1_000_000))]
#[case::prices(&["fit", "CONFIG", "--context", "4k", "--sequences", "1", "--prices", "FILE"], "a = 1\n".repeat(1_000_000))]
#[case::measurement(&["plan", "CONFIG", "--measurement", "FILE"], format!("[{}1]", "1,".repeat(4_000_000)))]
#[case::statistics(&["stats", "FILE"], format!("{{\"pools\": [{}{{}}]}}", "{},".repeat(2_000_000)))]
#[case::padded(&["plan", "FILE"], format!("{{{LLAMA}}}{}", " ".repeat(200 << 20)))]
#[case::layers(&["plan", "FILE"], format!("{{{LLAMA}, \"layer_types\": [{}\"a\"]}}", "\"mamba\",".repeat(1_000_000)))]
#[case::name(&["plan", "FILE"], format!("{{\"model_type\": \"{}\"}}", "x".repeat(20 << 20)))]
#[case::short_name(&["plan", "FILE"], format!("{{\"model_type\": \"{}\"}}", "x".repeat(7 << 20)))]
#[case::plan(&["plan", "check", "FILE"], format!("{{\"schema_version\": 1, \"pools\": [{}{{}}]}}", "{},".repeat(1_000_000)))]
#[case::trace(&["simulate", "--trace", "FILE"], "{\"input_length\": 1, \"output_length\": 1, \"hash_ids\": [] }\n".repeat(100_000) + "x")]
#[case::log(&["check", "--log", "FILE", "--plan", "CONFIG"], "x".repeat(40 << 20))]
#[case::log_lines(&["calibrate", "--out", "OUT", "--log", "FILE"], "INFO x\n".repeat(1_000_000))]
#[case::log_words(&["calibrate", "--out", "OUT", "--log", "FILE"], "# GPU blocks: x\n".repeat(500_000))]
#[case::operation(&["bench", "nosuch"], String::new())]
fn what_is_refused_takes_no_more_than_64_mib_and_2_seconds(#[case] args: &[&str], #[case] content: String) {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).into_os_string().into_string().unwrap();
    let (config, file, out) = (path("config.json"), path("file.json"), path("out"));
    fs::write(&config, llama().to_string()).unwrap();
    fs::write(&file, content).unwrap();
    let args = args.iter().map(|arg| match *arg {
        "CONFIG" => config.as_str(),
        "FILE" => file.as_str(),
        "OUT" => out.as_str(),
        other => other,
    });
    let output = confined(&args.collect::<Vec<_>>()).output().unwrap();
    assert!(matches!(output.status.code(), Some(1 | 2 | 4)), "{}: {:.2000}", output.status, stderr(&output));
    assert!(output.stderr.len() < 16 << 10 && !Path::new(&out).exists(), "{} bytes of error", output.stderr.len());
}

#[test]
fn a_budget_that_asks_for_too_much_is_refused_with_its_file_key_and_line() {
    let folder = tempfile::tempdir().unwrap();
    let (config, budget) = (folder.path().join("config.json"), folder.path().join("my-budget.toml"));
    fs::write(&config, llama().to_string()).unwrap();
    for (text, key) in [
        ("\n[workload]\ncheckpoints_per_sequence = 18446744073709551615\n".to_owned(), "checkpoints_per_sequence"),
        ("\n[workload]\ncheckpoints_per_sequence = 9223372036854775807\n".to_owned(), "checkpoints_per_sequence"),
        (format!("\n\na{} = 1\n", ".a".repeat(1000)), "a"),
        (format!("\n\na = {}\n", "[".repeat(1000)), "3"),
    ] {
        fs::write(&budget, text).unwrap();
        let output = command(&["plan"]).arg(&config).arg("--budget").arg(&budget).output().unwrap();
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains("my-budget.toml") && text.contains(key), "{text}");
        assert!(key == "checkpoints_per_sequence" || text.contains(":3") || text.contains("line 3"), "{text}");
    }
}

#[test]
fn a_key_that_is_stated_twice_is_refused_everywhere() {
    let folder = tempfile::tempdir().unwrap();
    let path = plan(folder.path());
    let twice = |file: &Path, key: &str| {
        let text = fs::read_to_string(file).unwrap();
        fs::write(file, text.replacen('{', &format!("{{\"{key}\": 7,"), 1)).unwrap();
    };
    twice(&path, "manager");
    let output = cacheplan(&[Path::new("plan"), Path::new("check"), &path]);
    assert!(stderr(&output).contains("the key `manager` is stated twice"), "{}", stderr(&output));
    twice(&folder.path().join("config.json"), "hidden_size");
    let output = cacheplan(&[Path::new("plan"), folder.path()]);
    assert!(stderr(&output).contains("the key `hidden_size` is stated twice"), "{}", stderr(&output));
}

#[rstest]
#[case("/slots/live", json!(7), "slots")]
#[case("/limits/max_num_tokens", json!(0), "limits.max_num_tokens is 0")]
#[case("/limits/max_batch_size", json!(0), "limits.max_batch_size is 0")]
#[case("/pools/0/units", json!(2_147_483_647_u64), "bytes")]
fn a_plan_that_was_tampered_with_is_found_by_every_command(
    #[case] place: &str,
    #[case] value: Value,
    #[case] expected: &str,
) {
    let folder = tempfile::tempdir().unwrap();
    let path = plan(folder.path());
    let mut changed: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    *changed.pointer_mut(place).unwrap() = value;
    fs::write(&path, changed.to_string()).unwrap();
    let file = path.to_str().unwrap();
    for args in [
        &["plan", "check", file][..],
        &["plan", "diff", file, file],
        &["export", file, "--to", "vllm", "--model", "m"],
        &["simulate", "--workload", "agents", "--plan", file],
    ] {
        let output = within_limits(&mut command(args));
        assert_eq!(output.status.code(), Some(5), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    }
}

#[test]
fn a_check_names_what_differs() {
    let folder = tempfile::tempdir().unwrap();
    let path = plan(folder.path());
    let output = command(&["plan", "check"])
        .arg(&path)
        .args(["--max-batch-size", "3", "--model"])
        .arg(folder.path().join("config.json"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(5));
    let text = stderr(&output);
    assert!(text.contains("another budget") && text.contains("max_batch_size"), "{text}");
}

#[rstest]
#[case::a_flag("--trust-remote-code")]
#[case::a_line("m\u{2028}trust-remote-code: true")]
#[case::nothing("")]
fn a_model_name_that_is_none_is_refused(#[case] name: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = plan(folder.path());
    for target in ["vllm", "sglang", "llm-d", "dynamo", "ray"] {
        let output =
            command(&["export"]).arg(&path).args(["--to", target, &format!("--model={name}")]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stdout));
        assert!(stderr(&output).contains("cannot be told to an engine"), "{}", stderr(&output));
    }
}

#[test]
fn ranks_that_do_not_divide_the_heads_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = plan(folder.path());
    let ranks = |tp: &str| command(&["export"]).arg(&path).args(["--to", "vllm", "--model", "m", "--tp", tp]).output();
    assert!(ranks("2").unwrap().status.success());
    let output = ranks("3").unwrap();
    assert!(stderr(&output).contains("3 tensor-parallel ranks do not divide the 2 heads"), "{}", stderr(&output));
}

#[test]
fn an_output_replaces_regular_files_only() {
    let folder = tempfile::tempdir().unwrap();
    let path = plan(folder.path());
    let (pipe, link) = (folder.path().join("pipe"), folder.path().join("link"));
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    symlink("plan.json", &link).unwrap();
    let model = fixture("models/llama");
    let config = folder.path().join("config.json");
    for out in [Path::new("/dev/null"), &pipe] {
        for args in [
            &[Path::new("plan"), &config, Path::new("--out"), out][..],
            &[Path::new("export"), &path, Path::new("--to=vllm"), Path::new("--out"), out],
            &[
                Path::new("simulate"),
                Path::new("--workload=chat"),
                Path::new("--policy=no-buffer"),
                Path::new("--svg"),
                out,
            ],
            &[
                Path::new("run"),
                &model,
                Path::new("--prompt-ids=1"),
                Path::new("--max-new-tokens=1"),
                Path::new("--logits"),
                out,
            ],
            &[
                Path::new("run"),
                &model,
                Path::new("--prompt-ids=1"),
                Path::new("--max-new-tokens=1"),
                Path::new("--stats"),
                out,
            ],
        ] {
            let output = within_limits(&mut command(args));
            assert!(stderr(&output).contains("only a regular file is replaced"), "{args:?}: {}", stderr(&output));
        }
    }
    assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
    assert!(fs::metadata(&pipe).unwrap().file_type().is_fifo());
    assert!(cacheplan(&[Path::new("plan"), &config, Path::new("--out"), &link]).status.success());
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert!(fs::metadata(&path).unwrap().is_file());
}

#[test]
fn a_full_disk_keeps_the_old_plan() {
    let folder = tempfile::tempdir().unwrap();
    let path = plan(folder.path());
    let old = fs::read(&path).unwrap();
    assert!(old.len() > 1024, "it must not fit what is left");
    let output = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 1; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_cacheplan"), "plan"])
        .arg(folder.path().join("config.json"))
        .args(["--max-batch-size", "3", "--out"])
        .arg(&path)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert_eq!(fs::read(&path).unwrap(), old);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing is left beside it");
}

#[test]
fn a_histogram_does_not_tell_what_is_in_a_file() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("secret"), "root:x:0:0\n").unwrap();
    let budget = folder.path().join("budget.toml");
    fs::write(&budget, "[workload]\nprompt = { file = \"secret\" }\n").unwrap();
    fs::write(folder.path().join("config.json"), llama().to_string()).unwrap();
    let output =
        command(&["plan"]).arg(folder.path().join("config.json")).arg("--budget").arg(&budget).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("secret:1") && !stderr(&output).contains("root"), "{}", stderr(&output));
    let rows: String = (1..=200_000).map(|tokens| format!("{tokens},1\n")).collect();
    fs::write(folder.path().join("secret"), &rows[..1 << 20]).unwrap();
    let output =
        command(&["plan"]).arg(folder.path().join("config.json")).arg("--budget").arg(&budget).output().unwrap();
    assert!(stderr(&output).contains("more than 10000 lines"), "{}", stderr(&output));
}

#[test]
fn an_op_that_nobody_measures_costs_nothing() {
    let start = Instant::now();
    let output = cacheplan(&["bench", "nosuch"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

/// A folder with the tiny Llama, a tokenizer and a chat template.
fn chatting(template: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(fixture("models/llama").join(file), folder.path().join(file)).unwrap();
    }
    fs::copy(fixture("../../runtime/text/tests/fixtures/tiny/tokenizer.json"), folder.path().join("tokenizer.json"))
        .unwrap();
    fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
    folder
}

#[rstest]
#[case::deep("{% set n=namespace(d=[]) %}{% for i in range(100000) %}{% set n.d=[n.d] %}{% endfor %}{{ n.d }}")]
#[case::deep_and_dropped(
    "{% set n=namespace(d=[]) %}{% for i in range(100000) %}{% set n.d={'a': n.d} %}{% endfor %}{{ n.d|length }}{{ n.d }}"
)]
#[case::doubled("{% set n=namespace(s='a'*1000) %}{% for i in range(40) %}{% set n.s=n.s~n.s %}{% endfor %}")]
#[case::added("{% set n=namespace(s='a'*1000) %}{% for i in range(40) %}{% set n.s=n.s+n.s %}{% endfor %}")]
#[case::replaced(
    "{% set n=namespace(s='a'*100) %}{% for i in range(9) %}{% set n.s=n.s|replace('a', n.s) %}{% endfor %}"
)]
#[case::indented(
    "{% set n=namespace(s='a\n'*1000) %}{% for i in range(9) %}{% set n.s=n.s|indent(100000) %}{% endfor %}"
)]
#[case::captured(
    "{% set n=namespace(s='a'*1000) %}{% for i in range(40) %}{% set s %}{{ n.s }}{{ n.s }}{% endset %}{% set n.s=s %}{% endfor %}"
)]
#[case::handed_on("{% macro f(s, n) %}{% if n %}{{ f(s ~ s, n - 1) }}{% endif %}{% endmacro %}{{ f('a'*1000, 40) }}")]
#[case::endless("{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}")]
fn a_template_takes_no_more_than_it_is_given(#[case] template: &str) {
    let folder = chatting(template);
    let asked = ["--chat", "--prompt", "hi", "--max-new-tokens", "1", "--max-seq-len", "64"];
    let output = within_limits(command(&["run"]).arg(folder.path()).args(asked));
    assert_eq!(output.status.code(), Some(1), "{}: {}", output.status, stderr(&output));
    assert!(stderr(&output).contains("chat_template.jinja"), "{}", stderr(&output));
}

#[test]
fn a_template_that_ended_its_process_ends_no_other_conversation() {
    let folder = chatting(
        "{% if messages[0].content == 'no' %}{% set n=namespace(s='a'*1000) %}{% for i in range(40) %}{% set n.s=n.s~n.s %}{% endfor %}{% endif %}{{ messages[0].content }}",
    );
    let run = |input: &str| {
        let mut chat = command(&["run"]);
        chat.arg(folder.path()).args(["--chat", "--max-new-tokens", "2", "--max-seq-len", "64", "--ignore-eos"]);
        let mut child = chat.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    };
    let output = run("hat\n");
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(run("no\n").status.code(), Some(1));
}

/// What a command reads and what it writes, by what follows its name; `FILE` is both.
#[rstest]
#[case::plan(&["plan", "FILE", "--out", "FILE"], "config.json")]
#[case::budget(&["plan", "config.json", "--budget", "FILE", "--out", "FILE"], "budget.toml")]
#[case::histogram(&["plan", "config.json", "--budget", "histogram.toml", "--out", "FILE"], "lengths.csv")]
#[case::export(&["export", "FILE", "--to", "vllm", "--out", "FILE"], "plan.json")]
#[case::trace(&["simulate", "--trace", "FILE", "--policy", "no-buffer", "--svg", "FILE"], "trace.jsonl")]
#[case::profile(&["profile", "MODEL", "--max-seq-len", "32", "--out", "FILE"], "model/model.safetensors")]
#[case::stats(&["run", "MODEL", "--prompt-ids", "1", "--max-new-tokens", "1", "--stats", "FILE"], "model/model.safetensors")]
#[case::logits(&["run", "MODEL", "--prompt-ids", "1", "--max-new-tokens", "1", "--logits", "FILE"], "model/config.json")]
#[case::timeline(&["run", "MODEL", "--prompt-ids", "1", "--max-new-tokens", "1", "--timeline", "FILE"], "model/config.json")]
#[case::report(&["run", "MODEL", "--prompt-ids", "1", "--max-new-tokens", "1", "--report", "json", "FILE"], "model/config.json")]
#[case::unread(&["run", "MODEL", "--prompt-ids", "1", "--max-new-tokens", "1", "--stats", "FILE"], "model/tokenizer.json")]
#[case::requests(&["run", "MODEL", "--requests", "FILE", "--out", "FILE"], "requests.jsonl")]
#[case::piped(&["run", "MODEL", "--requests", "-", "--out", "FILE"], "requests.jsonl")]
fn no_output_takes_the_place_of_an_input(
    #[case] args: &[&str],
    #[case] name: &str,
    #[values("itself", "link", "hard link", "other way")] named: &str,
) {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    plan(folder.path());
    fs::create_dir(at("model")).unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(fixture("models/llama").join(file), at("model").join(file)).unwrap();
    }
    fs::write(at("model/tokenizer.json"), "{}").unwrap();
    fs::write(at("budget.toml"), "max_seq_len = 64\n").unwrap();
    fs::write(at("lengths.csv"), "10,1\n20,2\n").unwrap();
    fs::write(at("histogram.toml"), "[workload]\nprompt = { file = \"lengths.csv\" }\n").unwrap();
    fs::write(
        at("trace.jsonl"),
        "{\"prompt\": [{\"id\": 7, \"len\": 512}, {\"tokens\": [3, 9]}], \"output\": {\"id\": 8, \"len\": 100}}\n",
    )
    .unwrap();
    fs::write(at("requests.jsonl"), "{\"prompt_ids\": [1, 2], \"max_tokens\": 2}\n").unwrap();
    let old = fs::read(at(name)).unwrap();
    let output = match named {
        "link" => {
            symlink(at(name), at("link")).unwrap();
            at("link")
        }
        "hard link" => {
            fs::hard_link(at(name), at("hard")).unwrap();
            at("hard")
        }
        "other way" => folder.path().join("model/..").join(name),
        _ => at(name),
    };
    let last = args.iter().rposition(|arg| *arg == "FILE").unwrap();
    let args = args.iter().enumerate().map(|(place, arg)| match *arg {
        "FILE" if place == last => output.clone(),
        "FILE" => at(name),
        "MODEL" => at("model"),
        "config.json" | "histogram.toml" => at(arg),
        other => other.into(),
    });
    let mut command = command(&args.collect::<Vec<_>>());
    if name == "requests.jsonl" {
        command.stdin(fs::File::open(at(name)).unwrap());
    }
    let refused = within_limits(&mut command);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("is an input of the same command, or of its model"), "{}", stderr(&refused));
    assert_eq!(fs::read(at(name)).unwrap(), old);
}

#[rstest]
#[case(&["--prompt-ids", "1", "--stats", "X", "--timeline", "X"])]
#[case(&["--prompt-ids", "1", "--logits", "X", "--stats", "./X"])]
#[case(&["--prompt-ids", "1", "--stats", "X", "--report", "json", "X"])]
#[case(&["--requests", "r.jsonl", "--out", "X", "--stats", "X"])]
#[case(&["--requests", "r.jsonl", "--out", "X", "--trace", "X"])]
#[case(&["--prompt-ids", "1", "--trace", "X", "--stats", "./X"])]
#[case(&["--prompt-ids", "1", "--trace", "X", "--logits", "X"])]
#[case(&["--prompt-ids", "1", "--trace", "X", "--timeline", "X"])]
#[case(&["--prompt-ids", "1", "--trace", "X", "--report", "json", "X"])]
fn no_output_takes_the_place_of_another(#[case] args: &[&str], #[values(false, true)] is_there: bool) {
    let folder = tempfile::tempdir().unwrap();
    if is_there {
        fs::write(folder.path().join("X"), "").unwrap();
    }
    fs::write(folder.path().join("r.jsonl"), "{\"prompt_ids\": [1, 2], \"max_tokens\": 2}\n").unwrap();
    let mut run = command(&["run"]);
    run.current_dir(folder.path()).arg(fixture("models/llama")).args(["--max-seq-len", "32"]).args(args);
    let refused = within_limits(&mut run);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("X: two outputs of this command would be this file"), "{}", stderr(&refused));
    assert_eq!(fs::read(folder.path().join("X")).ok(), is_there.then(Vec::new));
}

/// A trace of an earlier run is written over, and is no input of this one.
#[test]
fn a_trace_is_written_again_beside_other_outputs() {
    let folder = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let mut run = command(&["run"]);
        run.current_dir(folder.path()).arg(fixture("models/llama")).args(["--max-seq-len", "32", "--prompt-ids", "1"]);
        let output = within_limits(run.args(["--max-new-tokens", "1", "--trace", "t.json", "--stats", "s.json"]));
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    }
    let mut plan = command(&["plan"]);
    plan.current_dir(folder.path()).arg(fixture("models/llama")).args(["--trace", "t.json", "--out", "t.json"]);
    let refused = within_limits(&mut plan);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("two outputs"), "{}", stderr(&refused));
    assert!(fs::read_to_string(folder.path().join("t.json")).unwrap().contains("\"forward\""));
}

#[test]
fn outputs_that_are_killed_while_they_come_leave_the_old_file() {
    let folder = tempfile::tempdir().unwrap();
    let (requests, out) = (folder.path().join("r.jsonl"), folder.path().join("out.jsonl"));
    fs::write(&requests, "{\"prompt_ids\": [1, 2], \"max_tokens\": 100}\n".repeat(400)).unwrap();
    for pause in [0, 50, 200, 400, 800] {
        fs::write(&out, "old\n").unwrap();
        let mut run = command(&["run"]);
        run.arg(fixture("models/llama")).args(["--max-seq-len", "128", "--max-batch-size", "2", "--requests"]);
        run.arg(&requests).arg("--out").arg(&out).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = run.spawn().unwrap();
        std::thread::sleep(Duration::from_millis(pause));
        let ended = child.try_wait().unwrap().is_some();
        child.kill().unwrap();
        child.wait().unwrap();
        let found = fs::read_to_string(&out).unwrap();
        assert!(found == "old\n" || (ended && found.lines().count() == 400), "after {pause} ms: {found:.80}");
    }
}

#[rstest]
#[case::layers(&["plan"], "config.json", format!("{{{}, \"num_hidden_layers\": 10000}}", LLAMA.replace("\"num_hidden_layers\": 2, ", "")).into_bytes(), "at most 1024 layers")]
#[case::layers_that_are_fitted(&["fit", "--context", "4k", "--sequences", "1"], "config.json", format!("{{{}, \"num_hidden_layers\": 10000}}", LLAMA.replace("\"num_hidden_layers\": 2, ", "")).into_bytes(), "at most 1024 layers")]
#[case::dimensions(&["plan"], "model.onnx", onnx_of_dimensions(15_000_000), "take more than")]
fn what_would_take_long_is_refused_at_once(
    #[case] args: &[&str],
    #[case] name: &str,
    #[case] content: Vec<u8>,
    #[case] expected: &str,
) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(name);
    fs::write(&file, content).unwrap();
    let (first, rest) = args.split_first().unwrap();
    let output = confined(&[&[*first, file.to_str().unwrap()], rest].concat()).output().unwrap();
    assert!(matches!(output.status.code(), Some(1 | 4)), "{}: {}", output.status, stderr(&output));
    assert!(stderr(&output).contains(expected), "{}", stderr(&output));
}

/// A graph with a weight whose dimensions are stated one by one.
fn onnx_of_dimensions(count: usize) -> Vec<u8> {
    let within = |tag: u8, message: Vec<u8>| {
        let mut length = Vec::new();
        let mut left = message.len();
        while left >= 128 {
            length.push(left as u8 | 128);
            left >>= 7;
        }
        length.push(left as u8);
        [vec![tag << 3 | 2], length, message].concat()
    };
    within(7, within(5, [0x08, 0x01].repeat(count)))
}

#[test]
fn a_prompt_that_cannot_fit_is_refused_before_it_is_cut() {
    let folder = chatting("");
    let prompt = folder.path().join("prompt");
    fs::write(&prompt, "every block has an owner ".repeat(300_000)).unwrap();
    let mut run = command(&["run"]);
    run.arg(folder.path()).args(["--max-seq-len", "256", "--prompt", "-"]).stdin(fs::File::open(&prompt).unwrap());
    let output = within_limits(&mut run);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("more than the 256 tokens that a sequence may have"), "{}", stderr(&output));
}

/// Files of every kind that commands read, each changed in many ways: whatever comes of it is an answer or a refusal within
/// 64 MiB and 2 seconds, in a process of its own, so that one that aborts is found. `CACHEPLAN_HOSTILE_ROUNDS` asks for more.
#[rstest]
#[case::config(&["plan FILE", "inspect FILE", "compare FILE", "plan explain FILE"], "config.json")]
#[case::budget(&["plan config.json --budget FILE", "config show --budget FILE"], "budget.toml")]
#[case::plan(&["plan check FILE", "plan diff FILE plan.json", "export FILE --to vllm", "export FILE --to llm-d"], "plan.json")]
#[case::trace(&["simulate --trace FILE --policy no-buffer"], "trace.jsonl")]
#[case::measured(&["plan config.json --measured FILE"], "measured.toml")]
#[case::measurement(&["plan config.json --measurement FILE"], "measurement.json")]
#[case::log(&["calibrate --log FILE", "check --plan plan.json --log FILE"], "start.log")]
#[case::description(&["plan config.json --description FILE"], "description.toml")]
fn whatever_is_read_is_answered_or_refused(#[case] commands: &[&str], #[case] name: &str) {
    let rounds: u64 = std::env::var("CACHEPLAN_HOSTILE_ROUNDS").map_or(8, |rounds| rounds.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    plan(folder.path());
    fs::write(at("budget.toml"), "max_seq_len = 64\n[memory]\nbytes = \"1GiB\"\n[workload]\nprompt = { fixed = 20 }\n")
        .unwrap();
    fs::write(
        at("trace.jsonl"),
        "{\"prompt\": [{\"id\": 7, \"len\": 512}, {\"tokens\": [3, 9]}], \"output\": {\"id\": 8, \"len\": 100}}\n"
            .repeat(4),
    )
    .unwrap();
    fs::write(at("measured.toml"), "[lines]\nweights = { bytes = 1000, within = 10 }\n").unwrap();
    fs::write(at("measurement.json"), r#"{ "resident_bytes": 6000, "forward_bytes": 1000, "free_bytes": 8000000 }"#)
        .unwrap();
    fs::copy(fixture("logs/tensorrt-llm-deepseek-r1-distill-llama-8b.log"), at("start.log")).unwrap();
    let llama = fixture("../../transforms/src/frontend/config/architectures/llama.toml");
    fs::copy(llama, at("description.toml")).unwrap();
    let seed = fs::read(at(name)).unwrap();
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    let mut below = |below: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % below.max(1)
    };
    let changed = at("changed").with_extension(Path::new(name).extension().unwrap());
    for _ in 0..rounds {
        let mut bytes = seed.clone();
        for _ in 0..1 + below(3) {
            let (from, to) = (below(bytes.len()), below(bytes.len()));
            let (from, to) = (from.min(to), from.max(to));
            match below(6) {
                0 => bytes.truncate(from),
                1 if !bytes.is_empty() => bytes[from] ^= 1 << below(8),
                2 => drop(bytes.splice(from..to, [])),
                3 => {
                    let more = bytes[from..to].repeat(1 + below(50));
                    drop(bytes.splice(from..from, more));
                }
                4 => {
                    // Another number, at the first digit behind a place.
                    let digit = bytes[from..].iter().position(u8::is_ascii_digit).map(|at| from + at);
                    let numbers = ["18446744073709551615", "-1", "1e308", "0", "9007199254740993", "4294967296"];
                    let number = numbers[below(numbers.len())].bytes();
                    digit.into_iter().for_each(|at| drop(bytes.splice(at..=at, number.clone())));
                }
                _ => {
                    let bracket = [b'[', b'{', b'"'][below(3)];
                    drop(bytes.splice(from..from, vec![bracket; below(5000)]));
                }
            }
        }
        fs::write(&changed, &bytes).unwrap();
        for args in commands {
            let args: Vec<String> = args
                .split(' ')
                .map(|arg| match arg {
                    "FILE" => changed.display().to_string(),
                    "config.json" | "plan.json" => at(arg).display().to_string(),
                    other => other.to_owned(),
                })
                .collect();
            let output = confined(&args.iter().map(String::as_str).collect::<Vec<_>>()).output().unwrap();
            let kept = || {
                let kept = std::env::temp_dir().join(format!("cacheplan-hostile-{name}"));
                fs::write(&kept, &bytes).unwrap();
                kept
            };
            let harmless = matches!(output.status.code(), Some(0..=5)) && !stderr(&output).contains("panicked");
            assert!(harmless, "{args:?}: {} at {}: {}", output.status, kept().display(), stderr(&output));
            assert_harmless(&output);
        }
    }
}
