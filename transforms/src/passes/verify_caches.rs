//! Changes nothing, matches what it verified: every op that keeps state has its caches, every cache has an op and a node.

use std::collections::HashSet;

use super::{PassError, Walk};
use crate::graph::Op;
use crate::near::near;
use crate::ops;

pub(super) fn run(walk: &mut Walk<'_>) -> Result<(), PassError> {
    let mut read = HashSet::new();
    let mut nodes = HashSet::new();
    let mut verified = Vec::new();
    for id in walk.graph.op_ids() {
        let op = walk.graph.op(id);
        if op.kind == ops::CACHE {
            nodes.insert(op.name.part.as_ref());
            continue;
        }
        if op.get(ops::STATEFUL).is_some() && walk.context.registry.get(&op.kind).is_none() {
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
            check_port(walk, op, cache)?;
            read.insert(cache.as_str());
        }
    }
    let unpaired = |what: String| PassError::Unpaired { pass: walk.pass, what };
    for resource in walk.resources.iter() {
        let name = resource.name.as_str();
        if !read.contains(name) {
            return Err(unpaired(format!("no op reads the resource `{name}`")));
        }
        if !nodes.remove(name) {
            return Err(unpaired(format!("the resource `{name}` has no node")));
        }
    }
    match nodes.into_iter().min() {
        Some(orphan) => Err(unpaired(format!("the cache node `{orphan}` has no resource"))),
        None => {
            walk.report.matched = verified;
            Ok(())
        }
    }
}

fn check_port(walk: &Walk<'_>, op: &Op, cache: &str) -> Result<(), PassError> {
    let unpaired = |what: String| PassError::Unpaired { pass: walk.pass, what };
    if walk.resources.get(cache).is_none() {
        return Err(unpaired(format!("`{}` refers to `{cache}`, which is no resource", op.name)));
    }
    if op.port(cache).is_none() {
        return Err(unpaired(format!("`{}` has no edge from its cache `{cache}`", op.name)));
    }
    Ok(())
}
