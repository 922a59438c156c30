//! Numbers that a budget and the plan made from it share.

/// The largest count of tokens or sequences that a budget may state.
pub(crate) const MAX_COUNT: u64 = 1 << 32;

/// Tokens in a block of a paged pool where nobody states them.
pub(crate) const DEFAULT_TOKENS_PER_BLOCK: u64 = 16;
