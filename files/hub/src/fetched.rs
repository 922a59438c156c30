//! What was fetched, and where the next run finds it.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use cacheplan_files::{Limit, replace};

use crate::client::Whole;
use crate::head::Head;

/// What was fetched, and where it goes.
pub(crate) struct Fetched {
    /// The model's folder in the cache.
    pub(crate) folder: Option<PathBuf>,
    pub(crate) revision: String,
    pub(crate) commit: String,
    pub(crate) whole: Vec<(&'static str, Whole)>,
    pub(crate) heads: Vec<(String, Head)>,
}

impl Fetched {
    /// Headers first and the config last, so that who finds the config finds all.
    pub(crate) fn keep(&self) -> io::Result<()> {
        let Some(folder) = &self.folder else { return Ok(()) };
        let headers = folder.join(".headers").join(&self.commit);
        for (name, head) in &self.heads {
            let kept = head.kept();
            if kept.len() as u64 <= Limit::KEPT_HEADER.bytes {
                write(&headers.join(name), &kept)?;
            }
        }
        for (name, whole) in &self.whole {
            self.keep_whole(folder, name, whole)?;
        }
        if self.revision != self.commit {
            write(&folder.join("refs").join(&self.revision), self.commit.as_bytes())?;
        }
        Ok(())
    }

    /// A file of a snapshot: a link to its content, where there are links and the content has a name.
    fn keep_whole(&self, folder: &Path, name: &str, whole: &Whole) -> io::Result<()> {
        let place = folder.join("snapshots").join(&self.commit).join(name);
        #[cfg(unix)]
        if let Some(etag) = &whole.etag {
            write(&folder.join("blobs").join(etag), &whole.bytes)?;
            fs::create_dir_all(folder.join("snapshots").join(&self.commit))?;
            return match std::os::unix::fs::symlink(Path::new("../../blobs").join(etag), &place) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
                _ => Ok(()),
            };
        }
        write(&place, &whole.bytes)
    }
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    replace(path, |out| out.write_all(bytes)).map_err(io::Error::other)
}

impl std::fmt::Debug for Fetched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fetched").field("commit", &self.commit).finish_non_exhaustive()
    }
}
