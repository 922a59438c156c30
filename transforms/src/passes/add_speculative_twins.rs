//! While candidate tokens are verified, a state is needed at each candidate's position.

use super::{PassError, Skipped, Walk};
use crate::resources::Resource;

pub(super) fn run(walk: &mut Walk<'_>) -> Result<(), PassError> {
    if !walk.context.speculation {
        walk.report.skipped.push(Skipped { node: None, reason: "speculation is off".into() });
        return Ok(());
    }
    for id in walk.graph.op_ids() {
        let twins: Vec<Resource> =
            walk.graph.op(id).caches.iter().filter_map(|name| twin(walk.resources.get(name)?)).collect();
        if twins.is_empty() {
            continue;
        }
        for twin in twins {
            walk.register(id, twin)?;
        }
        walk.matched(id);
    }
    Ok(())
}

fn twin(base: &Resource) -> Option<Resource> {
    let handler = base.handler.intermediate()?;
    let provenance = vec![format!("speculative twin of {}", base.name)];
    Some(Resource { name: format!("intermediate_{}", base.name), handler, provenance, ..base.clone() })
}
