//! An engine's own planner as an oracle: installed from its pinned package, asked on a CPU, its answers written as rows
//! that a test replays without it.
//!
//! It needs Python with pip, a C compiler, the network once, and about 9 GB in `target/oracles`.

use crate::cuda_toolkit::target;
use crate::sh;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The versions whose planners are asked; their functions move between versions, and the script follows them.
const VLLM: [&str; 2] = ["0.32.0", "0.33.0"];
const SCRIPTS: &str = "xtask/oracle";
const CONFIGS: &str = "tests/fixtures/configs";
const ROWS: &str = "tests/fixtures/oracles";

/// Asks `engine` about the zoo and `random` hybrids more.
pub(crate) fn run(engine: &str, random: u64) -> Result<(), String> {
    match engine {
        "vllm" => VLLM.iter().try_for_each(|version| vllm(version, random)),
        other => Err(format!("`{other}` cannot be asked; vllm can")),
    }
}

/// Questions are the same for all versions; answers have a file for each.
fn vllm(version: &str, random: u64) -> Result<(), String> {
    let home = target(&format!("oracles/vllm-{version}"))?;
    let python = home.join("bin/python");
    if !home.join("installed").exists() {
        install(version, &home, &python)?;
    }
    let random = random.to_string();
    for (set, arguments) in [("zoo", &[CONFIGS][..]), ("random", &[CONFIGS, &random])] {
        let questions = output(Command::new(&python).arg(script("questions.py")).arg(set).args(arguments))?;
        let mut planner = Command::new(&python);
        planner.arg(script("vllm_planner.py")).arg(CONFIGS).env("LD_LIBRARY_PATH", &home);
        let answers = answers(&mut planner, &questions)?;
        write(&format!("{set}.jsonl"), &questions)?;
        write(&format!("vllm-{version}.{set}.txt"), &answers)?;
    }
    Ok(())
}

fn write(name: &str, text: &str) -> Result<(), String> {
    let path = Path::new(ROWS).join(name);
    fs::create_dir_all(ROWS).and_then(|()| fs::write(&path, text)).map_err(|error| at(&path, &error))
}

/// A virtual environment with the engine and a driver that says there is no device.
fn install(version: &str, home: &Path, python: &Path) -> Result<(), String> {
    sh(Command::new("python3").args(["-m", "venv"]).arg(home))?;
    let pip = |arguments: &[&str]| sh(Command::new(python).args(["-m"]).args(arguments));
    pip(&["pip", "install", "--quiet", "uv"])?;
    // Two of its packages pin certifi apart, and two bring the same files.
    let overrides = home.join("overrides.txt");
    fs::write(&overrides, "certifi\n").map_err(|error| at(&overrides, &error))?;
    let uv = |arguments: &[&str]| {
        sh(Command::new(python).args(["-m", "uv", "pip"]).args(arguments).env("VIRTUAL_ENV", home))
    };
    uv(&["install", "--quiet", "--override", &overrides.to_string_lossy(), &format!("vllm=={version}")])?;
    uv(&["uninstall", "--quiet", "cuda-python"])?;
    uv(&["install", "--quiet", "--reinstall", "--no-deps", "cuda-bindings==13.5.0"])?;
    let driver = home.join("libcuda.so.1");
    sh(Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&driver).arg(script("absent_libcuda.c")))?;
    let done = home.join("installed");
    fs::write(&done, version).map_err(|error| at(&done, &error))
}

fn script(name: &str) -> PathBuf {
    Path::new(SCRIPTS).join(name)
}

fn output(command: &mut Command) -> Result<String, String> {
    answers(command, "")
}

/// What `command` prints when it reads `questions`.
fn answers(command: &mut Command, questions: &str) -> Result<String, String> {
    let program = format!("{command:?}");
    let failed = |error: std::io::Error| format!("{program}: {error}");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(failed)?;
    let mut stdin = child.stdin.take().ok_or("no pipe to the script")?;
    let questions = questions.to_owned();
    // Both pipes are of a few kilobytes: who writes all before reading would wait forever.
    let writing = std::thread::spawn(move || stdin.write_all(questions.as_bytes()));
    let output = child.wait_with_output().map_err(failed)?;
    let written = writing.join().map_err(|_| "the script's input was not written".to_owned())?;
    if !output.status.success() {
        return Err(format!("{program}: {}", output.status));
    }
    written.map_err(|error| error.to_string())?;
    String::from_utf8(output.stdout).map_err(|error| error.to_string())
}

fn at(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}
