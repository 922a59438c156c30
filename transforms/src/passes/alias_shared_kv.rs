//! Ops that read what an earlier layer caches share its caches: keys and values, latents, index keys, entries.

use std::collections::HashMap;

use super::{PassError, Walk};
use crate::graph::{Attribute, Op, OpId, TensorId};

pub(super) fn run(walk: &mut Walk<'_>) -> Result<(), PassError> {
    let mut owners: HashMap<TensorId, OpId> = HashMap::new();
    for &(id, _) in walk.keepers {
        let op = walk.graph.op(id);
        let Some(key) = walk.kept(id) else { continue };
        match owners.get(&key) {
            None => {
                if let Some(layer) = op.number(Attribute::SHARES_LAYER) {
                    return Err(PassError::Alias {
                        pass: walk.pass,
                        node: op.name.to_string(),
                        owner: format!("layers.{layer}"),
                        reason: "that layer comes later or caches nothing of the kind".to_owned(),
                    });
                }
                owners.insert(key, id);
            }
            Some(&owner) => share(walk, id, owner)?,
        }
    }
    Ok(())
}

fn share(walk: &mut Walk<'_>, id: OpId, owner: OpId) -> Result<(), PassError> {
    let (reader, owning) = (walk.graph.op(id), walk.graph.op(owner));
    let refuse = |reason: String| PassError::Alias {
        pass: walk.pass,
        node: reader.name.to_string(),
        owner: owning.name.to_string(),
        reason,
    };
    let ports = Op::kept_ports(&reader.kind);
    if let Some(port) = ports.iter().find(|port| reader.port(port) != owning.port(port)) {
        return Err(refuse(format!("it reads the same `{}` but another `{port}`", ports[0])));
    }
    let (mine, theirs) = (reader.number(Attribute::WINDOW), owning.number(Attribute::WINDOW));
    // The owner frees what falls out of its own window, so the reader must not look further back.
    if theirs.is_some_and(|theirs| mine.is_none_or(|mine| mine > theirs)) {
        let mine = mine.map_or_else(|| "every token".to_owned(), |mine| format!("{mine} tokens"));
        return Err(refuse(format!("it needs {mine}, the owner keeps {} tokens", theirs.unwrap_or(0))));
    }
    let caches = owning.caches.clone();
    let Some(layer) = reader.name.layer else {
        return Err(refuse("it belongs to no layer".into()));
    };
    for name in &caches {
        walk.resources.share(name, layer);
    }
    walk.graph.op_mut(id).caches = caches;
    walk.matched(id);
    Ok(())
}
