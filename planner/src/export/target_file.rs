//! One target: whose words it takes, and the file that it reads.

use super::dialect::Dialect;
use super::file::{File, nested};
use super::serving::Serving;

/// One target: whose words it takes and the file that it reads.
pub(crate) struct TargetFile {
    /// The name on the command line.
    pub(crate) name: &'static str,
    pub(crate) file_name: &'static str,
    /// Whether the file itself says which model is served; other files stand beside a command that does.
    pub(crate) names_model: bool,
    /// The words of the engine in it.
    pub(crate) dialect: &'static Dialect,
    /// Its own releases with the engine's in each; empty where its versions are the engine's.
    pub(crate) releases: &'static [(&'static str, &'static str)],
    /// The whole file.
    pub(crate) write: fn(&File<'_>) -> String,
    /// What it needs besides the engine's arguments.
    pub(crate) gaps: fn(&Serving) -> Vec<String>,
}

impl TargetFile {
    /// A file that names the model, with nothing of its own beside the engine's words.
    pub(crate) const fn new(
        name: &'static str,
        file_name: &'static str,
        dialect: &'static Dialect,
        write: fn(&File<'_>) -> String,
    ) -> Self {
        Self { name, file_name, names_model: true, dialect, releases: &[], write, gaps: |_| Vec::new() }
    }

    /// The settings as JSON, which has no comments.
    pub(super) const fn json(name: &'static str, file_name: &'static str, dialect: &'static Dialect) -> Self {
        let write = |file: &File<'_>| format!("{:#}\n", nested(file.settings));
        Self { names_model: false, ..Self::new(name, file_name, dialect, write) }
    }
}
