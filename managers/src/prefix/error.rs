//! What can go wrong in the prefix cache.

use cacheplan_files::Shown;
use thiserror::Error;

/// A refused operation. Nothing has changed when one is returned.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PrefixError {
    /// A field of the configuration cannot be used.
    #[error("prefix cache: {what} cannot be {found}")]
    Config {
        /// The field.
        what: &'static str,
        /// What was given.
        found: usize,
    },
    /// Pools of a plan that cannot share an index.
    #[error("prefix cache: pool `{pool}` has {found} {what}, others {expected}; a page has one size in all pools", pool = Shown(.pool))]
    Plan {
        /// The pool.
        pool: String,
        /// What differs.
        what: &'static str,
        /// In this pool.
        found: u64,
        /// In the others.
        expected: u64,
    },
    /// A length is not a multiple of the page.
    #[error("{what} of {len} tokens is not a multiple of the page of {page} tokens; align it down and store no state")]
    Unaligned {
        /// What has the length.
        what: &'static str,
        /// The length in tokens.
        len: usize,
        /// Tokens per page.
        page: usize,
    },
    /// The number of blocks does not fit the span.
    #[error("{what}: {expected} blocks cover the span, {found} were given")]
    BlockCount {
        /// Which component.
        what: &'static str,
        /// One per page of the span.
        expected: usize,
        /// What was given.
        found: usize,
    },
    /// A component was given that the tree was not configured for.
    #[error("the tree was configured without {component}")]
    NoComponent {
        /// The component.
        component: &'static str,
    },
    /// A key is longer than positions can count.
    #[error("a key of {len} tokens is longer than 2^32 - 1")]
    TooLong {
        /// Its length in tokens.
        len: usize,
    },
    /// A tenant that the configuration does not name.
    #[error("tenant {tenant} is not one of {tenants}, which are numbered from 0; name more of them")]
    UnknownTenant {
        /// What was given.
        tenant: u16,
        /// How many the configuration has.
        tenants: usize,
    },
    /// The tree has changed since the match, or is another one: what it found is not here. Match again.
    #[error("the match is stale: its {what} is not here any more; match again")]
    StaleMatch {
        /// What is gone.
        what: &'static str,
    },
    /// A part of the hit lies on the host.
    #[error("only {resident} of {hit} hit tokens are on the device; load the rest first, or match what is resident")]
    NotLoaded {
        /// Tokens on the device.
        resident: usize,
        /// Tokens of the hit.
        hit: usize,
    },
    /// A live slot cannot become a checkpoint of another format.
    #[error("checkpoints are int8 and live slots are not: quantise into a checkpoint slot instead of moving")]
    NotMovable,
    /// A receipt that this tree did not issue, or that was already given back.
    #[error("the receipt does not belong to a live lock of this tree")]
    ForeignReceipt,
}
