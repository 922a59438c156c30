//! Commands in the files of a repository, as they are checked before they are merged: the action, the hook, what is expected of each.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use common::{cacheplan, config, root, said};
use rstest::rstest;

const QWEN: &str = "Qwen__Qwen3-8B";

/// The text below `key: |` in a file of an action, without its indentation.
fn block(text: &str, key: &str) -> String {
    let (_, rest) = text.split_once(&format!("{key}: |\n")).unwrap();
    let indent = rest.len() - rest.trim_start().len();
    rest.lines()
        .take_while(|line| line.len() >= indent && line[..indent].trim().is_empty())
        .map(|line| line[indent..].to_owned() + "\n")
        .collect()
}

/// A manifest whose node says its GPU.
fn manifest(flags: &str) -> String {
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: qwen}}\nspec:\n  template:\n    spec:\n      \
         nodeSelector: {{nvidia.com/gpu.product: NVIDIA-L40S}}\n      containers:\n      - name: vllm\n        \
         image: vllm/vllm-openai:v0.11.0\n        command: [vllm, serve, {}, {flags}]\n        \
         resources: {{limits: {{nvidia.com/gpu: 1}}}}\n",
        config(QWEN)
    )
}

/// A repository with one command that starts, one that does not, one on a node, and a file that names no engine.
fn repository() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let command = |flags: &str| format!("#!/bin/sh\nexec vllm serve {} {flags}\n", config(QWEN));
    fs::write(folder.path().join("serve-good.sh"), command("--max-model-len 8192")).unwrap();
    fs::write(folder.path().join("serve-bad.sh"), command("--max-model-len 8192 --tensor-parallel-size 3")).unwrap();
    fs::write(folder.path().join("deploy.yaml"), manifest("--max-model-len, '8192', --max-num-seqs, '8'")).unwrap();
    let service = |name: &str| format!("apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\n");
    fs::write(folder.path().join("deploy-web.yaml"), service("web")).unwrap();
    fs::write(folder.path().join("deploy-service.yaml"), service("vllm")).unwrap();
    folder
}

#[rstest]
#[case("serve-good.sh", "h100", 0)]
#[case("serve-*.sh", "h100", 3)]
#[case("serve-good.sh", "", 2)]
#[case("deploy*.yaml", "", 0)]
#[case("deploy-service.yaml", "", 0)]
#[case("", "", 2)]
#[case("nofile-*.yaml", "h100", 2)]
fn the_actions_step_ends_as_the_worst_command(#[case] files: &str, #[case] device: &str, #[case] code: i32) {
    let (repository, action) = (repository(), root().join("tools/action"));
    let step = block(&fs::read_to_string(action.join("action.yml")).unwrap(), "run");
    let mut bash = Command::new("bash");
    bash.args(["-eo", "pipefail", "-c", &step]).current_dir(repository.path());
    bash.envs([
        ("FILES", files),
        ("DEVICE", device),
        ("FLAGS", "--expect-sequences 8"),
        ("CACHEPLAN", env!("CARGO_BIN_EXE_cacheplan")),
    ]);
    let output = bash.env("GITHUB_ACTION_PATH", action).output().unwrap();
    assert_eq!(output.status.code(), Some(code), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A gate that looks at nothing is not passed.
#[rstest]
#[case::no_words(&[], "no `--`")]
#[case::a_file_read_as_a_value(&["--strict", "--device", "serve-good.sh"], "no `--`")]
#[case::a_file_read_as_a_flag(&["--device", "h100", "serve-bad.sh"], "no `--`")]
#[case::no_files(&["--device", "h100", "--"], "no files")]
fn a_check_of_no_files_is_refused(#[case] args: &[&str], #[case] why: &str) {
    let mut check = Command::new(root().join("tools/action/check.sh"));
    let repository = repository();
    check.args(args).current_dir(repository.path()).env("CACHEPLAN", env!("CARGO_BIN_EXE_cacheplan"));
    let (code, _, err) = said(&check.output().unwrap());
    assert!(code == Some(2) && err.contains(why) && err.contains("-- FILE"), "{code:?} {err}");
}

#[test]
fn the_pre_commit_hook_runs_as_pre_commit_runs_it() {
    let (repository, hooks) = (repository(), fs::read_to_string(root().join(".pre-commit-hooks.yaml")).unwrap());
    let of = |key: &str| hooks.lines().find_map(|line| line.trim().strip_prefix(key)).unwrap().trim().to_owned();
    let args = of("args:");
    let args = ["--device", "h100"].into_iter().chain(args.trim_matches(['[', ']']).split(", "));
    for read in ["sh", "bash", "zsh", "bat", "cmd", "ps1", "ya?ml", "Dockerfile", "service", "sbatch", "slurm"] {
        assert!(hooks.contains(read), "{read}");
    }
    // A hook of `language: script` is the file in its repository, with its args and the names of the files.
    let mut hook = Command::new(root().join(of("entry:")));
    hook.args(args)
        .args(["serve-good.sh", "serve-bad.sh", "deploy-web.yaml"])
        .current_dir(repository.path())
        .env("CACHEPLAN", env!("CARGO_BIN_EXE_cacheplan"));
    let output = hook.output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{err}");
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(
        out.contains("must be divisible by tensor parallel size (3)") && out.contains("--tensor-parallel-size 2"),
        "{out}"
    );
}

/// A Deployment of one container.
fn pod(container: &str) -> String {
    format!(
        "kind: Deployment\nmetadata: {{name: qwen}}\nspec:\n  template:\n    spec:\n      containers:\n      - name: main\n\
         {container}"
    )
}

/// A command that a change has made unknown is not taken for none.
#[rstest]
#[case::a_wrong_image("a.yaml", &pod("        image: vllm/vllm-opnai:v1\n        args: [--model, m, --max-model-len, '8']\n"), "vllm/vllm-opnai:v1` of Deployment qwen, container main")]
#[case::an_own_image("a.yaml", &pod("        image: localhost:5000/ai/inference:1.2\n        args: [--model, m, --max-num-seqs=8]\n"), "localhost:5000/ai/inference:1.2")]
#[case::a_patch("a.yaml", &pod("        args: [--max-model-len, '8']\n"), "no image of Deployment qwen, container main")]
#[case::a_program("a.yaml", &pod("        image: i\n        command: [/start, --max-model-len, '8']\n"), "`start` of Deployment qwen, container main")]
#[case::a_service(
    "a.yaml",
    "services:\n  s:\n    image: own/llm\n    command: --model m --mem-fraction-static 0.8\n",
    "own/llm"
)]
#[case::docker("a.sh", "# a\ndocker run --gpus all own/llm --model m --tensor-parallel-size 2\n", "a.sh:2: ")]
#[case::a_line("a.sh", "# a\nPORT=1 python serve.py --model m --max_num_seqs 8\n", "a.sh:2: `python`")]
fn flags_of_engines_behind_what_is_none_are_refused(#[case] name: &str, #[case] text: &str, #[case] named: &str) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(name);
    let check = |text: &str| {
        fs::write(&file, text).unwrap();
        said(&cacheplan(&["plan", "--if-any", "--device", "h100", "--", file.to_str().unwrap()]))
    };
    let (code, out, err) = check(text);
    assert!(code == Some(2) && err.contains(named) && err.contains("is not read; state"), "{code:?} {out}{err}");
    // It is the flags that say so.
    let plain = ["--max", "--mem", "--tensor"].iter().fold(text.to_owned(), |text, flag| text.replace(flag, "--own"));
    let (code, out, err) = check(&plain);
    assert!(code == Some(0) && err.contains("left out"), "{code:?} {out}{err}");
}

#[test]
fn a_container_beside_one_that_is_read_is_refused_too() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("two.yaml");
    let own = pod("        image: vllm/vllm-opnai:v1\n        args: [--model, m, --max-model-len, '8']\n");
    fs::write(&file, manifest("--max-model-len, '8192'") + "---\n" + &own).unwrap();
    let (code, _, err) = said(&cacheplan(&["plan", "--if-any", "--", file.to_str().unwrap()]));
    assert!(code == Some(2) && err.contains("vllm-opnai"), "{code:?} {err}");
}

/// Programs of an engine that serve nothing have its flags too.
#[rstest]
#[case("vllm bench latency --model m --tensor-parallel-size 2\n")]
#[case("echo --max-model-len 8\n")]
#[case("python train.py --dtype bfloat16 --max-steps 4\n")]
fn what_serves_nothing_is_left_out(#[case] script: &str) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.sh");
    fs::write(&file, script).unwrap();
    let (code, _, err) = said(&cacheplan(&["plan", "--if-any", "--", file.to_str().unwrap()]));
    assert!(code == Some(0) && err.contains("left out"), "{code:?} {err}");
}

/// Files are chosen by what stands in them: their names only say of what kind they are.
#[test]
fn the_pre_commit_hook_looks_at_files_of_any_name() {
    let hooks = fs::read_to_string(root().join(".pre-commit-hooks.yaml")).unwrap();
    let (_, files) = hooks.split_once("(?x)(").unwrap();
    for name in ["serve", "start", "deploy", "vllm", "compose"] {
        assert!(!files.contains(name), "{name}: {files}");
    }
}

/// Each command is held to what it says of itself; one that says nothing states nothing.
#[rstest]
#[case("--max-num-seqs, '4'", 0, "")]
#[case("--max-num-seqs, '400'", 3, "400")]
#[case("--enforce-eager", 2, "does not say how many sequences it runs")]
fn a_file_states_what_is_expected_of_it(#[case] flags: &str, #[case] code: i32, #[case] said_so: &str) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("inference.yaml");
    fs::write(&file, manifest(&format!("--max-model-len, '8192', {flags}"))).unwrap();
    let (found, _, err) = said(&cacheplan(&["plan", "--expect-sequences", "stated", "--", file.to_str().unwrap()]));
    assert_eq!(found, Some(code), "{err}");
    assert!(err.contains(said_so), "{err}");
}

/// What is stated beside a manifest stands over its node's device, and says so.
#[rstest]
#[case("l40s", false)]
#[case("h100", true)]
fn another_device_than_the_nodes_is_noted(#[case] device: &str, #[case] is_noted: bool) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("deploy.yaml");
    fs::write(&file, manifest("--max-model-len, '8192'")).unwrap();
    let (code, out, err) = said(&cacheplan(&["plan", "--device", device, "--", file.to_str().unwrap()]));
    assert_eq!(code, Some(0), "{err}");
    let said = out.split_whitespace().collect::<Vec<_>>().join(" ");
    let note = "its node has NVIDIA-L40S, and it is answered for NVIDIA H100 (nominal), which is stated beside it";
    assert_eq!(said.contains(note), is_noted, "{out}");
    assert_eq!(said.contains("stated beside it"), is_noted, "{out}");
}

#[rstest]
#[case("--max-num-seq=4", Some("--max-num-seq is short for --max-num-seqs"))]
#[case("--no-enable-prefix", Some("--no-enable-prefix is short for --no-enable-prefix-caching"))]
#[case("--max_num_seqs=4", None)]
#[case("-tp=1", None)]
fn a_flag_that_is_written_in_part_is_noted(#[case] flag: &str, #[case] note: Option<&str>) {
    let (code, out, err) = said(&cacheplan(&["plan", "--device", "h100", "--", "vllm", "serve", &config(QWEN), flag]));
    assert_eq!(code, Some(0), "{err}");
    assert!(note.is_none_or(|note| out.contains(note)), "{out}");
    assert_eq!(out.contains("is short for"), note.is_some(), "{out}");
}

/// vLLM and SGLang look for the file behind the word `--config` alone.
#[rstest]
#[case("vllm serve {} --config=none.yaml", true)]
#[case("python -m sglang.launch_server --model-path {} --config=none.yaml", true)]
#[case("vllm serve {} --config here.yaml", false)]
fn a_file_that_the_engine_does_not_open_is_a_caution(#[case] command: &str, #[case] is_unopened: bool) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("here.yaml"), "max-model-len: 4096\n").unwrap();
    let script = folder.path().join("serve.sh");
    fs::write(&script, command.replace("{}", &config(QWEN))).unwrap();
    let (code, out, err) = said(&cacheplan(&["plan", "--device", "h100", script.to_str().unwrap()]));
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(out.contains("CAUTION") && out.contains("does not open none.yaml"), is_unopened, "{out}");
    assert_eq!(out.contains("a file that the engine does not open"), is_unopened, "{out}");
    assert_eq!(out.contains("Using max model len 4096\n"), !is_unopened, "{out}");
}

/// Of several commands in a file a failure says whose it is.
#[test]
fn a_failure_names_its_command_among_several() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("two.yaml");
    let bad = manifest("--tensor-parallel-size, '3'").replace("name: qwen", "name: wrong");
    fs::write(&file, manifest("--max-model-len, '8192'") + "---\n" + &bad).unwrap();
    let (code, _, err) = said(&cacheplan(&["plan", file.to_str().unwrap()]));
    let failure = err.lines().find(|line| line.contains('×')).unwrap();
    assert!(code == Some(3) && failure.contains("Deployment wrong"), "{err}");
    assert!(!failure.contains("Deployment qwen"), "{err}");
}

/// The node of a manifest says its GPU; flags stand above it.
#[test]
fn fit_takes_the_gpu_of_a_manifests_node_unless_others_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("deploy.yaml");
    fs::write(&file, manifest("--max-model-len, '8192', --max-num-seqs, '8'")).unwrap();
    let of = |flags: &[&str]| {
        let args = [&["fit", file.to_str().unwrap(), "--format", "json"][..], flags].concat();
        let (code, out, err) = said(&cacheplan(&args));
        assert_eq!(code, Some(0), "{err}");
        let answer: serde_json::Value = serde_json::from_str(&out).unwrap();
        let fits = answer["fits"].as_array().unwrap().iter();
        (fits.map(|fit| fit["device"].as_str().unwrap().to_owned()).collect::<BTreeSet<_>>(), err)
    };
    let (devices, err) = of(&[]);
    assert_eq!(devices, BTreeSet::from(["l40s".to_owned()]));
    assert!(err.contains("l40s is the GPU of its node"), "{err}");
    assert_eq!(of(&["--gpus", "h100"]).0, BTreeSet::from(["h100".to_owned()]));
}
