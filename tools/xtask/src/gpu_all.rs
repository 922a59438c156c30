//! Everything that a machine with a GPU is left for, as one command: checks, tokens, bytes, figures and peers, in one folder.
//!
//! What cannot be done on a machine is said, and the rest goes on.

use crate::files::{absolute, at};
use crate::gpu::{PEERS, build};
use crate::said;
use crate::sh;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

/// A step, and what became of it.
struct Step {
    name: &'static str,
    /// How it went, in a word or two.
    end: String,
    failed: bool,
}

pub(crate) fn run(folder: &str) -> Result<(), String> {
    let folder = absolute(folder)?;
    let on_disk = at(&folder);
    fs::create_dir_all(&folder).map_err(on_disk)?;
    let binary = build()?;
    let runner = || Command::new(&binary);
    let mut steps = Vec::new();
    let mut step = |name, command: Result<Command, String>| -> bool {
        let (end, failed) = match command {
            Err(why) => (format!("not done: {why}"), false),
            Ok(command) => kept(&folder, name, command),
        };
        let holds = end == "done";
        steps.push(Step { name, end, failed });
        holds
    };
    step("doctor-emulator", Ok(with(runner(), &["doctor", "--device", "emulator"])));
    let device = with(runner(), &["doctor", "--device", "cuda:0"]);
    let has_device = has_device();
    let on_device = |command: Command| if has_device { Ok(command) } else { Err("no NVIDIA device here".to_owned()) };
    let holds = step("doctor", on_device(device));
    for tool in ["memcheck", "racecheck", "synccheck", "initcheck"] {
        let mut sanitizer = with(Command::new("compute-sanitizer"), &["--tool", tool, "--error-exitcode", "1"]);
        sanitizer.arg(&binary).args(["doctor", "--small"]);
        step(tool, on_device(sanitizer).and_then(|command| installed("compute-sanitizer", command)));
    }
    let models = with(Command::new(std::env::current_exe().map_err(on_disk)?), &["gpu-models"]);
    step("tokens-and-bytes", on_device(models).and_then(|command| installed("nvcc", command)));
    let bench = folder.join("bench.json");
    let mut measure = with(runner(), &["bench", "--device", "cuda:0", "--json"]);
    measure.arg(&bench);
    let held = |command| if holds { Ok(command) } else { Err("the kernels do not hold".to_owned()) };
    step("bench", on_device(measure).and_then(held));
    let (sizes, peers) = (folder.join("sizes.json"), folder.join("peers.json"));
    let mut list = with(runner(), &["bench", "--list", "--json"]);
    list.arg(&sizes);
    step("sizes", Ok(list));
    let mut other = Command::new("python3");
    other.arg(PEERS).arg("--sizes").arg(&sizes).arg("--json").arg(&peers);
    step("peers", on_device(other));
    let mut table = Command::new("python3");
    table.arg(PEERS).arg("--table").arg(&bench).arg(&peers);
    let both = bench.exists() && peers.exists();
    step("table", if both { Ok(table) } else { Err("no figures of ours beside others' here".to_owned()) });
    let summary: String = steps.iter().map(|step| format!("{:<20} {}\n", step.name, step.end)).collect();
    fs::write(folder.join("summary.txt"), &summary).map_err(on_disk)?;
    tell(&format!("{summary}\nAll of it is in {}.\n", folder.display()));
    match steps.iter().find(|step| step.failed) {
        Some(step) => Err(format!("{} failed", step.name)),
        None => Ok(()),
    }
}

/// Whether the system shows a device of NVIDIA: `nvidia0`, `nvidia1`, .., or what Windows lends.
fn has_device() -> bool {
    let is_device =
        |name: &str| name == "dxg" || name.strip_prefix("nvidia").is_some_and(|number| number.parse::<u32>().is_ok());
    fs::read_dir("/dev")
        .is_ok_and(|entries| entries.flatten().any(|entry| is_device(&entry.file_name().to_string_lossy())))
}

fn with(mut command: Command, arguments: &[&str]) -> Command {
    command.args(arguments);
    command
}

/// The command, where a program that it needs is on the path.
fn installed(program: &str, command: Command) -> Result<Command, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    if found { Ok(command) } else { Err(format!("{program} is not installed")) }
}

/// Runs a command, keeps what it says in a file of the step's name, and says how it ended.
fn kept(folder: &Path, name: &str, mut command: Command) -> (String, bool) {
    let file = folder.join(name).with_extension("txt");
    tell(&format!("{name}: {command:?}\n"));
    let open = || Ok::<_, std::io::Error>((fs::File::create(&file)?, fs::File::options().append(true).open(&file)?));
    let ended = open().and_then(|(out, err)| command.stdout(out).stderr(err).status());
    match ended {
        Ok(status) if status.success() => ("done".to_owned(), false),
        Ok(status) => (format!("FAILED: {status}, see {}", file.display()), true),
        Err(error) => (format!("FAILED: {error}"), true),
    }
}

#[expect(clippy::print_stderr, reason = "a command-line tool speaks to its user")]
fn tell(text: &str) {
    eprint!("{text}");
}

/// The product built with the feature `cuda`, on every model of the fixtures: the tokens are the CPU's, and every pool is as
/// large as was planned.
pub(crate) fn models() -> Result<(), String> {
    sh(Command::new("cargo").args(["build", "--release", "--features", "cuda", "--locked"]))?;
    let command = crate::files::target("release/cacheplan")?;
    let models = fs::read_dir("tests/fixtures/models").map_err(|error| error.to_string())?;
    let mut models: Vec<_> = models.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    models.sort();
    let mut wrong = Vec::new();
    for model in models {
        let on = |device: &str| -> Result<Value, String> {
            let mut run = Command::new(&command);
            run.arg("run").arg(&model).args(["--prompt-ids", "5,9,2,11,7,3,1,8,4", "--max-seq-len", "64"]);
            run.args(["--device", device, "--format", "json"]);
            serde_json::from_str(&said(&mut run)?).map_err(|error| format!("{run:?}: {error}"))
        };
        let found = on("cpu").and_then(|cpu| compare(&cpu, &on("cuda:0")?));
        tell(&format!("{}: {}\n", model.display(), found.as_deref().unwrap_or_else(|what| what)));
        wrong.extend(found.err().map(|what| format!("{}: {what}", model.display())));
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

/// How far pools on a device may be from the plan, of its bytes.
const BYTES: f64 = 1e-3;

/// What a run on a device has in common with that on the CPU, or what not.
fn compare(cpu: &Value, device: &Value) -> Result<String, String> {
    let tokens = cpu["tokens"].as_array().filter(|tokens| !tokens.is_empty()).ok_or("the CPU's run has no tokens")?;
    if device["tokens"].as_array() != Some(tokens) {
        return Err(format!("tokens {} instead of {}", device["tokens"], cpu["tokens"]));
    }
    let pools =
        device["report"]["pools"].as_array().filter(|pools| !pools.is_empty()).ok_or("the report has no pools")?;
    let mut furthest = 0f64;
    for pool in pools {
        let bytes = |key: &str| pool[key].as_f64().ok_or_else(|| format!("pool {} has no {key}", pool["id"]));
        let (planned, actual) = (bytes("planned_bytes")?, bytes("actual_bytes")?);
        let off = (actual - planned).abs() / planned.max(1.0);
        if off > BYTES {
            return Err(format!("pool {} takes {actual} bytes, planned are {planned}", pool["id"]));
        }
        furthest = furthest.max(off);
    }
    Ok(format!("the CPU's tokens; {} pools, at most {:.3} % off the plan", pools.len(), 100.0 * furthest))
}

#[cfg(test)]
mod tests {
    use super::compare;
    use serde_json::json;

    #[test]
    fn other_tokens_and_other_bytes_are_told() {
        let run = |token: u32, actual: Option<u64>| json!({"tokens": [[1, token]], "report": {"pools": [{"id": "kv", "planned_bytes": 10_000, "actual_bytes": actual}]}});
        let cpu = run(2, Some(1));
        assert!(compare(&cpu, &run(2, Some(10_009))).is_ok_and(|said| said.contains("0.090 %")));
        for (device, says) in [
            (run(3, Some(10_000)), "tokens [[1,3]] instead of [[1,2]]"),
            (run(2, Some(10_020)), "10020 bytes, planned are 10000"),
            (run(2, None), "has no actual_bytes"),
            (json!({"tokens": [[1, 2]]}), "no pools"),
        ] {
            let said = compare(&cpu, &device).unwrap_err();
            assert!(said.contains(says), "{said}");
        }
    }
}
