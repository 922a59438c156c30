//! The files of this repository, as they lie here or as they were committed.

use crate::files::at;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use crate::{output, said};

pub(super) struct Sources<'a> {
    commit: Option<&'a str>,
    pub(super) files: BTreeSet<PathBuf>,
}

#[derive(Deserialize)]
struct Manifest {
    package: Option<toml::Table>,
    lib: Option<Target>,
    #[serde(default)]
    bin: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    path: Option<PathBuf>,
}

impl<'a> Sources<'a> {
    pub(super) fn of(commit: Option<&'a str>) -> Result<Self, String> {
        let listed = match commit {
            None => said(Command::new("git").args(["ls-files", "--cached", "--others", "--exclude-standard"]))?,
            Some(commit) => said(Command::new("git").args(["ls-tree", "-r", "--name-only", commit]))?,
        };
        Ok(Self { commit, files: listed.lines().map(PathBuf::from).collect() })
    }

    pub(super) fn text(&self, file: &Path) -> Option<String> {
        let Some(commit) = self.commit else { return std::fs::read_to_string(file).ok() };
        let shown = || output(Command::new("git").arg("show").arg(format!("{commit}:{}", file.display()))).ok();
        self.files.get(file).and_then(|_| String::from_utf8(shown()?.stdout).ok())
    }

    /// The root files of all crates: of each manifest the library and the binaries.
    pub(super) fn roots(&self) -> Result<BTreeSet<PathBuf>, String> {
        let mut roots = BTreeSet::new();
        for manifest in self.files.iter().filter(|file| file.ends_with("Cargo.toml")) {
            let Some(text) = self.text(manifest) else { continue };
            let stated: Manifest = toml::from_str(&text).map_err(at(&manifest))?;
            if stated.package.is_none() {
                continue;
            }
            let folder = manifest.parent().unwrap_or(Path::new(""));
            let named = stated.lib.into_iter().chain(stated.bin).filter_map(|target| target.path);
            let usual = ["src/lib.rs", "src/main.rs"].map(PathBuf::from);
            let all = usual.into_iter().chain(named).map(|path| folder.join(path));
            roots.extend(all.filter(|root| self.files.contains(root)));
        }
        Ok(roots)
    }
}
