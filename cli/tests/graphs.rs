//! Exported graphs as users of the command meet them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rstest::rstest;
use serde_json::Value;

fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(path)
}

/// Runs `cacheplan ARGS`, where `@` stands before a path of a fixture.
fn cacheplan(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cacheplan"));
    for arg in args {
        match arg.strip_prefix('@') {
            Some(path) => command.arg(fixture(path)),
            None => command.arg(arg),
        };
    }
    command.env("NO_COLOR", "1").output().unwrap()
}

fn json(args: &[&str]) -> Value {
    let output = cacheplan(&[args, &["--format", "json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn assert_refused(output: &Output, code: i32, message: &str) {
    // As a terminal of any width breaks it.
    let stderr = String::from_utf8_lossy(&output.stderr);
    let words: Vec<&str> = stderr.split_whitespace().filter(|word| *word != "│").collect();
    assert!(words.join(" ").contains(message), "{stderr}");
    assert_eq!(output.status.code(), Some(code));
}

const PROMPT: [&str; 5] = ["--prompt-ids", "5,9,2,77,31", "--max-new-tokens", "12", "--ignore-eos"];

#[test]
fn an_export_of_ours_runs_in_place_of_the_layers() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let export = ["export-graph", "@static_cache/nemotron_h", "--buckets", "16,1", "--max-cache-len", "64", "--out"];
    let written = cacheplan(&[&export[..], &[out]].concat());
    let files: Vec<String> = String::from_utf8(written.stdout).unwrap().lines().map(str::to_owned).collect();
    assert_eq!(files, [format!("{out}/prefill_16.onnx"), format!("{out}/decode.onnx")]);
    let run = [&["run", "@static_cache/nemotron_h"], &PROMPT[..]].concat();
    let native = json(&[&run[..], &["--max-seq-len", "64"]].concat());
    let graphs = json(&[&run[..], &["--static", out]].concat());
    assert_eq!(graphs["tokens"], native["tokens"]);
    let pools = graphs["report"]["pools"].as_array().unwrap();
    assert!(!pools.is_empty() && pools.iter().all(|pool| pool["planned_bytes"] == pool["actual_bytes"]), "{pools:?}");
}

/// What is left of another export would be run beside this one's.
#[test]
fn a_folder_with_graphs_of_another_export_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let export = |buckets: &str| {
        cacheplan(&["export-graph", "@static_cache/qwen3", "--buckets", buckets, "--max-cache-len", "32", "--out", out])
    };
    assert!(export("3,1").status.success());
    assert_refused(&export("4,1"), 1, "prefill_3.onnx");
    assert!(!folder.path().join("prefill_4.onnx").exists());
    assert!(export("3,1").status.success());
}

/// Invented weights that lie there would be joined to the layers of the model.
#[test]
fn a_folder_with_another_models_weights_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let export = ["export-graph", "@static_cache/qwen3", "--buckets", "1,1", "--max-cache-len", "32", "--out", out];
    let written = cacheplan(&[&export[..], &["--random-weights"]].concat());
    let files = String::from_utf8(written.stdout).unwrap();
    assert_eq!(files.matches("decode.onnx").count(), 1, "{files}");
    assert_refused(&cacheplan(&export), 1, "model.safetensors: it is of another export or model");
}

#[rstest]
#[case(&["--max-batch-size", "2"], "--verify generates one sequence")]
#[case(&["--max-new-tokens", "0"], "'--max-new-tokens <N>'")]
fn what_cannot_be_verified_is_not_written(#[case] flags: &[&str], #[case] said: &str) {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("graphs");
    let export = ["export-graph", "@static_cache/qwen3", "--verify", "--out", out.to_str().unwrap()];
    assert_refused(&cacheplan(&[&export[..], flags].concat()), 2, said);
    assert!(!out.exists());
}

#[test]
fn graphs_with_states_that_the_model_lacks_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let export = ["export-graph", "@static_cache/nemotron_h", "--buckets", "1", "--max-cache-len", "64", "--out", out];
    assert!(cacheplan(&export).status.success());
    let run = [&["run", "@models/llama", "--static", out], &PROMPT[..]].concat();
    assert_refused(&cacheplan(&run), 4, "it is of another model");
}

#[test]
fn a_decode_graph_is_planned_in_one_slot_without_pages() {
    let plan = json(&["plan", "@static_cache/decode.onnx"]);
    assert_eq!([&plan["limits"]["max_seq_len"], &plan["limits"]["max_batch_size"]], [128, 1]);
    assert!(plan["pools"].as_array().unwrap().iter().all(|pool| pool["unit"] == "slot"), "{}", plan["pools"]);
}

/// Of the same length, so that the messages around it stay as they are.
#[test]
fn an_operator_that_is_not_known_is_named_with_its_node() {
    let mut graph = std::fs::read(fixture("onnx/hybrid_opset18.onnx")).unwrap();
    while let Some(at) = graph.windows(7).position(|word| word == b"Sigmoid") {
        graph[at..at + 7].copy_from_slice(b"Sigmoix");
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("graph.onnx");
    std::fs::write(&file, graph).unwrap();
    let output = cacheplan(&[&["run", file.to_str().unwrap(), "--max-seq-len", "64"], &PROMPT[..]].concat());
    assert_refused(&output, 4, "node `node_Sigmoix_17` (Sigmoix): this operator is not run");
}

#[rstest]
#[case::a_bucket_beyond_the_cache(&["--buckets", "1,65", "--max-cache-len", "64"], "a bucket of 65 tokens cannot be exported; it must be from 1 to 64, what the cache holds")]
#[case::a_bucket_of_nothing(&["--buckets", "0", "--max-cache-len", "64"], "a bucket of 0 tokens")]
#[case::a_cache_beyond_all(&["--max-cache-len", "1048577"], "a cache of 1048577 tokens")]
#[case::no_number(&["--buckets", "many", "--max-cache-len", "64"], "`many` is neither a number nor `dynamic`")]
fn a_size_that_cannot_be_exported_is_a_wrong_flag(#[case] flags: &[&str], #[case] message: &str) {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("graphs");
    let export = ["export-graph", "@static_cache/qwen3", "--out", out.to_str().unwrap()];
    assert_refused(&cacheplan(&[&export[..], flags].concat()), 2, message);
    assert!(!out.exists());
}

#[test]
fn a_program_of_torch_export_is_planned_and_not_run() {
    let plan = json(&["plan", "@pt2/hybrid.pt2"]);
    assert_eq!([&plan["limits"]["max_seq_len"], &plan["limits"]["max_batch_size"]], [32, 1]);
    let names: Vec<&str> =
        plan["resources"].as_array().unwrap().iter().map(|found| found["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["key_cache_1", "value_cache_1", "conv_state_0", "ssm_state_0"]);
    let run = [&["run", "@pt2/hybrid.pt2"], &PROMPT[..]].concat();
    assert_refused(&cacheplan(&run), 4, "programs of torch.export are planned, not run");
}

#[test]
fn onnx_runtime_is_for_graphs() {
    let run = [&["run", "@static_cache/qwen3", "--onnx-runtime", "nowhere.so"], &PROMPT[..]].concat();
    assert_refused(&cacheplan(&run), 2, "--onnx-runtime runs exported graphs");
    let message = if cfg!(feature = "ort") { "ONNX Runtime:" } else { "rebuild with `--features ort`" };
    assert_refused(&cacheplan(&[&run[..], &["--static", "@static_cache"]].concat()), 1, message);
}

/// The folder that it leaves is a model, native and exported.
#[test]
fn one_command_exports_random_weights_and_says_that_token_ids_match() {
    let folder = tempfile::tempdir().unwrap();
    let (source, out) = (folder.path().join("source"), folder.path().join("graphs"));
    std::fs::create_dir(&source).unwrap();
    std::fs::copy(fixture("static_cache/qwen3/config.json"), source.join("config.json")).unwrap();
    let [source, out] = [&source, &out].map(|path| path.to_str().unwrap());
    let export = ["export-graph", source, "--out", out, "--random-weights", "--seed", "3", "--verify"];
    let verified = cacheplan(&[&export[..], &["--max-new-tokens", "8"]].concat());
    let stdout = String::from_utf8(verified.stdout).unwrap();
    assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));
    let said = |what: &str| stdout.lines().find_map(|line| line.strip_prefix(what)).unwrap().trim().to_owned();
    assert_eq!(said("Exported model output:"), said("Original model output:"));
    assert_eq!(said("Exported model output:").split(',').count(), 8);
    assert_eq!(said("Token ids match:"), "True");
    let run = [&["run", out, "--max-seq-len", "64"], &PROMPT[..]].concat();
    assert_eq!(json(&[&run[..], &["--static", out]].concat())["tokens"], json(&run)["tokens"]);
}

#[rstest]
#[case::no_such_model(&["export-graph", "@configs/RWKV__rwkv-4-169m-pile.json", "--random-weights", "--verify"], 4, "the runtime knows")]
#[case::a_seed_of_nothing(&["export-graph", "@static_cache/qwen3", "--seed", "3"], 2, "--random-weights")]
#[case::a_prompt_of_nothing(&["export-graph", "@static_cache/qwen3", "--prompt-ids", "3"], 2, "--verify")]
#[case::a_prompt_beyond_the_cache(&["export-graph", "@static_cache/qwen3", "--verify", "--max-cache-len", "20", "--max-new-tokens", "9"], 1, "20")]
fn what_cannot_be_verified_is_said(#[case] args: &[&str], #[case] code: i32, #[case] message: &str) {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("graphs");
    assert_refused(&cacheplan(&[args, &["--out", out.to_str().unwrap()]].concat()), code, message);
}

#[test]
fn invented_weights_in_the_place_of_a_models_own_are_wrong_usage() {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(fixture("models/llama").join(file), folder.path().join(file)).unwrap();
    }
    let model = folder.path().to_str().unwrap();
    let refused = cacheplan(&["export-graph", model, "--out", model, "--random-weights"]);
    assert_refused(&refused, 2, "random weights would take the place of the model's own; name another folder");
}

/// As an exporter leaves them for a runtime: a graph that gives logits, and the config that says what its states are.
fn runtime_folder(config: impl Fn(String) -> String) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(fixture("onnx/hybrid_opset18.onnx"), folder.path().join("model.onnx")).unwrap();
    let stated = std::fs::read_to_string(fixture("edge_llm/config.json")).unwrap();
    std::fs::write(folder.path().join("config.json"), config(stated)).unwrap();
    folder
}

#[test]
fn a_runtime_config_and_its_graph_run_without_any_other_config() {
    let folder = runtime_folder(|config| config);
    let folder = folder.path().to_str().unwrap();
    let length = ["--max-seq-len", "64"];
    let alone = json(&[&["run", "@onnx/hybrid_opset18.onnx"], &PROMPT[..], &length].concat());
    let run = json(&[&["run", folder, "--static", folder], &PROMPT[..], &length].concat());
    assert_eq!(run["tokens"], alone["tokens"]);
    assert_eq!(run["tokens"][0].as_array().unwrap().len(), 12);
}

#[test]
fn a_config_that_contradicts_the_graph_beside_it_is_refused() {
    let folder = runtime_folder(|config| config.replace("\"conv_kernel\": 4", "\"conv_kernel\": 3"));
    let folder = folder.path().to_str().unwrap();
    let run = cacheplan(&[&["run", folder, "--static", folder], &PROMPT[..]].concat());
    assert_refused(&run, 4, "and that of the config");
}

#[rstest]
#[case(&["run", "@onnx/hybrid_opset18.onnx", "--kv-dtype", "int8", "--max-seq-len", "512"], 2, "an exported graph is given keys and values in f32, f16 and bf16")]
#[case(&["run", "@onnx/hybrid_opset18.onnx", "--draft-tokens", "2", "--max-seq-len", "512"], 2, "an exported graph verifies no drafts")]
#[case(&["run", "@static_cache/decode.onnx"], 4, "the graph gives no logits; run it with the model around it")]
fn what_a_graph_alone_does_not_give_is_refused(#[case] args: &[&str], #[case] code: i32, #[case] said: &str) {
    assert_refused(&cacheplan(&[args, &PROMPT[..]].concat()), code, said);
}
