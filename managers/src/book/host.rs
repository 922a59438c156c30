//! The host tier of a plan: what of it is in use, and by whom.

use std::sync::{Arc, Weak};

use super::error::{BookError, Lack, Scarce};
use crate::book::error::Result;

/// What a sequence holds in one paged pool: logical blocks `released..released + blocks`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) released: u32,
    pub(crate) blocks: u32,
}

/// The bytes of the host tier that are in use.
#[derive(Debug, Default)]
pub(crate) struct HostUse {
    /// Of parked sequences.
    pub(crate) parked: u64,
    /// Set aside for a prefix cache, while it is there.
    pub(super) set_aside: Weak<u64>,
    pub(crate) high_water: u64,
    pub(crate) refused: u64,
}

/// Bytes of the host tier that are a prefix cache's. Dropping it gives them back.
#[derive(Debug)]
#[must_use = "the bytes are given back when it is dropped"]
pub struct SetAside {
    pub(super) _bytes: Arc<u64>,
}

impl HostUse {
    pub(crate) fn total(&self) -> u64 {
        self.parked + self.set_aside()
    }

    pub(super) fn set_aside(&self) -> u64 {
        self.set_aside.upgrade().map_or(0, |bytes| *bytes)
    }

    /// Checks that `needed` more bytes fit a tier of `capacity` bytes.
    pub(super) fn check(&self, capacity: Option<u64>, needed: u64) -> Result<()> {
        let capacity = capacity.ok_or(BookError::NoHostTier)?;
        let free = capacity.saturating_sub(self.total());
        if needed <= free { Ok(()) } else { Err(Lack { of: Scarce::HostBytes, needed, free, capacity }.into()) }
    }
}
