//! Writing a file so that whoever looks finds the old one or the new one, whenever the writer is stopped.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata, TryLockError};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, BufWriter, ErrorKind, Read};
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::Shown;
use crate::inputs::is_input;
use crate::source::kind;

/// A file that was not written; what was in its place before is still there.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReplaceError {
    /// The system refused.
    #[error("{}: {source}", Shown(.path.display()))]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// What is in its place is no regular file.
    #[error("{}: this is {found}; only a regular file is replaced", Shown(.path.display()))]
    NotRegular {
        /// The file.
        path: PathBuf,
        /// What it is.
        found: &'static str,
    },
    /// What is in its place is read by the same command.
    #[error("{}: this file is an input of the same command, or of its model; it is not replaced, name another", Shown(.path.display()))]
    Input {
        /// The file.
        path: PathBuf,
    },
    /// Two outputs have one place.
    #[error("{}: two outputs of this command would be this file, and only the last be left; name another", Shown(.path.display()))]
    Twice {
        /// The file.
        path: PathBuf,
    },
    /// The file may not be written.
    #[error("{}: this file is read-only; it is not replaced", Shown(.path.display()))]
    ReadOnly {
        /// The file.
        path: PathBuf,
    },
}

/// Refuses an output that would take the place of an input, before anything is computed for it.
///
/// # Errors
/// [`ReplaceError::Input`].
pub fn refuse_input(path: &Path) -> Result<(), ReplaceError> {
    if is_input(path) { Err(ReplaceError::Input { path: path.to_owned() }) } else { Ok(()) }
}

/// Refuses outputs that could not be written, before anything is computed for them: as one that would take the place of an
/// input or of another output, and as [`replace`] would refuse it.
///
/// # Errors
/// [`ReplaceError`].
pub fn refuse_places<'a>(outputs: impl IntoIterator<Item = &'a Path>) -> Result<(), ReplaceError> {
    let outputs: Vec<&Path> = outputs.into_iter().collect();
    for path in &outputs {
        refuse_input(path)?;
        Partial::beside(path)?.remove();
    }
    refuse_twice(outputs)
}

/// Refuses an output in the place of another, before anything is read: one that grows is begun then.
///
/// # Errors
/// [`ReplaceError::Twice`], and a link that leads nowhere.
pub fn refuse_twice<'a>(outputs: impl IntoIterator<Item = &'a Path>) -> Result<(), ReplaceError> {
    let mut places = HashSet::new();
    for path in outputs {
        let place = behind_links(path).map_err(|source| ReplaceError::Io { path: path.to_owned(), source })?;
        // Where nothing is yet, the folder alone can be looked up.
        let folder = folder_of(&place).canonicalize().unwrap_or_default();
        if !places.insert(folder.join(place.file_name().unwrap_or_default())) {
            return Err(ReplaceError::Twice { path: path.to_owned() });
        }
    }
    Ok(())
}

/// Whether a file that is to be written over begins so, or is empty or not there: what is found is no input.
///
/// # Errors
/// [`ReplaceError`], also of what is no regular file.
pub fn is_begun_so(path: &Path, head: &[u8]) -> Result<bool, ReplaceError> {
    let failed = |source| ReplaceError::Io { path: path.to_owned(), source };
    let found = match fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(true),
        found => found.map_err(failed)?,
    };
    if let Some(found) = kind(found.file_type()) {
        return Err(ReplaceError::NotRegular { path: path.to_owned(), found });
    }
    let mut begun = Vec::with_capacity(head.len());
    let file = File::open(path).map_err(failed)?;
    file.take(head.len() as u64).read_to_end(&mut begun).map_err(failed)?;
    Ok(begun.is_empty() || begun == head)
}

/// Puts what `write` writes in the place of a file, or of what a symbolic link leads to, and keeps its permissions
/// and, as far as the system lets it, its owner.
///
/// It is written beside its place, synced and renamed. Of several writers at once the last to be done stays. What
/// writers that were stopped have left beside it is removed.
///
/// # Errors
/// [`ReplaceError`], also what `write` returns.
pub fn replace(path: &Path, write: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>) -> Result<(), ReplaceError> {
    let partial = Partial::beside(path)?;
    let written = || {
        let mut out = BufWriter::new(&partial.file);
        write(&mut out)?;
        out.into_inner().map_err(io::IntoInnerError::into_error).map(drop)
    };
    match written() {
        Ok(()) => partial.take_place(),
        Err(source) => {
            partial.remove();
            Err(ReplaceError::Io { path: path.to_owned(), source })
        }
    }
}

/// A file beside the place that it takes once it is whole.
#[derive(Debug)]
pub(crate) struct Partial {
    /// As it was named.
    path: PathBuf,
    place: PathBuf,
    beside: PathBuf,
    pub(crate) file: File,
    /// Whether there is a file in that place.
    pub(crate) replaces: bool,
}

impl Partial {
    /// An empty file beside `path`, or beside what a symbolic link leads to.
    ///
    /// # Errors
    /// As [`replace`](crate::replace()), but for what is written.
    pub(crate) fn beside(path: &Path) -> Result<Self, ReplaceError> {
        let failed = |source| ReplaceError::Io { path: path.to_owned(), source };
        let place = behind_links(path).map_err(failed)?;
        let old = match fs::metadata(&place) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(failed(error)),
            Ok(found) => match kind(found.file_type()) {
                Some(found) => return Err(ReplaceError::NotRegular { path: path.to_owned(), found }),
                None if found.permissions().readonly() => return Err(ReplaceError::ReadOnly { path: path.to_owned() }),
                None => Some(found),
            },
        };
        let name = place.file_name().ok_or_else(|| failed(ErrorKind::InvalidFilename.into()))?;
        let folder = folder_of(&place);
        remove_partial(folder, name);
        let (beside, file) = create_partial(folder, name).map_err(failed)?;
        let partial = Self { path: path.to_owned(), replaces: old.is_some(), place, beside, file };
        // Before there is anything in it: what was private may be seen by nobody meanwhile.
        match old.map_or(Ok(()), |old| keep_owner_and_permissions(&partial.file, &old)) {
            Ok(()) => Ok(partial),
            Err(source) => {
                partial.remove();
                Err(failed(source))
            }
        }
    }

    /// Takes its place.
    ///
    /// # Errors
    /// What the system refuses; the old file is still there then.
    pub(crate) fn take_place(self) -> Result<(), ReplaceError> {
        if let Err(source) = self.file.sync_all().and_then(|()| fs::rename(&self.beside, &self.place)) {
            self.remove();
            return Err(ReplaceError::Io { path: self.path, source });
        }
        // The rename itself is durable only with its folder. Not every system can open one; then there is no more to do.
        if let Ok(folder) = File::open(folder_of(&self.place)) {
            let _ = folder.sync_all();
        }
        Ok(())
    }

    /// Where it is until it takes its place.
    pub(crate) fn written(&self) -> &Path {
        &self.beside
    }

    fn remove(&self) {
        let _ = fs::remove_file(&self.beside);
    }
}

fn folder_of(place: &Path) -> &Path {
    place.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Where a path leads, whether something is there or not.
fn behind_links(path: &Path) -> io::Result<PathBuf> {
    const MOST: usize = 40;
    let mut place = path.to_owned();
    for _ in 0..MOST {
        match fs::read_link(&place) {
            Ok(target) => place = place.parent().unwrap_or(Path::new("")).join(target),
            Err(_) => return Ok(place),
        }
    }
    Err(io::Error::other("too many symbolic links"))
}

/// A file beside the place of `name` that no other writer writes. It stays locked until it is closed: whoever can lock
/// it knows that it was left behind.
fn create_partial(folder: &Path, name: &OsStr) -> io::Result<(PathBuf, File)> {
    loop {
        let mut partial = name.to_owned();
        partial.push(format!(".{:016x}.partial", RandomState::new().build_hasher().finish()));
        let path = folder.join(partial);
        let file = File::create_new(&path)?;
        let locked = match file.try_lock() {
            Ok(()) => true,
            // Another writer took it for one that was left, and removes it. To wait for that one may take for ever.
            Err(TryLockError::WouldBlock) => false,
            // Where nothing can be locked, nothing is removed either.
            Err(TryLockError::Error(_)) => return Ok((path, file)),
        };
        if locked && path.try_exists()? {
            return Ok((path, file));
        }
    }
}

/// The group too, or those who may read the new file would be others. Only root can give a file away.
fn keep_owner_and_permissions(file: &File, old: &Metadata) -> io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::{MetadataExt, fchown};
        let new = file.metadata()?;
        if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
            let _ = fchown(file, Some(old.uid()), Some(old.gid()));
        }
    }
    file.set_permissions(old.permissions())
}

/// Removes what writers of `name` that were stopped have left. Failing to is no reason not to write.
fn remove_partial(folder: &Path, name: &OsStr) {
    let name = name.to_string_lossy();
    let is_partial = |other: &str| {
        let random = other.strip_prefix(&*name).and_then(|rest| rest.strip_prefix('.')?.strip_suffix(".partial"));
        random.is_some_and(|random| random.len() == 16 && random.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if is_partial(&entry.file_name().to_string_lossy())
            && entry.file_type().is_ok_and(|found| found.is_file())
            && let Ok(file) = File::open(&path)
            // The lock is held until the file is gone, so that a writer that had not locked it yet sees that it lost it.
            && file.try_lock().is_ok()
        {
            let _ = fs::remove_file(path);
        }
    }
}
