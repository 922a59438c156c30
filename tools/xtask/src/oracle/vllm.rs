//! vLLM's own planners.
//!
//! They need Python with pip, a C compiler, the network once, and about 9 GB in `target/oracles`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{CONFIGS, ROWS, answers, script, write};
use crate::files::{at, target, text};
use crate::sh;

/// The versions whose planners are asked; their functions move between versions, and the script follows them.
const VLLM: [&str; 2] = ["0.32.0", "0.33.0"];
const EXPORTED: &str = "0.33.0";
const RAY: &str = "2.60.0";

/// Asks about the zoo and `random` hybrids more.
pub(super) fn run(random: u64) -> Result<(), String> {
    VLLM.iter().try_for_each(|version| vllm(version, random))
}

/// Records what vLLM's block pool publishes and its coordinator counts, for the tests of the index.
pub(super) fn events() -> Result<(), String> {
    let python = newest()?.join("bin/python");
    let out = format!("tests/fixtures/events/vllm-{EXPORTED}.jsonl.gz");
    sh(Command::new(&python).arg(script("vllm_events.py")).arg(packages(&python)?).arg(out))
}

/// The folder of an environment's packages.
fn packages(python: &Path) -> Result<String, String> {
    let asked = ["-c", "import sysconfig; print(sysconfig.get_path('purelib'))"];
    Ok(answers(Command::new(python).args(asked), "")?.trim().to_owned())
}

/// Asks about commands, every form of every flag and `random` mixtures, all of which a test compares on request, and keeps a sample;
/// writes down what its configurations and its kernels take.
pub(super) fn commands(random: u64) -> Result<(), String> {
    /// Of so many questions one is kept.
    const SAMPLE: usize = 12;
    let home = newest()?;
    let python = home.join("bin/python");
    let asked = |name: &str, arguments: &[&str], questions: &str| {
        let mut command = Command::new(&python);
        answers(command.arg(script(name)).args(arguments).env("LD_LIBRARY_PATH", &home), questions)
    };
    let fields = Path::new("planner/serve/src/flags/vllm.fields.tsv");
    fs::write(fields, asked("vllm_fields.py", &[], "")?).map_err(at(&fields))?;
    let kernels = asked("vllm_kernels.py", &[&format!("{}/vllm", packages(&python)?)], "")?;
    write(&format!("vllm-{EXPORTED}.kernels.txt"), &kernels)?;
    let questions = asked("command_questions.py", &["planner/serve/src/flags/vllm.tsv", &random.to_string()], "")?;
    let answered = asked("vllm_commands.py", &[CONFIGS], &questions)?;
    let folder = target("oracles/commands")?;
    let put = |name: &str, text: &str| fs::write(folder.join(name), text).map_err(at(&folder));
    fs::create_dir_all(&folder).map_err(at(&folder))?;
    put("questions.jsonl", &questions)?;
    put("answers.jsonl", &answered)?;
    let sample = |lines: &str| lines.split_inclusive('\n').step_by(SAMPLE).collect::<String>();
    write("commands.jsonl", &sample(&questions))?;
    write(&format!("vllm-{EXPORTED}.commands.jsonl"), &sample(&answered))
}

/// The environment of the version that exports are for.
pub(super) fn newest() -> Result<PathBuf, String> {
    installed(EXPORTED)
}

fn installed(version: &str) -> Result<PathBuf, String> {
    let home = target(&format!("oracles/vllm-{version}"))?;
    if !home.join("installed").exists() {
        install(version, &home, &home.join("bin/python"))?;
    }
    Ok(home)
}

/// Questions are the same for all versions; answers have a file for each.
fn vllm(version: &str, random: u64) -> Result<(), String> {
    let home = installed(version)?;
    let python = home.join("bin/python");
    let random = random.to_string();
    let newest = version == EXPORTED;
    let sets =
        [("zoo", &[CONFIGS][..]), ("random", &[CONFIGS, &random]), ("models", &[CONFIGS]), ("classes", &[CONFIGS])];
    for (set, arguments) in sets {
        // Older versions lack most of the others.
        if matches!(set, "models" | "classes") && !newest {
            continue;
        }
        let questions = answers(Command::new(&python).arg(script("questions.py")).arg(set).args(arguments), "")?;
        let mut planner = Command::new(&python);
        planner.arg(script("vllm_planner.py")).arg(CONFIGS).env("LD_LIBRARY_PATH", &home);
        let answers = answers(&mut planner, &questions)?;
        write(&format!("{set}.jsonl"), &questions)?;
        write(&format!("vllm-{version}.{set}.txt"), &answers)?;
    }
    exports(version, &home, &python)
}

/// Asks the parser and the planner of the version that exports are for about those that the planner's tests have written,
/// and Ray about those for Ray.
fn exports(version: &str, home: &Path, python: &Path) -> Result<(), String> {
    if version != EXPORTED {
        return Ok(());
    }
    let asked = |path: &str| text(Path::new(ROWS).join(path));
    let mut planner = Command::new(python);
    planner.arg(script("vllm_planner.py")).arg(CONFIGS).env("LD_LIBRARY_PATH", home);
    write(&format!("vllm-{version}.exports.txt"), &answers(&mut planner, &asked("exports.vllm.jsonl")?)?)?;
    let mut ray = Command::new(python);
    ray.arg(script("ray_files.py")).env("LD_LIBRARY_PATH", home);
    write(&format!("ray-{RAY}.exports.txt"), &answers(&mut ray, &asked("exports.ray.jsonl")?)?)
}

/// A virtual environment with the engine and a driver that says there is no device.
fn install(version: &str, home: &Path, python: &Path) -> Result<(), String> {
    sh(Command::new("python3").args(["-m", "venv"]).arg(home))?;
    let pip = |arguments: &[&str]| sh(Command::new(python).args(["-m"]).args(arguments));
    pip(&["pip", "install", "--quiet", "uv"])?;
    // Two of its packages pin certifi apart, and two bring the same files.
    let overrides = home.join("overrides.txt");
    fs::write(&overrides, "certifi\n").map_err(at(&overrides))?;
    let uv = |arguments: &[&str]| {
        sh(Command::new(python).args(["-m", "uv", "pip"]).args(arguments).env("VIRTUAL_ENV", home))
    };
    uv(&["install", "--quiet", "--override", &overrides.to_string_lossy(), &format!("vllm=={version}")])?;
    uv(&[
        "install",
        "--quiet",
        "--override",
        &overrides.to_string_lossy(),
        &format!("ray[serve]=={RAY}"),
        "pyarrow==26.0.1",
    ])?;
    uv(&["uninstall", "--quiet", "cuda-python"])?;
    uv(&["install", "--quiet", "--reinstall", "--no-deps", "cuda-bindings==13.5.0"])?;
    let driver = home.join("libcuda.so.1");
    sh(Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&driver).arg(script("absent_libcuda.c")))?;
    let done = home.join("installed");
    fs::write(&done, version).map_err(at(&done))
}
