//! The tree and what it holds, on disk and back.
//!
//! A snapshot is one file: a header, the nodes with parents before children, and a BLAKE3 checksum of all before it.
//! It is written beside its place and renamed into it, so that a crash leaves the old file or the new one. It is read
//! only if magic, version, fingerprint, sizes and checksum agree and the nodes are those of a tree; otherwise the caller
//! goes on with an empty cache.

mod input;
mod restore;
mod save;
#[cfg(test)]
mod tests;

use std::io;
use std::path::PathBuf;

use cacheplan_files::Shown;
use cacheplan_files::{ReplaceError, SourceError};
use thiserror::Error;

use super::Shape;
use super::host::{HostBlockId, HostSlotId};
use crate::book::ids::{BlockId, SlotId};

const MAGIC: [u8; 8] = *b"CPPREFIX";
const VERSION: u32 = 1;
const CHECKSUM: usize = blake3::OUT_LEN;

/// Where the bytes of a saved unit are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saved {
    /// A KV block on the device.
    Block(BlockId),
    /// A KV block on the host.
    HostBlock(HostBlockId),
    /// A window block.
    Window(BlockId),
    /// A window block on the host.
    HostWindow(HostBlockId),
    /// A state on the device.
    State(SlotId),
    /// A state on the host.
    HostState(HostSlotId),
}

/// Takes restored units in: hands out fresh ones and fills them.
pub trait Restore {
    /// A fresh KV block with these bytes, or `None` if the pool has no more.
    fn block(&mut self, bytes: &[u8]) -> Option<BlockId>;
    /// A fresh window block with these bytes, or `None` if the pool has no more.
    fn window(&mut self, bytes: &[u8]) -> Option<BlockId>;
    /// A fresh slot with these bytes, or `None` if the pool has no more.
    fn state(&mut self, bytes: &[u8]) -> Option<SlotId>;
}

/// A snapshot that cannot be written or must not be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The file cannot be read.
    #[error("snapshot {}: {source}", path.display(), source = Shown(.source))]
    Io {
        /// The file.
        path: PathBuf,
        /// What happened.
        source: io::Error,
    },
    /// The file cannot be written.
    #[error("snapshot {shown}", shown = Shown(.0))]
    Replace(#[source] ReplaceError),
    /// The file cannot be opened, or is no file.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The file is not a snapshot, or not a whole one.
    #[error("snapshot {}: {what}; the cache starts empty", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The file is a snapshot of something else.
    #[error("snapshot {}: {what} is {found}, this cache has {expected}; the cache starts empty", path.display(), found = Shown(.found), expected = Shown(.expected))]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What differs.
        what: &'static str,
        /// In the file.
        found: String,
        /// In this cache.
        expected: String,
    },
    /// Snapshots are restored into empty trees only.
    #[error("the tree has {nodes} nodes; a snapshot is restored into an empty one")]
    NotEmpty {
        /// How many.
        nodes: usize,
    },
}

impl Shape {
    fn bytes_of(&self, unit: Saved) -> usize {
        match unit {
            Saved::Block(_) | Saved::HostBlock(_) => self.block_bytes,
            Saved::Window(_) | Saved::HostWindow(_) => self.window_bytes,
            Saved::State(_) | Saved::HostState(_) => self.state_bytes,
        }
    }
}
