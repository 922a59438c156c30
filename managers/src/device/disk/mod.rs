//! Cached prefixes in files: what outlives the process.
//!
//! A file is whole in itself: the tokens from the first on, what the pools have of them, and their sum. It is written
//! beside its place, synced and renamed. One that another model, plan or version has written, or that is damaged, is
//! dropped whole, with a note; what is read was checked to its last byte. Nothing is encrypted.

mod contents;
mod file;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use cacheplan_files::{ReplaceError, Shown};
use cacheplan_planner::{CachePlan, Pool};
use thiserror::Error;

use self::file::{Header, SUFFIX};
use crate::prefix::Token;

/// How many notes are kept until they are taken.
const MOST_NOTES: usize = 16;

/// A folder of files of cached prefixes, within a number of bytes; one process has it at a time.
#[derive(Debug)]
pub struct PrefixFiles {
    folder: PathBuf,
    /// The most bytes of all files together.
    bytes_max: u64,
    /// What a file must come from.
    origin: [u8; 32],
    /// Whether the beginning of a file's tokens serves too: not where a state or a window goes with the last of them.
    divides: bool,
    /// By their tokens.
    entries: BTreeMap<Vec<Token>, Entry>,
    bytes: u64,
    clock: u64,
    notes: Vec<String>,
    /// Whether the system has refused something, so that nothing more is asked of it.
    given_up: bool,
    /// Held while this lives.
    _lock: File,
}

/// One file.
#[derive(Debug)]
struct Entry {
    path: PathBuf,
    bytes: u64,
    /// When it was last of use.
    used: u64,
}

/// A file that serves a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundPrefix {
    /// All its tokens.
    of: Vec<Token>,
    /// How many of them the prompt begins with.
    tokens: usize,
}

impl FoundPrefix {
    /// Returns how many tokens of the prompt need not be computed.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.tokens
    }
}

/// A folder that cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DiskError {
    /// The system refused.
    #[error("{}: {source}", Shown(.path.display()))]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A file was not written.
    #[error(transparent)]
    Replace(#[from] ReplaceError),
    /// Another process has the folder.
    #[error("{}: another process keeps its prefixes here; name another folder", Shown(.folder.display()))]
    InUse {
        /// The folder.
        folder: PathBuf,
    },
}

impl PrefixFiles {
    /// Opens a folder, which is made if it is missing, for the pools of `plan`. `model` stands for whatever else the
    /// contents of caches follow from, weights above all.
    ///
    /// Files of another origin, damaged ones and the oldest beyond `bytes` are removed; files with other names are let be.
    ///
    /// # Errors
    /// [`DiskError`].
    pub fn open(folder: &Path, bytes: u64, plan: &CachePlan, model: [u8; 32]) -> Result<Self, DiskError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| DiskError::Io { path, source }
        };
        fs::create_dir_all(folder).map_err(failed(folder))?;
        let lock_path = folder.join("cacheplan.lock");
        let lock = File::options().create(true).truncate(false).write(true).open(&lock_path);
        let lock = lock.map_err(failed(&lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(DiskError::InUse { folder: folder.to_owned() }),
            Err(TryLockError::Error(source)) => return Err(failed(&lock_path)(source)),
        }
        let divides = plan.pools.iter().all(|pool| pool.tokens_per_block.is_some() && pool.window.is_none());
        let (entries, notes) = Default::default();
        let (folder, origin) = (folder.to_owned(), origin(plan, model));
        let mut files = Self {
            folder,
            bytes_max: bytes,
            origin,
            divides,
            entries,
            bytes: 0,
            clock: 0,
            notes,
            given_up: false,
            _lock: lock,
        };
        files.read_folder()?;
        files.make_room(0)?;
        Ok(files)
    }

    fn read_folder(&mut self) -> Result<(), DiskError> {
        let failed = |path: &Path, source| DiskError::Io { path: path.to_owned(), source };
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(|source| failed(&self.folder, source))? {
            let entry = entry.map_err(|source| failed(&self.folder, source))?;
            let (name, path) = (entry.file_name().to_string_lossy().into_owned(), entry.path());
            if name.contains(SUFFIX) && name.ends_with(".partial") {
                // A writer was stopped. Nobody else writes here.
                fs::remove_file(&path).map_err(|source| failed(&path, source))?;
            } else if name.ends_with(SUFFIX) {
                let changed = entry.metadata().and_then(|metadata| metadata.modified());
                found.push((changed.map_err(|source| failed(&path, source))?, path));
            }
        }
        found.sort();
        for (_, path) in found {
            match Header::read(&path, &self.origin) {
                Ok(header) => {
                    let used = self.tick();
                    self.bytes += header.bytes;
                    let entry = Entry { path, bytes: header.bytes, used };
                    if let Some(twin) = self.entries.insert(header.tokens, entry) {
                        self.delete(&twin)?;
                    }
                }
                Err(reason) => {
                    self.note(&path, &reason);
                    fs::remove_file(&path).map_err(|source| failed(&path, source))?;
                }
            }
        }
        Ok(())
    }

    /// The file that serves most of the tokens, if it serves more than `than` of them.
    #[must_use]
    pub fn find(&self, tokens: &[Token], than: usize) -> Option<FoundPrefix> {
        let common = |of: &[Token]| of.iter().zip(tokens).take_while(|(one, other)| one == other).count();
        let before = |end: usize| self.entries.range(..=tokens[..end].to_vec()).next_back().map(|(of, _)| of);
        let found = if self.divides {
            // What shares most with a key stands next to it.
            let behind = self.entries.range(tokens.to_vec()..).next().map(|(of, _)| of);
            let most = before(tokens.len()).into_iter().chain(behind).max_by_key(|of| common(of));
            most.map(|of| FoundPrefix { of: of.clone(), tokens: common(of) })
        } else {
            let mut end = tokens.len();
            loop {
                match before(end) {
                    Some(of) if common(of) == of.len() => break Some(FoundPrefix { of: of.clone(), tokens: of.len() }),
                    Some(of) if common(of) > than => end = common(of).min(end.saturating_sub(1)),
                    _ => break None,
                }
            }
        };
        found.filter(|found| found.tokens > than && !self.given_up)
    }

    /// Whether a file has these tokens already, or none can have them.
    pub(super) fn has(&self, tokens: &[Token]) -> bool {
        self.given_up || self.find(tokens, 0).is_some_and(|found| found.tokens == tokens.len())
    }

    /// Reads and writes nothing more, since the system has refused something; the note says what.
    pub fn give_up(&mut self, error: &DiskError) {
        self.given_up = true;
        self.notes.push(format!("prefixes are kept in files no more: {error}"));
    }

    /// How many bytes the files have.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many files there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Takes the notes of what was dropped since they were last taken.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// Keeps tokens and the parts that the pools have of them, each in a file of its own; the files that were of use
    /// longest ago make way. Parts that take more than all may have are not kept.
    pub(super) fn keep(&mut self, tokens: &[Token], parts: &[Vec<u8>]) -> Result<(), DiskError> {
        let header = Header::new(tokens, parts);
        if header.bytes > self.bytes_max {
            return Ok(());
        }
        // The one that this goes on from serves nobody better.
        if self.divides
            && let Some(FoundPrefix { of, .. }) = self.find(tokens, 0).filter(|found| found.of.len() == found.tokens)
        {
            self.remove(&of)?;
        }
        self.make_room(header.bytes)?;
        let path = self.folder.join(header.name(&self.origin));
        header.write(&path, &self.origin, parts)?;
        let entry = Entry { path, bytes: header.bytes, used: self.tick() };
        self.bytes += header.bytes;
        self.entries.insert(header.tokens, entry);
        Ok(())
    }

    /// The parts of a file, if they have the lengths that are expected; a file that is not as it was written is dropped.
    pub(super) fn read(&mut self, found: &FoundPrefix, expected: &[u64]) -> Result<Option<Vec<Vec<u8>>>, DiskError> {
        let used = self.tick();
        let Some(entry) = self.entries.get_mut(&found.of) else { return Ok(None) };
        entry.used = used;
        match Header::read_all(&entry.path, &self.origin, &found.of, expected) {
            Ok(parts) => Ok(Some(parts)),
            Err(reason) => {
                let path = entry.path.clone();
                self.note(&path, &reason);
                self.remove(&found.of)?;
                Ok(None)
            }
        }
    }

    /// Removes what was of use longest ago until so many more bytes fit.
    fn make_room(&mut self, bytes: u64) -> Result<(), DiskError> {
        while self.bytes.saturating_add(bytes) > self.bytes_max
            && let Some(oldest) = self.entries.iter().min_by_key(|(_, entry)| entry.used).map(|(of, _)| of.clone())
        {
            self.remove(&oldest)?;
        }
        Ok(())
    }

    fn remove(&mut self, tokens: &[Token]) -> Result<(), DiskError> {
        self.entries.remove(tokens).map_or(Ok(()), |entry| self.delete(&entry))
    }

    fn delete(&mut self, entry: &Entry) -> Result<(), DiskError> {
        self.bytes -= entry.bytes;
        match fs::remove_file(&entry.path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(DiskError::Io { path: entry.path.clone(), source })
            }
            _ => Ok(()),
        }
    }

    fn note(&mut self, path: &Path, reason: &str) {
        tracing::warn!(path = %path.display(), reason, "a file of prefixes was dropped");
        if self.notes.len() < MOST_NOTES {
            self.notes.push(format!("{}: {reason}; dropped", Shown(path.display())));
        }
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }
}

/// What contents of caches follow from: the version, the model, and how the plan lays them out, however many units it has.
fn origin(plan: &CachePlan, model: [u8; 32]) -> [u8; 32] {
    let alike = |pool: &Pool| Pool { units: 0, bytes: 0, reserved: 0, ..pool.clone() };
    let pools: Vec<Pool> = plan.pools.iter().map(alike).collect();
    // Resources are told apart by what is in their pools; how much a sequence takes changes with the limits alone.
    let names: HashSet<&str> = plan.resources.iter().map(|resource| resource.name.as_str()).collect();
    let mut names: Vec<&str> = names.into_iter().collect();
    names.sort_unstable();
    let said = serde_json::to_vec(&(env!("CARGO_PKG_VERSION"), &plan.model, pools, names)).unwrap_or_default();
    let mut hasher = blake3::Hasher::new();
    hasher.update(&model).update(&said);
    *hasher.finalize().as_bytes()
}
