//! What strangers wrote steers no terminal.

use std::fs;

use rstest::rstest;
use serde_json::{Value, json};

use super::{assert_harmless, cacheplan, command, fixture, llama, plan};

/// Colours, the clipboard, one-byte escapes, a second line, another direction, separators of lines.
const HOSTILE: &str = "a\u{1b}[31m\u{1b}]52;c;QQ==\u{7}\u{9b}2J\nMODEL    fake\r\u{202e}\u{2028}\u{2029}\u{85}b";

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
