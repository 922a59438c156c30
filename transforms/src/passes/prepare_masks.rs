//! A mask beside causality is the last input of every attention that reads it, if its kernels take masks at all.

use super::{PassError, Walk};

pub(super) fn run(walk: &mut Walk<'_>) -> Result<(), PassError> {
    for &(id, descriptor) in walk.keepers {
        let op = walk.graph.op(id);
        if op.port("mask").is_none() {
            continue;
        }
        if !descriptor.takes_masks {
            let mut takers: Vec<&str> = walk.context.registry.taking_masks().collect();
            takers.sort_unstable();
            return Err(PassError::Mask {
                pass: walk.pass,
                node: op.name.to_string(),
                kind: op.kind.to_string(),
                takers: if takers.is_empty() { "none".to_owned() } else { takers.join(", ") },
            });
        }
        walk.graph.move_last(id, "mask");
        walk.matched(id);
    }
    Ok(())
}
