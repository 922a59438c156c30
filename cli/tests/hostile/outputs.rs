//! What is written takes the place of nothing that is needed, and is there whole or not at all.

use std::fs;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rstest::rstest;

use super::{cacheplan, command, fixture, plan, stderr, within_limits};

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
