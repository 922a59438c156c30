//! Commands that start an engine, behind `--`, in files and piped in.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::process::{Command, Output, Stdio};

use common::{cacheplan, config, root, said};
use rstest::rstest;

const QWEN: &str = "Qwen__Qwen3-8B";

/// Of 24 GiB, of which the weights take 15.3, what the engine measures leaves room for so long a sequence or does not.
const MAY_START: [&str; 2] = ["--max-model-len", "36864"];

#[test]
fn plan_writes_the_log_that_the_engine_would() {
    let model = config(QWEN);
    let (code, out, err) = said(&cacheplan(&[
        "plan",
        "--device",
        "h100",
        "--",
        "vllm",
        "serve",
        &model,
        "--max-model-len",
        "32k",
        "--kv-cache-memory-bytes",
        "40G",
    ]));
    assert_eq!(code, Some(0), "{err}");
    // 40 GiB are 18,204 blocks of 16 tokens of 147,456 bytes.
    for line in [
        "Using max model len 32000",
        "Available KV cache memory: 40.00 GiB",
        "GPU KV cache size: 291,264 tokens",
        "9.10x",
        "READ",
        "CHANGES",
    ] {
        assert!(out.contains(line), "{line}\n{out}");
    }
}

#[test]
fn the_same_as_json() {
    let model = config(QWEN);
    let (code, out, err) =
        said(&cacheplan(&["plan", "--device", "h100", "--format", "json", "--", "vllm", "serve", &model]));
    assert_eq!(code, Some(0), "{err}");
    let answer: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&answer["engine"], &answer["starts"]), (&"vllm".into(), &"yes".into()));
    let tokens = &answer["facts"]["tokens"];
    assert!(tokens["low"].as_u64() < tokens["high"].as_u64() && tokens["low"].as_u64() > Some(0), "{tokens}");
}

/// What `fit` says of a command is that command told the best layout: pasted, it holds what was asked for.
#[rstest]
#[case::vllm(&["vllm", "serve", "MODEL", "--kv-cache-dtype", "fp8", "-tp", "4"])]
#[case::sglang(&["python3", "-m", "sglang.launch_server", "--model-path", "MODEL", "--tp", "4"])]
fn the_command_that_fit_prints_holds_what_was_asked_for(#[case] command: &[&str]) {
    let model = config(QWEN);
    let command: Vec<&str> = command.iter().map(|word| if *word == "MODEL" { model.as_str() } else { word }).collect();
    let ask = ["fit", "--context", "16k", "--sequences", "20", "--margin", "20", "--gpus", "h100", "--"];
    let (code, out, err) = said(&cacheplan(&[&ask[..], &command].concat()));
    assert_eq!(code, Some(0), "{err}");
    let line = out.split("cacheplan plan").last().unwrap().replace("\\\n", " ");
    let words = shlex::split(&line).unwrap();
    for kept in command.iter().filter(|word| !["-tp", "--tp", "4"].contains(word)) {
        assert!(words.iter().any(|word| word == kept), "{kept}: {line}");
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (code, out, err) = said(&cacheplan(&[&["plan", "--expect-sequences", "20"], &words[..]].concat()));
    assert_eq!(code, Some(0), "{line}\n{out}{err}");
}

/// So does what stands beside the command, where nobody says how long sequences are.
#[test]
fn the_command_that_fit_prints_says_what_was_said_beside_it() {
    let model = config(QWEN);
    let beside = ["--engine-version", "0.24.0", "--model-config", &model];
    let ask = [&["fit", "--context", "auto", "--gpus", "l4", "--max-gpus", "1"][..], &beside].concat();
    let (code, out, err) = said(&cacheplan(&[&ask[..], &["--", "vllm", "serve", "/models/q"]].concat()));
    assert!(code == Some(0) && err.contains(" is the longest that "), "{err}");
    let line = out.split("cacheplan plan").last().unwrap().replace("\\\n", " ");
    let words = shlex::split(&line).unwrap();
    for pair in beside.chunks(2) {
        assert!(words.windows(2).any(|words| words == pair), "{pair:?}: {line}");
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (code, out, err) = said(&cacheplan(&[&["plan"], &words[..]].concat()));
    assert_eq!(code, Some(0), "{line}\n{out}{err}");
}

#[rstest]
#[case::too_long(&["--device", "20GiB"], "--max-model-len 40960", 3, "would not start; REASON says why")]
#[case::misspelled(&["--device", "h100"], "--max-modle-len 4096", 2, "unrecognized arguments: --max-modle-len")]
#[case::unread(&["--device", "h100"], "--prefill-context-parallel-size 2", 4, "nothing is answered rather than guessed")]
#[case::no_device(&[], "", 2, "name it, such as --device h100")]
#[case::expected(&["--device", "h100", "--expect-sequences", "1000"], "", 3, "1000 sequences are expected, and it holds")]
#[case::newer(&["--device", "h100", "--engine-version", "99.0"], "", 2, "unknown version `99.0`")]
fn what_is_wrong_has_its_exit_code(
    #[case] flags: &[&str],
    #[case] command: &str,
    #[case] code: i32,
    #[case] expected: &str,
) {
    let model = config(QWEN);
    let words: Vec<&str> = command.split_whitespace().collect();
    let args = [&["plan"][..], flags, &["--", "vllm", "serve", &model], &words].concat();
    let (found, _, err) = said(&cacheplan(&args));
    assert_eq!(found, Some(code), "{err}");
    assert!(err.contains(expected), "{err}");
}

#[test]
fn a_wrong_command_is_followed_by_one_that_starts() {
    let model = config(QWEN);
    let (_, _, err) =
        said(&cacheplan(&["plan", "--device", "h100", "--", "vllm", "serve", &model, "--max-modle-len", "4096"]));
    assert!(err.contains("try vllm serve") && err.contains("--max-model-len 4096"), "{err}");
}

/// What the engine refuses of a model and devices is an answer, as one that lacks memory is.
#[rstest]
#[case::text(&[], "\nREASON\n  World size (4) is larger")]
#[case::markdown(&["--format", "markdown"], "\n## Reason\n\n```text\nWorld size (4) is larger")]
#[case::json(&["--format", "json"], "\"reason\": \"vllm would not start: World size (4) is larger")]
fn what_an_engine_refuses_is_printed_as_what_does_not_start_is(#[case] format: &[&str], #[case] expected: &str) {
    let model = config(QWEN);
    let asked = ["--device", "2xh100", "--", "vllm", "serve", &model, "-tp", "4"];
    let (code, out, err) = said(&cacheplan(&[&["plan"][..], format, &asked].concat()));
    assert_eq!(code, Some(3), "{err}");
    assert!(out.contains(expected), "{out}");
    assert!(err.contains("vllm would not start"), "{err}");
}

#[test]
fn what_would_do_stands_on_a_line_of_its_own_among_several_commands_too() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("serve.sh");
    let model = config(QWEN);
    fs::write(&script, format!("vllm serve {model} --max-modle-len 4096\nvllm serve {model} --max-model-len 4096\n"))
        .unwrap();
    let (code, _, err) = said(&cacheplan(&["plan", script.to_str().unwrap(), "--device", "h100"]));
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("\ntry vllm serve") && !err.contains("u000a"), "{err}");
}

/// What the command answers to a text that is piped in.
fn piped(args: &[&str], text: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cacheplan"));
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = command.spawn().unwrap();
    running.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    running.wait_with_output().unwrap()
}

#[rstest]
#[case::script(&["serve.sh"], "#!/bin/sh\nMODEL=QWEN\nexec vllm serve \"$MODEL\" \\\n  --max-model-len 8192 # short\n")]
#[case::pod(&["pod.json", "pod.yaml", "pod"], r#"{"kind": "Pod", "apiVersion": "v1", SPEC}"#)]
#[case::list(&["all.json", "all.yaml"], r#"{"apiVersion": "v1", "items": [{"kind": "Pod", SPEC}], "kind": "List"}"#)]
#[case::flow(&["pod.yaml", "pod"], "{kind: Pod, SPEC}")]
fn a_text_is_answered_the_same_by_any_name_and_piped_in(#[case] names: &[&str], #[case] text: &str) {
    const SPEC: &str = r#""spec": {"containers": [{"command": ["vllm", "serve", "QWEN", "--max-model-len", "8192"]}]}"#;
    let text = text.replace("SPEC", SPEC).replace("QWEN", &config(QWEN));
    let folder = tempfile::tempdir().unwrap();
    let mut found = vec![said(&piped(&["plan", "-", "--device", "h100"], &text))];
    for name in names {
        let path = folder.path().join(name).display().to_string();
        fs::write(&path, &text).unwrap();
        found.push(said(&cacheplan(&["plan", &path, "--device", "h100"])));
        found.push(said(&cacheplan(&["plan", "--device", "h100", "--", &path])));
    }
    assert!(found[0].1.contains("Using max model len 8192"), "{:?}", found[0]);
    assert!(found.iter().all(|said| *said == found[0]), "{found:#?}");
}

/// What a file says chooses how it is read, not its name.
#[rstest]
#[case::script("serve", "#!/bin/bash\n")]
#[case::job("job.batch", "#!/bin/bash\n#SBATCH --gpus-per-node=1\n")]
#[case::no_first_line("serve", "export A=1\n")]
#[case::group("serve", "{ :; }\n")]
#[case::unit("unit.conf", "[Unit]\nDescription=x\n[Service]\nExecStart=")]
#[case::dockerfile("build", "FROM ubuntu\nCMD ")]
#[case::batch("serve.txt.old", "@echo off\n")]
fn a_script_of_any_name_is_answered_at_both_doors(#[case] name: &str, #[case] head: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    fs::write(&path, format!("{head}vllm serve {} --max-model-len 2048\n", config(QWEN))).unwrap();
    let path = path.to_str().unwrap();
    let (code, out, err) = said(&cacheplan(&["plan", path, "--device", "h100"]));
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    assert_eq!(said(&cacheplan(&["plan", "--device", "h100", "--", path])), (code, out, err));
}

#[test]
fn check_sets_a_log_beside_the_command_that_it_is_of() {
    let log = root().join("tests/fixtures/logs/vllm-0.19.0-qwen3.5-9b.log").display().to_string();
    let model = config("Qwen__Qwen3.5-9B");
    let command = ["check", "--log", &log, "--", "vllm", "serve", &model, "--max-num-batched-tokens", "8192"];
    let (code, out, err) = said(&cacheplan(&command));
    // Of no device the log's bytes may be another's.
    assert!(code == Some(2) && err.contains("--device") && out.contains("NOT COMPARED"), "{out}{err}");
    assert!(out.lines().any(|line| line.starts_with("tokens ") && line.ends_with("equal")), "{out}");
    let (code, out, _) = said(&cacheplan(&[&command[..], &["--kv-cache-dtype", "fp8"]].concat()));
    assert_eq!(code, Some(5), "{out}");
    // What is expected of a start that drifts is answered too.
    let expects = |number: &str| {
        let flags = ["check", "--expect-sequences", number];
        said(&cacheplan(&[&flags[..], &command[1..], &["--kv-cache-dtype", "fp8"]].concat()))
    };
    let ((few, _, holds), (many, _, short)) = (expects("1"), expects("1000"));
    assert!(few == Some(5) && holds.contains("as it was started, what is expected it holds all the same"), "{holds}");
    assert!(many == Some(5) && short.contains("as it was started, 1000 sequences are expected"), "{short}");
}

/// What follows from bytes is held to those that were logged, and these to what the device gives the command.
#[rstest]
#[case::another_device(&["--device", "48GiB"], 5, ["DRIFT", "follows"])]
#[case::one_on_which_it_does_not_start(&["--device", "24GiB"], 5, ["DRIFT", "equal"])]
#[case::as_it_was(&["--device", "80GiB"], 0, ["equal"; 2])]
#[case::fewer_than_expected(&["--device", "80GiB", "--expect-tokens", "400000"], 3, ["equal"; 2])]
fn check_holds_logged_bytes_to_the_device_and_what_they_hold_to_what_is_expected(
    #[case] flags: &[&str],
    #[case] code: i32,
    #[case] verdicts: [&str; 2],
) {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("start.log");
    let lines =
        ["vLLM API server version 0.11.0", "Available KV cache memory: 53.00 GiB", "GPU KV cache size: 385,936 tokens"];
    std::fs::write(&log, lines.map(|line| format!("INFO {line}\n")).concat()).unwrap();
    let model = config(QWEN);
    let words = ["--", "vllm", "serve", &model];
    let args = [&["check", "--as", "vllm@0.11.0", "--log", log.to_str().unwrap()][..], flags, &words].concat();
    let (found, out, err) = said(&cacheplan(&args));
    assert_eq!(found, Some(code), "{out}{err}");
    let ends = |name: &str, end: &str| out.lines().any(|line| line.starts_with(name) && line.ends_with(end));
    assert!(ends("cache_bytes ", verdicts[0]) && ends("tokens ", verdicts[1]), "{out}");
}

/// Bytes that vLLM measures decide: by default that is an answer, with `--strict` a failure.
#[rstest]
#[case(&[], 0, "with --strict it would be 3")]
#[case(&["--strict"], 3, "only may start")]
fn what_only_may_start_ends_with_0_unless_it_is_strict(
    #[case] flags: &[&str],
    #[case] code: i32,
    #[case] expected: &str,
) {
    let model = config(QWEN);
    let args = [&["plan", "--device", "24GiB"][..], flags, &["--", "vllm", "serve", &model], &MAY_START].concat();
    let (found, out, err) = said(&cacheplan(&args));
    assert!(out.contains("may start"), "{out}{err}");
    assert_eq!((found, err.contains(expected)), (Some(code), true), "{err}");
    let (found, _, err) = said(&cacheplan(&["plan", "--strict", &model]));
    assert_eq!((found, err.contains("--strict is about a command")), (Some(2), true), "{err}");
}

#[test]
fn a_command_is_answered_as_markdown_and_pictures_are_refused_with_what_would_do() {
    let model = config(QWEN);
    let of = |format: &str| {
        said(&cacheplan(&["plan", "--device", "h100", "--format", format, "--", "vllm", "serve", &model]))
    };
    let ((code, out, err), (_, text, _)) = (of("markdown"), of("table"));
    assert_eq!(code, Some(0), "{err}");
    assert!(out.starts_with("# vllm ") && out.contains("\n## Log\n\n```text\nUsing max model len"), "{out}");
    assert_eq!(out.matches("```").count() % 2, 0, "{out}");
    // Nothing of the text is lost.
    let said_in = |line: &&str| !line.is_empty() && !line.bytes().all(|byte| byte.is_ascii_uppercase());
    assert!(text.lines().filter(said_in).all(|line| out.contains(line.trim())), "{text}{out}");
    let (code, _, err) = of("svg");
    assert_eq!((code, err.contains("table, json or markdown")), (Some(2), true), "{err}");
}

#[test]
fn fit_takes_the_context_from_the_command() {
    let model = config(QWEN);
    let (code, out, err) = said(&cacheplan(&[
        "fit",
        "--gpus",
        "h100,l4",
        "--",
        "vllm",
        "serve",
        &model,
        "--max-model-len",
        "16K",
        "--max-num-seqs",
        "4",
    ]));
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("16384") && out.to_lowercase().contains("h100"), "{out}");
}

#[test]
fn fit_takes_all_that_a_command_states_and_varies_the_rest() {
    let fits = |flags: &[&str]| {
        let model = config(QWEN);
        let asked = ["fit", "--gpus", "h100,l4", "--max-gpus", "4", "--format", "json", "--", "vllm", "serve", &model];
        let (code, out, err) = said(&cacheplan(&[&asked[..], &["--max-model-len", "16K"], flags].concat()));
        assert_eq!(code, Some(0), "{err}");
        let answer: serde_json::Value = serde_json::from_str(&out).unwrap();
        answer["fits"].as_array().unwrap().clone()
    };
    let all =
        |fits: &[serde_json::Value], key: &str| fits.iter().map(|fit| fit[key].to_string()).collect::<BTreeSet<_>>();
    let free = fits(&[]);
    assert!(all(&free, "devices").len() > 1 && all(&free, "kv_dtype").len() == 2, "{free:?}");
    let stated = fits(&["-tp", "2", "--kv-cache-dtype", "fp8"]);
    assert!(stated.iter().all(|fit| fit["parallel"]["tp"] == 2), "{stated:?}");
    assert_eq!(all(&stated, "kv_dtype").len(), 1);
    // A smaller share of each device leaves less for caches.
    let bytes = |fits: &[serde_json::Value]| fits.iter().filter_map(|fit| fit["cache_bytes"].as_u64()).max();
    assert!(bytes(&fits(&["--gpu-memory-utilization", "0.5"])) < bytes(&free));
}

/// Less than a command states is what it is told; more is not.
#[rstest]
#[case::vllm(&["--context", "16k"], &["vllm", "serve", "MODEL", "--max-model-len", "8K"], "--context: 16384 is above what the command states itself: --max-model-len 8192")]
#[case::sequences(&["--sequences", "65"], &["vllm", "serve", "MODEL", "--max-num-seqs", "64"], "--sequences: 65 is above what the command states itself: --max-num-seqs 64")]
#[case::sglang(&["--context", "16k"], &["sglang", "serve", "--model-path", "MODEL", "--context-length", "8192"], "--context-length 8192")]
fn fit_asks_no_more_than_a_command_states(#[case] flags: &[&str], #[case] command: &[&str], #[case] why: &str) {
    let model = config(QWEN);
    let command: Vec<&str> = command.iter().map(|word| if *word == "MODEL" { model.as_str() } else { word }).collect();
    let asked = ["fit", "--gpus", "h100", "--max-gpus", "1"];
    let (code, _, err) = said(&cacheplan(&[&asked[..], flags, &["--"], &command].concat()));
    assert!(code == Some(2) && err.contains(why), "{err}");
}

/// What a command leaves open `fit` tells it; what it says itself stays, by its name.
#[test]
fn fit_tells_a_command_the_dtypes_that_it_leaves_open() {
    let model = config(QWEN);
    let fit = |flags: &[&str], command: &[&str]| {
        let asked = ["fit", "--gpus", "h100", "--max-gpus", "1", "--context", "16k", "--format", "json"];
        said(&cacheplan(&[&asked[..], flags, &["--"], command].concat()))
    };
    let vllm = ["vllm", "serve", &model];
    let cache = |dtype: &str| {
        let (code, out, err) = fit(&["--kv-dtype", dtype], &vllm);
        assert_eq!(code, Some(0), "{err}");
        let answer: serde_json::Value = serde_json::from_str(&out).unwrap();
        let fits = answer["fits"].as_array().unwrap();
        // What is stated is not varied.
        assert!(fits.iter().all(|fit| fit["kv_dtype"].is_null()), "{fits:?}");
        fits.iter().filter(|fit| !fit["engine"].is_null()).filter_map(|fit| fit["sequences"].as_u64()).max().unwrap()
    };
    assert!(cache("fp8") > cache("bf16"));
    let stated = [&vllm[..], &["--kv-cache-dtype", "auto"]].concat();
    for (flags, command, why) in [
        (&["--kv-dtype", "fp8"], &stated[..], "--kv-dtype: the command says that itself: --kv-cache-dtype auto"),
        (&["--kv-dtype", "fp8"], &["trtllm-serve", &model][..], "--kv-dtype: no flag of tensorrt-llm says that"),
        (&["--ssm-dtype", "bf16"], &["llama-server", "-m", &model][..], "--ssm-dtype: no flag of llama.cpp says that"),
    ] {
        let (code, _, err) = fit(flags, command);
        assert_eq!(code, Some(2), "{err}");
        assert!(err.contains(why), "{err}");
    }
    let (code, _, err) = fit(&[&*model, "--kv-dtype", "fp8"], &vllm);
    assert!(code == Some(2) && err.contains("a command behind `--` names its model"), "{err}");
}

/// Each flag beside a command is used, or refused by its name.
#[rstest]
#[case(&["--stage", "1"])]
#[case(&["--measurement", "nofile.json"])]
#[case(&["--measured", "nofile.toml"])]
#[case(&["--max-seq-len", "1024"])]
#[case(&["--memory-fraction", "0.5"])]
#[case(&["--host-bytes", "1GiB"])]
fn a_flag_that_nothing_would_consume_is_refused_by_its_name(#[case] flags: &[&str]) {
    let model = config(QWEN);
    let args = [&["plan", "--device", "h100"][..], flags, &["--", "vllm", "serve", &model]].concat();
    let (code, _, err) = said(&cacheplan(&args));
    assert!(matches!(code, Some(1 | 2)), "{err}");
    assert!(err.contains(flags[0]) || err.contains(flags[1]), "{err}");
}

#[test]
fn the_config_of_a_model_that_is_elsewhere_is_named() {
    let model = config(QWEN);
    let command = ["--", "llama-server", "-m", "/models/qwen-q4.gguf", "-c", "8192"];
    let (code, _, err) = said(&cacheplan(&[&["plan", "--device", "l4"], &command[..]].concat()));
    assert!(code == Some(1) && err.contains("--model-config"), "{err}");
    let given = ["plan", "--device", "l4", "--weights", "5GB", "--model-config", &model];
    let (code, out, err) = said(&cacheplan(&[&given[..], &command].concat()));
    assert_eq!(code, Some(0), "{err}");
    assert!(err.contains("/models/qwen-q4.gguf is planned by the config ") && err.contains(&model), "{err}");
    assert!(out.contains("/models/qwen-q4.gguf: starts") && out.contains("n_ctx = 8192"), "{out}");
}

/// A repository of many models: each command by the config of its own.
#[test]
fn configs_of_several_models_are_stated_by_their_names() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("two.sh");
    fs::write(&file, "vllm serve org/a --max-model-len 4096\nvllm serve /srv/b --max-model-len 4096\n").unwrap();
    let file = file.to_str().unwrap();
    let [a, b] =
        [(QWEN, "org/a"), ("google__gemma-2-2b", "/srv/b")].map(|(model, name)| format!("{name}={}", config(model)));
    let plan = |configs: &[&str]| {
        let configs = configs.iter().flat_map(|config| ["--model-config", config]);
        let args: Vec<&str> = ["plan", "--device", "h100", "--weights", "5GB"].into_iter().chain(configs).collect();
        said(&cacheplan(&[&args[..], &["--", file]].concat()))
    };
    let (code, out, err) = plan(&[&a, &b]);
    assert_eq!(code, Some(0), "{err}");
    let size = |out: &str| {
        out.lines().filter(|line| line.contains("GPU KV cache size")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(size(&out).len() == 2 && size(&out)[0] != size(&out)[1], "{out}");
    let (code, _, err) = plan(&[&a]);
    assert!(code == Some(1) && err.contains("--model-config /srv/b=MODEL would"), "{err}");
    let (code, _, err) = plan(&[&config(QWEN)]);
    assert!(code == Some(2) && err.contains("/srv/b, org/a; state it as NAME=MODEL"), "{err}");
    // What is stated by its name stands above what is stated for any.
    assert_eq!(plan(&[&config(QWEN), &b]).1, out);
}

/// What drafts is a model that the command names too.
#[test]
fn the_config_of_a_draft_that_is_elsewhere_is_stated_by_its_name() {
    let (model, draft) = (format!("/srv/a={}", config(QWEN)), format!("/srv/b={}", config("Qwen__Qwen3-0.6B")));
    let drafts = r#"{"model":"/srv/b","num_speculative_tokens":3}"#;
    let command = ["--", "vllm", "serve", "/srv/a", "--max-model-len", "4096", "--speculative-config", drafts];
    let given = ["plan", "--device", "h100", "--model-config", &model, "--model-config", &draft];
    let (code, out, err) = said(&cacheplan(&[&given[..], &command].concat()));
    assert!(code == Some(0) && out.contains("GPU KV cache size"), "{out} {err}");
    let (code, _, err) = said(&cacheplan(&[&given[..5], &command].concat()));
    assert!(code == Some(1) && err.contains("/srv/b"), "{err}");
}

#[test]
fn a_config_map_of_the_same_file_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("deploy.yaml");
    let text = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c}}\ndata: {{LEN: '8192'}}\n---\napiVersion: v1\nkind: Pod\nmetadata: \
         {{name: p}}\nspec:\n  containers:\n  - name: v\n    image: vllm/vllm-openai:v0.33.0\n    args: [--model, '{}', --max-model-len, \
         '$(LEN)']\n    env:\n    - {{name: LEN, valueFrom: {{configMapKeyRef: {{name: c, key: LEN}}}}}}\n",
        config(QWEN)
    );
    fs::write(&file, text).unwrap();
    let (code, out, err) = said(&cacheplan(&["plan", file.to_str().unwrap(), "--device", "h100"]));
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("Using max model len 8192"), "{out}");
}
