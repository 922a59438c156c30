//! Pages can be fewer or more after a measurement; states are as many as there are slots.

use super::{PassError, Walk};
use crate::graph::Attribute;
use crate::ops;

pub(super) fn run(walk: &mut Walk<'_>) -> Result<(), PassError> {
    for id in walk.graph.op_ids() {
        let op = walk.graph.op(id);
        if op.kind != ops::CACHE {
            continue;
        }
        let paged = walk.resources.get(&op.name.part).is_some_and(|resource| resource.handler.is_paged());
        if paged {
            walk.graph.op_mut(id).attributes.push((ops::RESIZABLE.into(), Attribute::Flag));
            walk.matched(id);
        } else {
            walk.skipped(id, "its extent is the number of slots");
        }
    }
    Ok(())
}
