//! What the tree is keyed by: a namespace and a run of tokens.

use serde::{Deserialize, Serialize};

/// A token id of the model's vocabulary.
pub type Token = u32;

/// Requests share prefixes only within one namespace.
///
/// It is compared as a whole, never by a hash alone.
#[derive(Clone, Debug, Default, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[expect(clippy::derived_hash_with_manual_eq, reason = "it is the derived equality, made faster")]
pub struct Namespace {
    /// Separates callers who must not observe each other's hits. Empty for the shared cache.
    pub salt: String,
    /// The adapter (LoRA) under which the states were computed. Empty for the base model.
    pub adapter: String,
}

impl PartialEq for Namespace {
    fn eq(&self, other: &Self) -> bool {
        // Most are empty. An empty string points nowhere, and a `memcmp` that is given such a pointer takes a masked load
        // from an unmapped page: 150 ns on processors with AVX-512, more than the rest of a lookup.
        let same = |a: &str, b: &str| a.len() == b.len() && (a.is_empty() || a == b);
        same(&self.salt, &other.salt) && same(&self.adapter, &other.adapter)
    }
}

/// A run of tokens within a namespace.
#[derive(Clone, Copy, Debug)]
pub struct Key<'a> {
    /// Where the tokens are looked up.
    pub namespace: &'a Namespace,
    /// The tokens from the start of the sequence.
    pub tokens: &'a [Token],
}

impl<'a> Key<'a> {
    /// The first `len` tokens of this key, or all of them if there are fewer.
    #[must_use]
    pub fn head(self, len: usize) -> Self {
        Self { tokens: &self.tokens[..len.min(self.tokens.len())], ..self }
    }

    /// The longest head whose length is a multiple of `page`.
    #[must_use]
    pub fn aligned(self, page: usize) -> Self {
        self.head(floor(self.tokens.len(), page))
    }
}

/// The largest multiple of `unit` that is not above `n`.
pub(super) fn floor(n: usize, unit: usize) -> usize {
    n - n % unit
}

/// How many leading tokens two runs share.
pub(super) fn common_prefix(a: &[Token], b: &[Token]) -> usize {
    const STEP: usize = 32;
    let len = a.len().min(b.len());
    let (a, b) = (&a[..len], &b[..len]);
    // Most often all of it, and memory compares several times faster at once than token by token.
    if a == b {
        return len;
    }
    let whole = a.chunks_exact(STEP).zip(b.chunks_exact(STEP)).take_while(|(x, y)| x == y).count() * STEP;
    whole + a[whole..].iter().zip(&b[whole..]).take_while(|(x, y)| x == y).count()
}
