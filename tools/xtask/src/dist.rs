//! What a release is: the command, what completes it, its manual, and the licences of all that is in it, in one archive.
//!
//! All but the licences comes out of the command that was built, so that it cannot differ from it.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::files::{at, entries, target};
use crate::metadata::{Package, host, packages};
use crate::{said, sh};

/// The shells, and what each calls a file of completions.
const COMPLETIONS: [(&str, &str); 5] = [
    ("bash", "cacheplan.bash"),
    ("zsh", "_cacheplan"),
    ("fish", "cacheplan.fish"),
    ("powershell", "_cacheplan.ps1"),
    ("elvish", "cacheplan.elv"),
];

/// The files of this repository that go along.
const OURS: [&str; 4] = ["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"];

/// Builds the command as it is released, and the archive; for another target than this machine's only if it runs here, since
/// its manual is asked of it.
pub(crate) fn run(triple: Option<&str>) -> Result<(), String> {
    let mut build = Command::new("cargo");
    build.args(["build", "--release", "--locked", "--package", "cacheplan-cli"]);
    match triple {
        Some(triple) => {
            sh(build.args(["--target", triple]))?;
            package("release", triple, &target(triple)?.join("release"))
        }
        None => {
            sh(&mut build)?;
            package("release", &host()?, &target("release")?)
        }
    }
}

/// The same of the command as tests have built it, and what the installer makes of it.
pub(crate) fn check() -> Result<(), String> {
    let host = host()?;
    package("debug", &host, &target("debug")?)?;
    installed(&host)
}

/// Installs the archive as users would, and plans a model with what they then have.
fn installed(host: &str) -> Result<(), String> {
    let dist = target("dist/debug")?;
    let prefix = dist.join("prefix");
    let mut installer = Command::new("tools/release/install.sh");
    installer.env("CACHEPLAN_RELEASES", format!("file://{}", dist.display()));
    installer.env("CACHEPLAN_VERSION", env!("CARGO_PKG_VERSION"));
    sh(installer.env("CACHEPLAN_TARGET", host).env("CACHEPLAN_PREFIX", &prefix))?;
    let config = "tests/fixtures/configs/Qwen__Qwen3-0.6B.json";
    let said = said(Command::new(prefix.join("bin/cacheplan")).args(["plan", config]))?;
    if said.contains("CAPACITY") { Ok(()) } else { Err(format!("what was installed says {said}")) }
}

fn package(profile: &str, host: &str, folder: &Path) -> Result<(), String> {
    let binary = folder.join(format!("cacheplan{}", std::env::consts::EXE_SUFFIX));
    if !binary.exists() {
        return Err(format!("{} is not there: `cargo build` makes it", binary.display()));
    }
    let version = said(Command::new(&binary).arg("--version"))?;
    let version = version.trim().rsplit(' ').next().unwrap_or_default().to_owned();
    let name = format!("cacheplan-{version}-{host}");
    let (dist, failed) = (target("dist")?.join(profile), |error| format!("{name}: {error}"));
    let folder = dist.join(&name);
    match fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    for part in ["completions", "man/man1"] {
        fs::create_dir_all(folder.join(part)).map_err(failed)?;
    }
    fs::copy(&binary, folder.join(binary.file_name().unwrap_or_default())).map_err(failed)?;
    for file in OURS {
        fs::copy(file, folder.join(file)).map_err(failed)?;
    }
    for (shell, file) in COMPLETIONS {
        let text = text_of(Command::new(&binary).args(["completions", shell]))?;
        fs::write(folder.join("completions").join(file), text).map_err(failed)?;
    }
    let pages = pages(&binary)?;
    for (page, text) in &pages {
        fs::write(folder.join("man/man1").join(format!("{page}.1")), text).map_err(failed)?;
    }
    fs::write(folder.join("THIRD-PARTY-LICENSES.txt"), licences(host)?).map_err(failed)?;
    let archive = dist.join(format!("{name}.tar.gz"));
    sh(Command::new("tar").arg("-czf").arg(&archive).arg("-C").arg(&dist).arg(&name))?;
    let sum = said(Command::new("sha256sum").arg(format!("{name}.tar.gz")).current_dir(&dist))?;
    fs::write(dist.join(format!("{name}.tar.gz.sha256")), sum).map_err(failed)?;
    done(&archive, pages.len())
}

#[expect(clippy::print_stdout, reason = "a command-line tool speaks to its user")]
fn done(archive: &Path, pages: usize) -> Result<(), String> {
    println!("{}: {pages} manual pages", archive.display());
    Ok(())
}

/// What a command says; nothing at all is an error.
fn text_of(command: &mut Command) -> Result<String, String> {
    let text = said(command)?;
    if text.trim().is_empty() { Err(format!("{command:?} says nothing")) } else { Ok(text) }
}

/// The manual pages of the command and of all below it, by their names.
fn pages(binary: &Path) -> Result<BTreeMap<String, String>, String> {
    let mut pages = BTreeMap::new();
    let mut open = vec![Vec::<String>::new()];
    while let Some(words) = open.pop() {
        let page = text_of(Command::new(binary).arg("man").args(&words))?;
        let name: Vec<&str> = std::iter::once("cacheplan").chain(words.iter().map(String::as_str)).collect();
        open.extend(below(&page, &name.join("-")).into_iter().map(|next| [words.as_slice(), &[next]].concat()));
        pages.insert(name.join("-"), page);
    }
    Ok(pages)
}

/// The names of the commands below one, as its page lists them: `cacheplan\-plan\-explain(1)`.
fn below(page: &str, name: &str) -> Vec<String> {
    let listed = page.lines().filter_map(|line| line.strip_suffix("(1)")).map(|line| line.replace("\\-", "-"));
    let names = listed.filter_map(|line| Some(line.strip_prefix(name)?.strip_prefix('-')?.to_owned()));
    // The page of `help` is that of the command.
    names.filter(|name| name != "help").collect()
}

/// The licences of everything that the command is built from, each with its text as its package has it.
fn licences(host: &str) -> Result<String, String> {
    let tree =
        ["tree", "--locked", "--package", "cacheplan-cli", "--edges", "normal", "--prefix", "none", "--format", "{p}"];
    let tree = said(Command::new("cargo").args(tree).args(["--target", host]))?;
    let built = |package: &Package| {
        let name = format!("{} v{}", package.name, package.version);
        tree.lines().any(|line| line.strip_prefix(&name).is_some_and(|rest| rest.is_empty() || rest.starts_with(' ')))
    };
    let mut text = String::new();
    for package in packages("Cargo.toml", host)?.iter().filter(|package| package.source.is_some() && built(package)) {
        let Package { name, version, license, .. } = package;
        text += &format!("{name} {version}: {}\n", license.as_deref().unwrap_or("see below"));
        for file in texts(package)? {
            text += &format!("\n{}\n", file.trim());
        }
        text += &format!("\n{}\n\n", "-".repeat(80));
    }
    if text.is_empty() { Err("nothing that the command is built from was found".to_owned()) } else { Ok(text) }
}

/// The texts that a package has of its licences.
fn texts(package: &Package) -> Result<Vec<String>, String> {
    let folder = package.manifest_path.parent().unwrap_or(Path::new(""));
    let mut files = entries(folder)?;
    files.retain(|path| {
        let name = path.file_name().map(|name| name.to_string_lossy().to_uppercase()).unwrap_or_default();
        let known = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE"];
        path.is_file() && known.iter().any(|known| name.starts_with(known))
    });
    let text = |path: PathBuf| Ok(String::from_utf8_lossy(&fs::read(&path).map_err(at(&path))?).into_owned());
    files.into_iter().map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_lists_the_commands_below_it() {
        let page = ".TP\ncacheplan\\-plan(1)\nPlan\n.TP\ncacheplan\\-export\\-graph(1)\n.TP\ncacheplan\\-help(1)\n";
        assert_eq!(below(page, "cacheplan"), ["plan", "export-graph"]);
        assert_eq!(below("cacheplan\\-plan\\-explain(1)\n", "cacheplan-plan"), ["explain"]);
        assert!(below(page, "cacheplan-plan").is_empty());
    }
}
