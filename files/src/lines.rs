//! A file that grows by whole lines, valid whenever whoever writes it is stopped.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::replace::{Partial, ReplaceError, refuse_input};

/// A file that lines are written to as they come. Where there is one in its place, they stand beside it until they are all
/// there.
#[derive(Debug)]
pub struct Lines {
    path: PathBuf,
    file: File,
    /// Bytes of the lines that were written whole.
    len: u64,
    /// What takes the place of the old file.
    partial: Option<Partial>,
}

impl Lines {
    /// An empty file, to take the place of one that may be there.
    ///
    /// # Errors
    /// As [`replace`](crate::replace()); an input, see [`refuse_input`].
    pub fn create(path: &Path) -> Result<Self, ReplaceError> {
        refuse_input(path)?;
        let partial = Partial::beside(path)?;
        let failed = |source| ReplaceError::Io { path: path.to_owned(), source };
        if partial.replaces {
            let file = partial.file.try_clone().map_err(failed)?;
            return Ok(Self { path: path.to_owned(), file, len: 0, partial: Some(partial) });
        }
        partial.take_place()?;
        let file = OpenOptions::new().append(true).open(path).map_err(failed)?;
        Ok(Self { path: path.to_owned(), file, len: 0, partial: None })
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

    /// Where the lines are until they take their place, where that is not where they belong.
    pub fn beside(&self) -> Option<&Path> {
        self.partial.as_ref().map(Partial::written)
    }

    /// Ends the file: all lines are there, and take the place of the old one.
    ///
    /// # Errors
    /// As [`replace`](crate::replace()).
    pub fn finish(self) -> Result<(), ReplaceError> {
        match self.partial {
            Some(partial) => partial.take_place(),
            None => self.file.sync_all().map_err(|source| ReplaceError::Io { path: self.path, source }),
        }
    }
}
