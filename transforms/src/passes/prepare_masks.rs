//! A mask beside causality is prepared once a step, and is the last input of every attention that reads it.

use super::{PassError, Walk};
use crate::graph::Origin;
use crate::ops;

pub(super) fn run(walk: &mut Walk<'_>) -> Result<(), PassError> {
    for &(id, descriptor) in walk.keepers {
        let op = walk.graph.op(id);
        let Some(mask) = op.port("mask") else { continue };
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
        if let Origin::Op(producer) = walk.graph.tensor(mask).origin {
            walk.graph.op_mut(producer).kind = ops::PREPARED_MASK.into();
        }
        walk.graph.move_last(id, "mask");
        walk.matched(id);
    }
    Ok(())
}
