//! Every resource becomes a node that its readers take it from.

use std::collections::HashMap;

use super::{PassError, Walk};
use crate::graph::{Extent, Name, Op, OpId};
use crate::ops;

pub(super) fn run(walk: &mut Walk<'_>) -> Result<(), PassError> {
    let mut readers: HashMap<String, Vec<OpId>> = HashMap::new();
    for id in walk.graph.op_ids() {
        for cache in &walk.graph.op(id).caches {
            readers.entry(cache.clone()).or_default().push(id);
        }
    }
    for resource in walk.resources.iter() {
        let name = Name::new(None, resource.name.clone());
        let node = walk.graph.add_op(Op::new(name.clone(), ops::CACHE));
        let units = if resource.handler.is_paged() { Extent::BLOCKS } else { Extent::SLOTS };
        let dims = resource.handler.shape().iter().map(|dim| Extent::Known(dim.size));
        let shape = std::iter::once(units).chain(dims).collect();
        let tensor = walk.graph.add_output(node, name.clone(), shape, resource.handler.dtype());
        for &reader in readers.get(&resource.name).into_iter().flatten() {
            walk.graph.add_port(reader, name.part.clone(), tensor);
        }
        walk.report.matched.push(name);
    }
    Ok(())
}
