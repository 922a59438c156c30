//! What engines say of their caches, whatever it was written in.

/// What an engine published at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// The data-parallel rank that it came from.
    pub rank: u32,
    /// When, in microseconds since 1970 by the publisher's clock; zero where nobody says.
    pub time: u64,
    /// In the order in which they happened.
    pub events: Vec<Event>,
}

/// What happened to the blocks of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Blocks can be reused from now on.
    Stored(Stored),
    /// Blocks are gone.
    Removed {
        /// Their hashes.
        hashes: Vec<u64>,
        /// Of which group; of none where the engine names no groups.
        group: Option<u32>,
        /// What tells the group where it has no number: TensorRT-LLM's windows.
        window: Option<u32>,
        /// Whether they lay on the device.
        on_device: bool,
    },
    /// All blocks are gone.
    Cleared,
}

impl Event {
    /// The tokens of a block that it speaks of.
    pub(crate) fn block(&self) -> Option<usize> {
        match self {
            Self::Stored(stored) => Some(stored.block as usize),
            Self::Removed { .. } | Self::Cleared => None,
        }
    }
}

/// Blocks that can be reused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// Their hashes, each of all tokens up to the block's end.
    pub hashes: Vec<u64>,
    /// The hash of what comes before the tokens.
    pub parent: Option<u64>,
    /// The tokens of a stretch that has the blocks; those of other blocks may be among them.
    pub tokens: Vec<u32>,
    /// Tokens of each block.
    pub block: u32,
    /// The group; none where the engine names no groups.
    pub group: Option<u32>,
    /// What the group keeps, in the engine's words.
    pub kind: Option<Kind>,
    /// The tokens of its window.
    pub window: Option<u32>,
    /// Whether something besides tokens decides who may reuse them: an adapter, a salt, an image.
    pub is_keyed: bool,
    /// Whether they lie on the device of the worker.
    pub on_device: bool,
}

/// What the blocks of a group hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Keys and values, or latents, of all tokens.
    Full,
    /// Those of the last tokens.
    Window,
    /// States after the last token of a block.
    State,
    /// What this version knows no rule for.
    Unknown,
}
