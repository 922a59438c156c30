//! Every resource becomes a node that its readers take it from.

use super::{PassError, Walk};
use crate::graph::{Extent, Name, Op, OpId};

pub(super) fn run(walk: &mut Walk<'_>) -> Result<(), PassError> {
    let mut readers: Vec<Vec<OpId>> = vec![Vec::new(); walk.resources.len()];
    for &(id, _) in walk.keepers {
        for position in walk.graph.op(id).caches.iter().filter_map(|cache| walk.resources.position(cache)) {
            readers[position].push(id);
        }
    }
    walk.graph.reserve(walk.resources.len());
    for (resource, readers) in walk.resources.iter().zip(readers) {
        let name = Name::new(None, resource.name.clone());
        let node = walk.graph.add_op(Op::new(name.clone(), Op::CACHE));
        let units = if resource.handler.is_paged() { Extent::BLOCKS } else { Extent::SLOTS };
        let dims = resource.handler.shape().iter().map(|dim| Extent::Known(dim.size));
        let shape = std::iter::once(units).chain(dims).collect();
        let tensor = walk.graph.add_output(node, name.clone(), shape, resource.handler.dtype());
        for reader in readers {
            walk.graph.add_port(reader, name.part.clone(), tensor);
        }
        walk.report.matched.push(name);
    }
    Ok(())
}
