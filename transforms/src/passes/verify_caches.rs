//! Changes nothing, matches what it verified: every op that keeps state has its caches, every cache has an op and a node.

use super::{PassError, Walk};
use crate::graph::{Attribute, Op};
use crate::near::near;

pub(super) fn run(walk: &mut Walk<'_>) -> Result<(), PassError> {
    // For each resource, whether an op reads it and whether it has a node.
    let mut paired = vec![(false, false); walk.resources.len()];
    let mut verified = Vec::new();
    for id in walk.graph.op_ids() {
        let op = walk.graph.op(id);
        if op.kind == Op::CACHE {
            match walk.resources.position(&op.name.part) {
                Some(position) => paired[position].1 = true,
                None => return Err(unpaired(walk, format!("the cache node `{}` has no resource", op.name))),
            }
            continue;
        }
        if op.get(Attribute::STATEFUL).is_some() && walk.context.registry.get(&op.kind).is_none() {
            let kinds = walk.context.registry.kinds();
            let near = near(&op.kind, kinds);
            return Err(PassError::NoDescriptor {
                pass: walk.pass,
                node: op.name.to_string(),
                kind: op.kind.to_string(),
                near,
            });
        }
        if !op.caches.is_empty() {
            verified.push(op.name.clone());
        }
        for cache in &op.caches {
            let Some(position) = walk.resources.position(cache) else {
                return Err(unpaired(walk, format!("`{}` refers to `{cache}`, which is no resource", op.name)));
            };
            if op.port(cache).is_none() {
                return Err(unpaired(walk, format!("`{}` has no edge from its cache `{cache}`", op.name)));
            }
            paired[position].0 = true;
        }
    }
    for (resource, (read, node)) in walk.resources.iter().zip(paired) {
        if !read {
            return Err(unpaired(walk, format!("no op reads the resource `{}`", resource.name)));
        }
        if !node {
            return Err(unpaired(walk, format!("the resource `{}` has no node", resource.name)));
        }
    }
    walk.report.matched = verified;
    Ok(())
}

fn unpaired(walk: &Walk<'_>, what: String) -> PassError {
    PassError::Unpaired { pass: walk.pass, what }
}
