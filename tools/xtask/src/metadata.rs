//! What cargo and rustc say of the workspace and of this machine.

use std::path::PathBuf;
use std::process::Command;

use serde::Deserialize;

use crate::said;

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

/// A package of the workspace, or one that it depends on.
#[derive(Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) license: Option<String>,
    pub(crate) source: Option<String>,
    pub(crate) manifest_path: PathBuf,
    pub(crate) dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    pub(crate) req: String,
    pub(crate) path: Option<String>,
}

/// The packages that a build of `manifest` for `host` may take; of other platforms cargo would have to download them first.
pub(crate) fn packages(manifest: &str, host: &str) -> Result<Vec<Package>, String> {
    let arguments = ["metadata", "--format-version", "1", "--locked", "--manifest-path", manifest];
    let said = said(Command::new("cargo").args(arguments).args(["--filter-platform", host]))?;
    let metadata: Metadata = serde_json::from_str(&said).map_err(|error| format!("cargo metadata: {error}"))?;
    Ok(metadata.packages)
}

/// The platform of this machine.
pub(crate) fn host() -> Result<String, String> {
    let said = said(Command::new("rustc").arg("-vV"))?;
    let host = said.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "rustc names no host".to_owned())
}
