//! The wheel with the command inside: the library and its command in one.
//!
//! The command is the one that the archive has, so that both are the same; on Linux it is linked against musl, which runs
//! beside any libc. maturin builds the library, `wheel` puts the command beside it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::files::{absolute, at, entries, only, remove, target};
use crate::sh;

/// Builds the wheel of a release for `triple`, whose archive is built; `tags` is what it shall run on, such as
/// `musllinux_1_2`, or `off`.
pub(crate) fn run(triple: &str, tags: &str) -> Result<(), String> {
    let dist = target("dist/release")?;
    let command = triple.replace("-linux-gnu", "-linux-musl");
    let built = entries(&dist)?.into_iter().find(|entry| entry.is_dir() && entry.to_string_lossy().ends_with(&command));
    let built = built.ok_or_else(|| format!("{}: `cargo xtask dist {command}` comes first", dist.display()))?;
    let program = if triple.contains("windows") { "cacheplan.exe" } else { "cacheplan" };
    let mut build = maturin(&["--release", "--strip", "--target", triple]);
    if triple.contains("linux") {
        // Which links against the oldest libc that the tags allow.
        build.args(["--zig", "--compatibility", tags]);
    }
    with_command(&built.join(program), &mut build, &target("dist/wheels")?).map(drop)
}

/// The same of the command as tests have built it, and of the library without optimisation, for this machine alone; then what
/// a user makes of it.
pub(crate) fn check() -> Result<(), String> {
    let command = target("debug")?.join(format!("cacheplan{}", std::env::consts::EXE_SUFFIX));
    if !command.exists() {
        return Err(format!("{} is not there: `cargo build` makes it", command.display()));
    }
    let mut build = maturin(&["--compatibility", "linux"]);
    installed(&with_command(&command, &mut build, &target("dist/wheels-checked")?)?)
}

fn maturin(flags: &[&str]) -> Command {
    let mut maturin = Command::new("maturin");
    maturin.args(["build", "--locked", "--manifest-path", "python/Cargo.toml"]).args(flags);
    maturin
}

/// Builds a wheel, and packs it anew with the command where installers look for programs.
fn with_command(command: &Path, build: &mut Command, wheels: &Path) -> Result<PathBuf, String> {
    let scratch = target("dist/wheel")?;
    remove(&scratch)?;
    let (library, unpacked) = (scratch.join("library"), scratch.join("unpacked"));
    sh(build.arg("--out").arg(&library))?;
    let wheel = only(&library)?;
    sh(Command::new("wheel").arg("unpack").arg(&wheel).arg("--dest").arg(&unpacked))?;
    let root = only(&unpacked)?;
    let name = root.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let scripts = root.join(format!("{name}.data/scripts"));
    let place = scripts.join(command.file_name().unwrap_or_default());
    let copied = fs::create_dir_all(&scripts).and_then(|()| fs::copy(command, &place));
    copied.map_err(at(&place))?;
    fs::create_dir_all(wheels).map_err(at(&wheels))?;
    sh(Command::new("wheel").arg("pack").arg(&root).arg("--dest-dir").arg(wheels))?;
    Ok(wheels.join(wheel.file_name().unwrap_or_default()))
}

/// Installs it into an environment of its own, and asks library and command the same.
fn installed(wheel: &Path) -> Result<(), String> {
    let home = target("dist/wheel-environment")?;
    remove(&home)?;
    sh(Command::new("python3").args(["-m", "venv"]).arg(&home))?;
    let tool = |name: &str| Command::new(home.join("bin").join(name));
    sh(tool("pip").args(["install", "--quiet", "--disable-pip-version-check", "--no-index"]).arg(wheel))?;
    let asked = "import cacheplan, subprocess, sys\n\
                 told = subprocess.run([sys.argv[2], 'plan', sys.argv[1], '--format', 'json'], capture_output=True, check=True)\n\
                 assert cacheplan.plan(sys.argv[1]).to_json() + chr(10) == told.stdout.decode(), 'command and library differ'\n";
    let config = absolute("tests/fixtures/configs/Qwen__Qwen3-0.6B.json")?;
    // Elsewhere than beside the sources of the package.
    sh(tool("python").args(["-c", asked]).arg(config).arg(home.join("bin/cacheplan")).current_dir(&home))
}
