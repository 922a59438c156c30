//! Where bytes are read from.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use thiserror::Error;

use crate::Limit;
use crate::Shown;
use crate::inputs;
use crate::json::JsonError;

/// Bytes of a known length that can be read at any place: those of a regular file, of standard input, in memory, or of
/// whatever implements [`ReadAt`].
#[derive(Clone, Debug)]
pub struct Source {
    name: String,
    len: u64,
    bytes: Arc<dyn ReadAt>,
}

/// Bytes that can be read at any place, such as ranges over HTTP.
pub trait ReadAt: fmt::Debug + Send + Sync {
    /// Reads some of the bytes from `offset` on, as [`Read::read`] does: 0 at the end.
    ///
    /// # Errors
    /// Bytes that cannot be had.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// The file that they are, for whoever maps it.
    fn file(&self) -> Option<&File> {
        None
    }
}

/// Bytes that cannot be read, or that are not read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The file cannot be opened or read.
    #[error("{}: {source}", Shown(.name))]
    Io {
        /// The file.
        name: String,
        /// What the system says.
        source: io::Error,
    },
    /// A folder, a device, a pipe: what has no length, or would wait for ever.
    #[error("{}: this is {found}; a regular file was expected, or `-` for what is piped in", Shown(.name))]
    NotRegular {
        /// The file.
        name: String,
        /// What it is.
        found: &'static str,
    },
    /// More than is read of a file of its kind.
    #[error("{}: {} of more than {} bytes is not read", Shown(.name), .limit.what, .limit.bytes)]
    TooLong {
        /// The file.
        name: String,
        /// The limit.
        limit: Limit,
    },
    /// The file is not UTF-8.
    #[error("{}: this is no text; {} was expected", Shown(.name), .limit.what)]
    NotText {
        /// The file.
        name: String,
        /// What was expected.
        limit: Limit,
    },
    /// The file is not read as JSON.
    #[error("{}: {source}", Shown(.name))]
    Json {
        /// The file.
        name: String,
        /// Where and why.
        source: JsonError,
    },
}

impl Source {
    /// A regular file, also through symbolic links.
    ///
    /// # Errors
    /// [`SourceError::Io`], [`SourceError::NotRegular`].
    pub fn open(path: &Path) -> Result<Self, SourceError> {
        let name = path.display().to_string();
        let failed = |source| SourceError::Io { name: name.clone(), source };
        let regular = |found: fs::Metadata| match kind(found.file_type()) {
            None => Ok(found.len()),
            Some(found) => Err(SourceError::NotRegular { name: name.clone(), found }),
        };
        // To open something else may already do harm, or wait.
        regular(fs::metadata(path).map_err(failed)?)?;
        let file = without_waiting().open(path).map_err(failed)?;
        let len = regular(file.metadata().map_err(failed)?)?;
        inputs::opened(&file, path);
        Ok(Self { name, len, bytes: Arc::new(file) })
    }

    /// The file of this name in a folder; `None` only where there is none: one that cannot be read is an error.
    ///
    /// # Errors
    /// As [`Source::open`].
    pub fn beside(folder: &Path, name: &str) -> Result<Option<Self>, SourceError> {
        let path = folder.join(name);
        match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            _ => Self::open(&path).map(Some),
        }
    }

    /// What is piped in, to its end.
    ///
    /// # Errors
    /// [`SourceError::Io`]; [`SourceError::TooLong`], without reading on.
    pub fn stdin(limit: Limit) -> Result<Self, SourceError> {
        let name = "standard input".to_owned();
        let mut bytes = Vec::new();
        let read = io::stdin().lock().take(limit.bytes.saturating_add(1)).read_to_end(&mut bytes);
        read.map_err(|source| SourceError::Io { name: name.clone(), source })?;
        if bytes.len() as u64 > limit.bytes {
            return Err(SourceError::TooLong { name, limit });
        }
        Ok(Self::memory(name, bytes))
    }

    /// What an argument names: a regular file, or with `-` what is piped in.
    ///
    /// # Errors
    /// As [`Source::open`] and [`Source::stdin`].
    pub fn named(path: &Path, limit: Limit) -> Result<Self, SourceError> {
        if path == Path::new("-") { Self::stdin(limit) } else { Self::open(path) }
    }

    /// Bytes in memory; `name` stands for them in errors, and its extension for their format.
    pub fn memory(name: impl Into<String>, bytes: impl Into<Vec<u8>>) -> Self {
        let bytes: Vec<u8> = bytes.into();
        Self::new(name, bytes.len() as u64, bytes)
    }

    /// Bytes that the caller reads.
    pub fn new(name: impl Into<String>, len: u64, bytes: impl ReadAt + 'static) -> Self {
        Self { name: name.into(), len, bytes: Arc::new(bytes) }
    }

    /// Returns the name that errors show; the path of a file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file, where it is one, for whoever maps it.
    pub fn file(&self) -> Option<&File> {
        self.bytes.file()
    }

    /// The bytes that there are.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Tells whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Fills `buffer` with the bytes from `offset` on.
    ///
    /// # Errors
    /// [`SourceError::Io`], also where there are fewer.
    pub fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), SourceError> {
        let mut reader = Reader { source: self.clone(), position: offset };
        reader.read_exact(buffer).map_err(|source| SourceError::Io { name: self.name.clone(), source })
    }

    /// A reader from the beginning to [`Source::len`].
    pub fn reader(&self) -> impl Read + use<> {
        Reader { source: self.clone(), position: 0 }
    }

    /// All bytes.
    ///
    /// # Errors
    /// [`SourceError::TooLong`], before any is read; [`SourceError::Io`].
    pub fn bytes(&self, limit: Limit) -> Result<Vec<u8>, SourceError> {
        self.within(limit)?;
        let mut bytes = vec![0; usize::try_from(self.len).unwrap_or(usize::MAX)];
        self.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    /// All bytes as text, without the mark that editors on Windows put in front.
    ///
    /// # Errors
    /// As [`Source::bytes`]; [`SourceError::NotText`].
    pub fn text(&self, limit: Limit) -> Result<String, SourceError> {
        let text = String::from_utf8(self.bytes(limit)?);
        let mut text = text.map_err(|_| SourceError::NotText { name: self.name.clone(), limit })?;
        if text.starts_with('\u{feff}') {
            text.drain(..'\u{feff}'.len_utf8());
        }
        Ok(text)
    }

    /// All bytes as JSON, see [`Limit::parse_json`].
    ///
    /// # Errors
    /// As [`Source::bytes`]; [`SourceError::Json`].
    pub fn json<T: DeserializeOwned>(&self, limit: Limit) -> Result<T, SourceError> {
        let parsed = limit.parse_json(&self.bytes(limit)?);
        parsed.map_err(|source| SourceError::Json { name: self.name.clone(), source })
    }

    /// That it is not longer than a file of its kind may be.
    ///
    /// # Errors
    /// [`SourceError::TooLong`].
    pub fn within(&self, limit: Limit) -> Result<(), SourceError> {
        if self.len <= limit.bytes { Ok(()) } else { Err(SourceError::TooLong { name: self.name.clone(), limit }) }
    }
}

/// Reads a [`Source`] in order.
struct Reader {
    source: Source,
    position: u64,
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.source.len.saturating_sub(self.position).min(buffer.len() as u64);
        let read = self.source.bytes.read_at(&mut buffer[..left as usize], self.position)?;
        self.position += read as u64;
        Ok(read)
    }
}

impl ReadAt for Vec<u8> {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let from = usize::try_from(offset).map_or(self.len(), |offset| offset.min(self.len()));
        (&self[from..]).read(buffer)
    }
}

impl ReadAt for File {
    fn file(&self) -> Option<&File> {
        Some(self)
    }

    #[cfg(unix)]
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        std::os::unix::fs::FileExt::read_at(self, buffer, offset)
    }

    #[cfg(windows)]
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        std::os::windows::fs::FileExt::seek_read(self, buffer, offset)
    }

    #[cfg(not(any(unix, windows)))]
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut file = self;
        io::Seek::seek(&mut file, io::SeekFrom::Start(offset))?;
        file.read(buffer)
    }
}

/// For reading; a pipe that was put in the place of a file since it was looked at is opened at once too.
fn without_waiting() -> fs::OpenOptions {
    let mut options = File::options();
    options.read(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
    options
}

/// What it is, unless it is a regular file.
pub(crate) fn kind(found: fs::FileType) -> Option<&'static str> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if found.is_fifo() {
            return Some("a pipe");
        }
        if found.is_socket() {
            return Some("a socket");
        }
        if found.is_char_device() || found.is_block_device() {
            return Some("a device");
        }
    }
    match () {
        () if found.is_file() => None,
        () if found.is_dir() => Some("a folder"),
        () => Some("no file"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Limit;
    use rstest::rstest;

    const FOUR: Limit = Limit { what: "a test", bytes: 4, per_value: 0 };

    #[test]
    fn a_file_and_memory_read_alike() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, "0123").unwrap();
        for source in [Source::open(&path).unwrap(), Source::memory("a", "0123")] {
            assert_eq!((source.len(), source.bytes(FOUR).unwrap()), (4, b"0123".to_vec()));
            let mut middle = [0; 2];
            source.read_exact_at(&mut middle, 1).unwrap();
            assert_eq!(&middle, b"12");
            assert!(matches!(source.read_exact_at(&mut middle, 3), Err(SourceError::Io { .. })));
            let mut all = Vec::new();
            source.reader().read_to_end(&mut all).unwrap();
            assert_eq!(all, b"0123");
        }
    }

    #[test]
    fn what_is_too_long_is_refused_with_its_limit() {
        let error = Source::memory("m", "01234").bytes(FOUR).unwrap_err();
        assert_eq!(error.to_string(), "m: a test of more than 4 bytes is not read");
    }

    #[test]
    fn text_is_utf_8_without_a_byte_order_mark() {
        assert_eq!(Source::memory("m", "\u{feff}a").text(FOUR).unwrap(), "a");
        let error = Source::memory("m", [0xff]).text(FOUR).unwrap_err();
        assert_eq!(error.to_string(), "m: this is no text; a test was expected");
    }

    #[rstest]
    #[case("/dev/zero", "a device")]
    #[case("/dev", "a folder")]
    #[cfg(unix)]
    fn only_regular_files_are_opened(#[case] path: &str, #[case] expected: &str) {
        let link = tempfile::tempdir().unwrap();
        let link = link.path().join("link");
        std::os::unix::fs::symlink(path, &link).unwrap();
        for path in [Path::new(path), &link] {
            let error = Source::open(path).unwrap_err();
            assert!(matches!(error, SourceError::NotRegular { found, .. } if found == expected), "{error}");
        }
    }

    #[test]
    #[cfg(unix)]
    fn a_pipe_is_refused_without_waiting_for_a_writer() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let error = Source::open(&path).unwrap_err();
        assert!(error.to_string().contains("this is a pipe"), "{error}");
        assert!(without_waiting().open(&path).is_ok());
    }

    #[test]
    fn errors_show_names_and_reasons_on_one_line() {
        let error = Source::memory("a\u{1b}[2J\n.json", "{\"\u{1b}\": 1, \"\u{1b}\": 1}").json::<u8>(Limit::CONFIG);
        let text = error.unwrap_err().to_string();
        assert!(text.starts_with(r"a\u001b[2J\u000a.json: ") && !text.contains(char::is_control), "{text}");
    }
}
