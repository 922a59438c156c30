//! A window that no sequence outgrows is full attention.

use cacheplan_handlers::Growth;

use super::{PassError, Walk};
use crate::graph::Attribute;

pub(super) fn run(walk: &mut Walk<'_>) -> Result<(), PassError> {
    for &(id, _) in walk.keepers {
        let Some(window) = walk.graph.op(id).number(Attribute::WINDOW) else { continue };
        match walk.context.max_seq_len {
            Some(longest) if !Growth::window_binds(window, longest) => {
                walk.graph.op_mut(id).attributes.retain(|(key, _)| key != Attribute::WINDOW);
                walk.matched(id);
            }
            Some(longest) => walk.skipped(id, format!("window {window} is shorter than max_seq_len {longest}")),
            None => walk.skipped(id, "max_seq_len is not known"),
        }
    }
    Ok(())
}
