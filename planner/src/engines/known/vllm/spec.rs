//! What layers need pages for, as vLLM's specs of caches tell them apart.

/// What a layer needs pages for; layers that are alike in it can share a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Spec {
    Full(Entry),
    Window {
        window: u32,
        /// Tokens in a block, where they are its own.
        block: Option<u64>,
        entry: Entry,
    },
    State {
        bytes: u64,
        exported: u64,
    },
    /// A block for each sequence.
    Ring,
}

/// What attention keeps of one token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry {
    pub(super) bytes: u64,
    /// Layers of the same bytes and another shape have a group of their own.
    pub(super) heads: u64,
    pub(super) head_dim: u64,
}

impl Spec {
    /// Layers of one kind are one group, whatever the bytes of their pages; states only where those are equal.
    pub(super) const fn kind(self) -> (u8, u64) {
        match self {
            Self::Full(_) => (0, 0),
            Self::Window { window, .. } => (1, window as u64),
            Self::State { bytes, .. } => (2, bytes),
            Self::Ring => (3, 0),
        }
    }
}
