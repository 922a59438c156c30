//! The file of a snapshot, value by value.

use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use cacheplan_files::Source;

use super::{CHECKSUM, MAGIC, SnapshotError, VERSION};

/// Salts and names of adapters are shorter.
const MAX_TEXT: usize = 64 << 10;
/// The most tokens between two nodes; no model's context is longer.
const MAX_TOKENS: usize = 16 << 20;

/// A snapshot whose magic, version and checksum have been verified.
pub(super) struct Input {
    path: PathBuf,
    file: BufReader<Box<dyn Read>>,
    /// Bytes before the checksum that have not been read yet.
    left: u64,
}

impl Input {
    pub(super) fn open(path: &Path) -> Result<Self, SnapshotError> {
        let failed = |source| SnapshotError::Io { path: path.to_owned(), source };
        let source = Source::open(path)?;
        let size = source.len();
        let mut input = Self { path: path.to_owned(), file: BufReader::new(Box::new(source.reader())), left: size };
        if size < (MAGIC.len() + 4 + CHECKSUM) as u64 {
            return Err(input.damaged("the file is too short"));
        }
        input.left -= CHECKSUM as u64;
        if input.bytes(MAGIC.len())? != MAGIC {
            return Err(input.damaged("the file is no snapshot of a prefix cache"));
        }
        let version = input.u32()?;
        input.expect("the version", &version.to_string(), &VERSION.to_string())?;
        if !is_intact(&source).map_err(failed)? {
            return Err(input.damaged("the checksum does not match"));
        }
        Ok(input)
    }

    /// That so many bytes are there, and that they are not more than are read at once.
    fn within(&self, len: usize, most: usize, what: &'static str) -> Result<(), SnapshotError> {
        match len {
            _ if len as u64 > self.left => Err(self.damaged("a length reaches beyond the end")),
            _ if len > most => Err(self.damaged(what)),
            _ => Ok(()),
        }
    }

    pub(super) fn bytes(&mut self, len: usize) -> Result<Vec<u8>, SnapshotError> {
        self.within(len, usize::MAX, "")?;
        let mut bytes = vec![0; len];
        self.file.read_exact(&mut bytes).map_err(|source| SnapshotError::Io { path: self.path.clone(), source })?;
        self.left -= len as u64;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], SnapshotError> {
        let mut array = [0; N];
        array.copy_from_slice(&self.bytes(N)?);
        Ok(array)
    }

    pub(super) fn u16(&mut self) -> Result<u16, SnapshotError> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, SnapshotError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, SnapshotError> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn flag(&mut self) -> Result<bool, SnapshotError> {
        match self.array()? {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(self.damaged("a flag is neither set nor clear")),
        }
    }

    pub(super) fn text(&mut self) -> Result<String, SnapshotError> {
        let len = self.u32()? as usize;
        self.within(len, MAX_TEXT, "a text is too long")?;
        String::from_utf8(self.bytes(len)?).map_err(|_| self.damaged("a text is not UTF-8"))
    }

    pub(super) fn tokens(&mut self) -> Result<Box<[u32]>, SnapshotError> {
        let len = self.u32()? as usize;
        self.within(len.saturating_mul(4), 4 * MAX_TOKENS, "a key is too long")?;
        let bytes = self.bytes(4 * len)?;
        Ok(bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
    }

    /// Checks that everything has been read.
    pub(super) fn end(&self) -> Result<(), SnapshotError> {
        if self.left == 0 { Ok(()) } else { Err(self.damaged("there is more behind the last node")) }
    }

    pub(super) fn expect(&self, what: &'static str, found: &str, expected: &str) -> Result<(), SnapshotError> {
        if found == expected {
            return Ok(());
        }
        let (found, expected) = (found.to_owned(), expected.to_owned());
        Err(SnapshotError::Foreign { path: self.path.clone(), what, found, expected })
    }

    pub(super) fn damaged(&self, what: &'static str) -> SnapshotError {
        SnapshotError::Damaged { path: self.path.clone(), what }
    }
}

/// Whether the file ends with the sum of all that stands before.
fn is_intact(source: &Source) -> io::Result<bool> {
    let mut file = source.reader();
    let mut sum = blake3::Hasher::new();
    sum.update_reader((&mut file).take(source.len().saturating_sub(CHECKSUM as u64)))?;
    let mut expected = [0; CHECKSUM];
    file.read_exact(&mut expected)?;
    Ok(sum.finalize() == blake3::Hash::from_bytes(expected))
}
