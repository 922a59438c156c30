//! Hashes of what a plan was made from.

use cacheplan_handlers::{Growth, ResourceHandler};
use cacheplan_transforms::Resources;
use serde::Serialize;

use crate::plan::Fingerprint;
use crate::solver::inputs::Inputs;

impl Inputs<'_> {
    /// What a plan of this request bears, and no other: a plan with another fingerprint was made of something else.
    pub(crate) fn fingerprint(&self) -> Fingerprint {
        let mut model = Vec::with_capacity(64 * self.resources.len());
        field(&mut model, self.model.fingerprint.as_bytes());
        write_resources(&mut model, self.resources);
        if let Some(draft) = self.draft {
            field(&mut model, draft.model.fingerprint.as_bytes());
            write_resources(&mut model, draft.resources);
        }
        Fingerprint {
            model: hex(&model),
            budget: hash(self.budget),
            device: self.with_assumptions(match self.measured {
                // Plans without measured lines keep the fingerprint that they had before there were any.
                None => hash(&(self.device, self.measurement, self.stage, self.agreement)),
                Some(measured) => hash(&(self.device, self.measurement, measured, self.stage, self.agreement)),
            }),
        }
    }

    /// The same hash where no engine's logs are assumed from, as before there were any.
    fn with_assumptions(&self, device: String) -> String {
        match self.engine.filter(|_| self.device.is_some()) {
            None => device,
            Some(engine) => hash(&(device, engine.name)),
        }
    }
}

/// BLAKE3 over the canonical JSON: struct fields in declaration order, no maps.
pub(crate) fn hash(value: &impl Serialize) -> String {
    // Writing plain data to memory cannot fail; were it to, the hash of nothing matches no plan.
    hex(&serde_json::to_vec(value).unwrap_or_default())
}

fn hex(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex()[..32].to_owned()
}

/// What a plan follows from, in a fixed byte order; where a resource was found and why is left out.
fn write_resources(into: &mut Vec<u8>, resources: &Resources) {
    number(into, resources.len() as u64);
    for resource in resources {
        field(into, resource.name.as_bytes());
        number(into, resource.layer.map_or(0, |layer| u64::from(layer) + 1));
        write_handler(into, &resource.handler);
        number(into, resource.shared_by.len() as u64);
        resource.shared_by.iter().for_each(|layer| number(into, u64::from(*layer)));
    }
}

fn write_handler(into: &mut Vec<u8>, handler: &ResourceHandler) {
    field(into, handler.kind().name().as_bytes());
    let (tag, stride, window) = match handler.growth() {
        Growth::Paged { stride, window } => (0, stride, window.map_or(0, |window| u64::from(window) + 1)),
        Growth::PerSlotToken => (1, 0, 0),
        Growth::PerSequence => (2, 0, 0),
        Growth::PerDraftPosition => (3, 0, 0),
        Growth::Fixed => (4, 0, 0),
    };
    [tag, stride.into(), window].into_iter().for_each(|part| number(into, part));
    field(into, handler.dtype().name().as_bytes());
    field(into, handler.layout().map_or("", |layout| layout.name()).as_bytes());
    number(into, handler.shape().len() as u64);
    for dim in handler.shape() {
        field(into, dim.name.as_bytes());
        number(into, dim.size);
    }
    if let Some(recurrence) = handler.recurrence() {
        field(into, format!("{recurrence:?}").as_bytes());
    }
}

/// Fields carry their length, so that no two sequences of fields have the same bytes.
fn field(into: &mut Vec<u8>, bytes: &[u8]) {
    number(into, bytes.len() as u64);
    into.extend_from_slice(bytes);
}

fn number(into: &mut Vec<u8>, number: u64) {
    into.extend_from_slice(&number.to_le_bytes());
}
