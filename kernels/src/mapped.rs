//! Bytes of weights: of a file that is mapped into memory, or held. The one place that maps files.

use memmap2::{Mmap, MmapOptions};
use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Shared bytes, of which clones and slices cost nothing.
#[derive(Clone)]
pub struct Bytes {
    kept: Arc<Kept>,
    range: Range<usize>,
}

enum Kept {
    Mapped(Mmap),
    Held(Vec<u8>),
}

impl Bytes {
    /// The bytes of `file`, read by the system when they are first looked at.
    ///
    /// Whoever changes the file meanwhile changes the bytes; whoever makes it shorter ends this process with `SIGBUS` when
    /// it looks at what is gone. `SECURITY.md` says so to users.
    ///
    /// # Errors
    /// A file that the system cannot map.
    pub fn map(file: &File) -> io::Result<Self> {
        // SAFETY: bytes are only ever read as numbers, of which any bits will do, and nothing relies on reading the same
        // ones twice.
        let map = unsafe { MmapOptions::new().map(file) }?;
        let range = 0..map.len();
        Ok(Self { kept: Arc::new(Kept::Mapped(map)), range })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Some of them; `None` beyond the end.
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        let (start, end) = (self.range.start.checked_add(range.start)?, self.range.start.checked_add(range.end)?);
        let inside = start <= end && end <= self.range.end;
        inside.then(|| Self { kept: self.kept.clone(), range: start..end })
    }

    /// All of them.
    pub fn as_slice(&self) -> &[u8] {
        let whole: &[u8] = match &*self.kept {
            Kept::Mapped(map) => map,
            Kept::Held(bytes) => bytes,
        };
        &whole[self.range.clone()]
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self { range: 0..bytes.len(), kept: Arc::new(Kept::Held(bytes)) }
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kept = match &*self.kept {
            Kept::Mapped(_) => "mapped",
            Kept::Held(_) => "held",
        };
        write!(f, "{} bytes, {kept}", self.len())
    }
}
