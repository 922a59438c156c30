//! The page: the planner as WebAssembly and what draws it, built into `cli/web/dist`, and tested in a browser.
//!
//! It needs Node, and the network once. The standard library for WebAssembly comes from the sources of the same rustc.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::files::{absolute, at, entries, target, text};
use crate::rust_src;
use crate::sh;

/// The page as it is committed.
const DIST: &str = "cli/web/dist";

const PAGE: &str = "cli/web/page";

const WASM: &str = "planner.wasm";

/// Builds the page anew, in the place of the one that is committed.
pub(crate) fn build() -> Result<(), String> {
    let fresh = target("web/dist")?;
    build_into(&fresh)?;
    // Only what is whole takes the place of the other.
    let on_disk = at(&DIST);
    fs::remove_dir_all(DIST).and_then(|()| fs::create_dir(DIST)).map_err(on_disk)?;
    for name in names(&fresh)? {
        fs::copy(fresh.join(&name), Path::new(DIST).join(&name)).map_err(on_disk)?;
    }
    Ok(())
}

/// Tests the page, and that what is committed is what its sources build.
pub(crate) fn check() -> Result<(), String> {
    let fresh = target("web/dist")?;
    build_into(&fresh)?;
    for command in ["check", "test"] {
        sh(npm().args(["run", "--silent", command]))?;
    }
    compare(Path::new(DIST), &fresh)?;
    // The bytes of the planner hang on where the sources of the standard library lie.
    let planner = |folder: &Path| absolute(folder.join(WASM));
    sh(npm().args(["run", "--silent", "same", "--"]).arg(planner(Path::new(DIST))?).arg(planner(&fresh)?))?;
    // Plans of the page are compared with those of the command.
    let command = target("debug/cacheplan")?;
    if !command.exists() {
        sh(Command::new("cargo").args(["build", "--locked", "--bin", "cacheplan"]))?;
    }
    sh(npm().args(["run", "--silent", "browser"]).env("CACHEPLAN_COMMAND", command))
}

fn build_into(folder: &Path) -> Result<(), String> {
    let on_disk = at(&folder);
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(on_disk)?;
    }
    install()?;
    let out = std::path::absolute(folder).map_err(on_disk)?;
    sh(npm().args(["run", "--silent", "build", "--", "--logLevel", "warn", "--outDir"]).arg(&out))?;
    let wasm = wasm()?;
    fs::copy(&wasm, out.join(WASM)).map_err(at(&wasm))?;
    Ok(())
}

/// Compiles the planner; no path of this machine is left in it.
fn wasm() -> Result<PathBuf, String> {
    let library = rust_src::library()?;
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(std::env::home_dir()?.join(".cargo"))).ok_or("there is no home folder")?;
    let here = std::env::current_dir().map_err(|error| error.to_string())?;
    let flags: Vec<String> = [(library.as_path(), "/rust"), (home.as_path(), "/cargo"), (here.as_path(), "/cacheplan")]
        .map(|(path, shown)| format!("--remap-path-prefix={}={shown}", path.display()))
        .to_vec();
    let folder = target("web/wasm")?;
    sh(rust_src::std_from(&library, &mut Command::new("cargo"))
        .args(["build", "--profile", "page", "--locked", "--package", "cacheplan-wasm"])
        .args(["--target", "wasm32-unknown-unknown", "-Zbuild-std=std,panic_abort", "--target-dir"])
        .arg(&folder)
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}")))?;
    Ok(folder.join("wasm32-unknown-unknown/page/cacheplan_wasm.wasm"))
}

/// The tools of the page, as its lock file has them.
fn install() -> Result<(), String> {
    let (lock, installed) = (format!("{PAGE}/package-lock.json"), format!("{PAGE}/node_modules/installed.json"));
    let wanted = text(lock)?;
    if fs::read_to_string(&installed).is_ok_and(|found| found == wanted) {
        return Ok(());
    }
    sh(npm().args(["ci", "--silent"]))?;
    // Written last: without it, an installation that was broken off is none.
    fs::write(&installed, wanted).map_err(at(&installed))
}

fn npm() -> Command {
    let mut npm = Command::new("npm");
    npm.args(["--prefix", PAGE]);
    npm
}

/// Every file of the one is in the other, byte for byte; the planner by its answers.
fn compare(committed: &Path, fresh: &Path) -> Result<(), String> {
    let (theirs, ours) = (names(committed)?, names(fresh)?);
    let differs = |name: &&String| fs::read(committed.join(name)).ok() != fs::read(fresh.join(name)).ok();
    let wrong: Vec<&str> = ours.iter().filter(differs).map(String::as_str).filter(|name| *name != WASM).collect();
    if theirs == ours && wrong.is_empty() {
        return Ok(());
    }
    let (committed, theirs, ours, wrong) = (committed.display(), theirs.join(", "), ours.join(", "), wrong.join(", "));
    Err(format!(
        "{committed} ({theirs}) is not what its sources build ({ours}); different: {wrong}; run `cargo xtask web`"
    ))
}

fn names(folder: &Path) -> Result<Vec<String>, String> {
    let name = |path: PathBuf| Some(path.file_name()?.to_str()?.to_owned());
    Ok(entries(folder)?.into_iter().filter_map(name).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_differs_is_named() {
        let folder = std::env::temp_dir().join(format!("cacheplan-web-{}", std::process::id()));
        let (one, other) = (folder.join("one"), folder.join("other"));
        for (folder, text) in [(&one, "a"), (&other, "a")] {
            fs::create_dir_all(folder).unwrap();
            fs::write(folder.join("app.js"), text).unwrap();
        }
        assert_eq!(compare(&one, &other), Ok(()));
        fs::write(other.join("app.js"), "b").unwrap();
        assert!(compare(&one, &other).unwrap_err().contains("different: app.js"));
        fs::write(one.join("old.js"), "").unwrap();
        assert!(compare(&one, &other).unwrap_err().contains("app.js, old.js"));
        fs::remove_dir_all(&folder).unwrap();
    }
}
