//! Keys and values of attention, in pages.

use std::collections::HashSet;

use super::{PassError, Stage, Walk};

/// An op that reads the key tensor of an earlier one gets no cache of its own; `alias_shared_kv` attaches it.
pub(super) fn run(walk: &mut Walk<'_>) -> Result<(), PassError> {
    let mut cached_keys = HashSet::new();
    for &(id, descriptor) in walk.keepers.iter().filter(|(_, found)| found.stage == Stage::Attention) {
        match walk.graph.op(id).port("key") {
            Some(key) if !cached_keys.insert(key) => walk.skipped(id, "it reads keys cached elsewhere"),
            _ => walk.insert(id, descriptor)?,
        }
    }
    Ok(())
}
