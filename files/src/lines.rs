//! A file that grows by whole lines, valid whenever whoever writes it is stopped.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::replace::{ReplaceError, replace};

/// A file that lines are written to as they come.
#[derive(Debug)]
pub struct Lines {
    path: PathBuf,
    file: File,
    /// Bytes of the lines that were written whole.
    len: u64,
}

impl Lines {
    /// An empty file, in the place of one that may be there.
    ///
    /// # Errors
    /// As [`replace`](crate::replace()).
    pub fn create(path: &Path) -> Result<Self, ReplaceError> {
        replace(path, |out| out.write_all(b""))?;
        let opened = OpenOptions::new().append(true).open(path);
        let file = opened.map_err(|source| ReplaceError::Io { path: path.to_owned(), source })?;
        Ok(Self { path: path.to_owned(), file, len: 0 })
    }

    /// Appends a line, or nothing of it.
    ///
    /// # Errors
    /// [`ReplaceError::Io`], such as a full disk; the lines before it stay.
    pub fn push(&mut self, line: &str) -> Result<(), ReplaceError> {
        let line = format!("{line}\n");
        self.file.write_all(line.as_bytes()).map_err(|source| {
            // What there was room for is no line.
            let _ = self.file.set_len(self.len);
            ReplaceError::Io { path: self.path.clone(), source }
        })?;
        self.len += line.len() as u64;
        Ok(())
    }
}
