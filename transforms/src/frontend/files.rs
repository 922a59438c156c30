//! The files that one model consists of.

use std::fmt::{self, Display, Formatter};
use std::fs;
use std::path::Path;

use cacheplan_files::{Source, SourceError};

/// The files beside each other that a model is read from.
pub(super) enum Files<'a> {
    /// Those of a folder.
    Folder(&'a Path),
    /// Those that the caller has.
    Given(&'a [Source]),
}

impl Files<'_> {
    /// The file of this name; `None` only where there is none: one that cannot be read is an error.
    pub(super) fn open(&self, name: &str) -> Result<Option<Source>, SourceError> {
        match self {
            Self::Given(sources) => Ok(sources.iter().find(|source| file_name(source) == Some(name)).cloned()),
            Self::Folder(folder) => Source::beside(folder, name),
        }
    }

    /// The names of all files.
    pub(super) fn names(&self) -> Vec<String> {
        match self {
            Self::Given(sources) => sources.iter().filter_map(file_name).map(str::to_owned).collect(),
            Self::Folder(folder) => {
                let entries = fs::read_dir(folder).into_iter().flatten().flatten();
                entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
            }
        }
    }
}

impl Display for Files<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(folder) => folder.display().fmt(f),
            Self::Given(_) => f.write_str("the files given"),
        }
    }
}

fn file_name(source: &Source) -> Option<&str> {
    Path::new(source.name()).file_name()?.to_str()
}
