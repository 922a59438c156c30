//! Files and folders, with errors that name them.

use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};

/// An error as one of this path.
pub(crate) fn at<E: Display>(path: &impl AsRef<Path>) -> impl Fn(E) -> String + Copy {
    move |error| format!("{}: {error}", path.as_ref().display())
}

/// A folder below cargo's target folder.
pub(crate) fn target(folder: &str) -> Result<PathBuf, String> {
    let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".into());
    absolute(Path::new(&target).join(folder))
}

pub(crate) fn absolute(path: impl AsRef<Path>) -> Result<PathBuf, String> {
    std::path::absolute(&path).map_err(at(&path))
}

pub(crate) fn text(file: impl AsRef<Path>) -> Result<String, String> {
    fs::read_to_string(&file).map_err(at(&file))
}

/// What lies in a folder, in order.
pub(crate) fn entries(folder: impl AsRef<Path>) -> Result<Vec<PathBuf>, String> {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(&folder).map_err(at(&folder))?.flatten().map(|entry| entry.path()).collect();
    entries.sort();
    Ok(entries)
}

/// The files of a folder whose names end so, in order.
pub(crate) fn with_ending(folder: impl AsRef<Path>, end: &str) -> Result<Vec<PathBuf>, String> {
    let mut files = entries(folder)?;
    files.retain(|path| path.extension().is_some_and(|extension| extension == end));
    Ok(files)
}

/// The one thing in a folder.
pub(crate) fn only(folder: &Path) -> Result<PathBuf, String> {
    entries(folder)?.pop().ok_or_else(|| format!("{}: holds nothing", folder.display()))
}

/// Removes a folder, if it is there.
pub(crate) fn remove(folder: &Path) -> Result<(), String> {
    if folder.exists() { fs::remove_dir_all(folder).map_err(at(&folder)) } else { Ok(()) }
}

/// The list in a folder that was filled to its end.
const LIST: &str = "installed.txt";

/// Whether the folder `home` was filled for a list like `wanted`.
pub(crate) fn is_installed(home: &Path, wanted: &str) -> bool {
    fs::read_to_string(home.join(LIST)).is_ok_and(|found| found == wanted)
}

/// Has `fill` fill the folder `home`, which is empty then, unless it was for such a list.
pub(crate) fn install(home: &Path, wanted: &str, fill: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    if is_installed(home, wanted) {
        return Ok(());
    }
    remove(home)?;
    fill()?;
    // Written last: without it, an installation that was broken off is none.
    fs::write(home.join(LIST), wanted).map_err(at(&home))
}
