//! What the insertion passes have in common: ask the descriptor of each op of their stage, register its caches.

use std::collections::HashSet;

use super::{PassError, Stage, Walk};
use crate::graph::{Attribute, Op, OpId, TensorId};
use crate::registry::{Descriptor, OpView};
use crate::resources::Resource;

impl Walk<'_> {
    /// Gives every op of `stage` the caches that its descriptor asks for; one that reads what an earlier one caches gets
    /// none of its own, and `alias_shared_kv` attaches it.
    pub(super) fn insert_all(&mut self, stage: Stage) -> Result<(), PassError> {
        let mut cached = HashSet::new();
        for &(id, descriptor) in self.keepers.iter().filter(|(_, descriptor)| descriptor.stage == stage) {
            match self.kept(id) {
                Some(tensor) if !cached.insert(tensor) => self.skipped(id, "it reads what is cached elsewhere"),
                _ => self.insert(id, descriptor)?,
            }
        }
        Ok(())
    }

    /// The tensor that tells whose caches an op reads.
    pub(super) fn kept(&self, id: OpId) -> Option<TensorId> {
        let op = self.graph.op(id);
        op.port(Op::kept_ports(&op.kind).first()?)
    }

    /// Gives one op the caches that its descriptor asks for.
    fn insert(&mut self, id: OpId, descriptor: &Descriptor) -> Result<(), PassError> {
        let op = self.graph.op(id);
        let mut view = OpView::new(self.graph, op, self.context.dtypes);
        let caches = (descriptor.derive)(&mut view).map_err(|source| PassError::Describe {
            pass: self.pass,
            node: op.name.to_string(),
            kind: op.kind.to_string(),
            source: Box::new(source),
        })?;
        let mut provenance = view.provenance;
        if caches.is_empty() {
            self.skipped(id, "with its dimensions it keeps nothing between steps");
            return Ok(());
        }
        let last = caches.len() - 1;
        for (position, cache) in caches.into_iter().enumerate() {
            // Several caches of one op have one provenance; the last takes it, the others copy it.
            let provenance = if position == last { std::mem::take(&mut provenance) } else { provenance.clone() };
            let op = self.graph.op(id);
            let layer = op.name.layer;
            let suffix = match op.number(Attribute::RUN) {
                None => cache.suffix,
                Some(run) => format!("{}_run{run}", cache.suffix.split('.').next().unwrap_or_default()).into(),
            };
            let handler = match cache.handler.layout() {
                Some(_) if cache.handler.is_paged() => cache.handler.with_layout(self.context.layout),
                // That of a static cache is the graph's own.
                _ => cache.handler,
            };
            self.register(
                id,
                Resource {
                    name: layer.map_or_else(|| suffix.to_string(), |layer| format!("{suffix}_{layer}")),
                    layer,
                    handler,
                    node: op.name.to_string(),
                    provenance,
                    shared_by: Vec::new(),
                },
            )?;
        }
        self.matched(id);
        Ok(())
    }

    /// Registers a resource and lets the op refer to it.
    pub(super) fn register(&mut self, id: OpId, resource: Resource) -> Result<(), PassError> {
        let name = resource.name.clone();
        self.resources.push(resource).map_err(|source| PassError::Resource {
            pass: self.pass,
            node: self.graph.op(id).name.to_string(),
            source,
        })?;
        self.graph.op_mut(id).caches.push(name);
        Ok(())
    }
}
