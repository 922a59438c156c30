//! While candidate tokens are verified, a state is needed at each candidate's position.

use std::collections::HashMap;

use super::{PassError, Skipped, Walk};
use crate::graph::OpId;
use crate::resources::Resource;

pub(super) fn run(walk: &mut Walk<'_>) -> Result<(), PassError> {
    if !walk.context.speculation {
        walk.report.skipped.push(Skipped { node: None, reason: "speculation is off".into() });
        return Ok(());
    }
    let caches = |&(id, _): &(OpId, _)| walk.graph.op(id).caches.iter().map(move |cache| (cache.as_str(), id));
    let owner_of: HashMap<&str, OpId> = walk.keepers.iter().flat_map(caches).collect();
    // In the order of the states themselves, so that the lists of twins and of states run in parallel.
    let twins: Vec<(OpId, Resource)> =
        walk.resources.iter().filter_map(|base| Some((*owner_of.get(base.name.as_str())?, twin(base)?))).collect();
    for (id, twin) in twins {
        walk.register(id, twin)?;
        walk.matched(id);
    }
    Ok(())
}

fn twin(base: &Resource) -> Option<Resource> {
    let handler = base.handler.intermediate()?;
    let provenance = vec![format!("speculative twin of {}", base.name)];
    Some(Resource { name: format!("intermediate_{}", base.name), handler, provenance, ..base.clone() })
}
