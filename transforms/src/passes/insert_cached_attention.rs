//! Keys and values of attention, in pages.

use std::collections::HashSet;

use super::{PassError, Stage, Walk};

/// An op that reads the key tensor of an earlier one gets no cache of its own; `alias_shared_kv` attaches it.
pub(super) fn run(walk: &mut Walk<'_>) -> Result<(), PassError> {
    let mut cached_keys = HashSet::new();
    for id in walk.graph.op_ids() {
        let op = walk.graph.op(id);
        let is_attention =
            walk.context.registry.get(&op.kind).is_some_and(|found| found.stage == Stage::InsertCachedAttention);
        match op.port("key") {
            Some(key) if is_attention && !cached_keys.insert(key) => walk.skipped(id, "it reads keys cached elsewhere"),
            _ => walk.insert(Stage::InsertCachedAttention, id)?,
        }
    }
    Ok(())
}
