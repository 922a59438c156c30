//! The beginning of a file whose rest stays where it is.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use cacheplan_files::{ReadAt, Source};

use crate::HubError;

/// Bytes from a file's beginning on, as far as anybody asked for them.
#[derive(Clone)]
pub(crate) struct Head {
    bytes: Arc<Mutex<Vec<u8>>>,
    /// Bytes of the whole file.
    len: u64,
    /// Gives the bytes from one place to before another.
    more: Arc<More>,
}

type More = dyn Fn(u64, u64) -> Result<Vec<u8>, HubError> + Send + Sync;

/// The most that is asked for beyond what is needed.
#[cfg(feature = "fetch")]
const AHEAD: u64 = 4 << 20;

impl Head {
    #[cfg(feature = "fetch")]
    pub(crate) fn new(
        bytes: Vec<u8>,
        len: u64,
        more: impl Fn(u64, u64) -> Result<Vec<u8>, HubError> + Send + Sync + 'static,
    ) -> Self {
        Self { bytes: Arc::new(Mutex::new(bytes)), len, more: Arc::new(more) }
    }

    pub(crate) fn source(&self, name: String) -> Source {
        Source::new(name, self.len, self.clone())
    }

    /// As it is kept: the length of the whole file in 8 bytes, then its beginning.
    #[cfg(feature = "fetch")]
    pub(crate) fn kept(&self) -> Vec<u8> {
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        [&self.len.to_le_bytes(), bytes.as_slice()].concat()
    }

    /// What was kept; `None` for what is no such file.
    pub(crate) fn of_kept(mut kept: Vec<u8>) -> Option<Self> {
        let len = u64::from_le_bytes(*kept.first_chunk()?);
        kept.drain(..8);
        let nothing = |from, to| {
            let why =
                format!("bytes {from} to {to} of the file were not kept; remove what was, and it is fetched anew");
            Err(HubError::Malformed { url: "a kept header".to_owned(), why })
        };
        let is_head = kept.len() as u64 <= len;
        is_head.then(|| Self { bytes: Arc::new(Mutex::new(kept)), len, more: Arc::new(nothing) })
    }

    /// Has all bytes before `end`.
    fn reach(&self, bytes: &mut Vec<u8>, end: u64) -> Result<(), HubError> {
        let had = bytes.len() as u64;
        if had < end {
            bytes.extend((self.more)(had, self.ahead(had, end))?);
        }
        Ok(())
    }

    #[cfg(feature = "fetch")]
    fn ahead(&self, had: u64, end: u64) -> u64 {
        end.max(had + had.min(AHEAD)).min(self.len)
    }

    #[cfg(not(feature = "fetch"))]
    fn ahead(&self, _: u64, end: u64) -> u64 {
        end
    }
}

impl ReadAt for Head {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let end = offset.saturating_add(buffer.len() as u64).min(self.len);
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        self.reach(&mut bytes, end).map_err(io::Error::other)?;
        let here = bytes.get(offset as usize..end as usize).unwrap_or_default();
        buffer[..here.len()].copy_from_slice(here);
        Ok(here.len())
    }
}

impl fmt::Debug for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Head").field("len", &self.len).finish_non_exhaustive()
    }
}
