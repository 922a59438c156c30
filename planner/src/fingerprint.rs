//! Hashes of what a plan was made from.

use serde::Serialize;

use crate::{Fingerprint, PlanRequest};

impl Fingerprint {
    /// The fingerprint of a request.
    pub fn of(request: &PlanRequest<'_>) -> Self {
        Self {
            model: hash(&(&request.model.fingerprint, request.resources, request.draft)),
            budget: hash(request.budget),
            device: hash(&(request.device, request.measurement, request.stage, request.agreement)),
        }
    }
}

/// BLAKE3 over the canonical JSON: struct fields in declaration order, no maps.
pub(crate) fn hash(value: &impl Serialize) -> String {
    // Writing plain data to memory cannot fail; were it to, the hash of nothing matches no plan.
    let bytes = serde_json::to_vec(value).unwrap_or_default();
    blake3::hash(&bytes).to_hex()[..32].to_owned()
}
