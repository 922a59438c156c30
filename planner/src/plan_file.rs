//! A plan read back from JSON, and whether it still holds.

use cacheplan_transforms::{Resource, Resources};
use serde_json::Value;
use thiserror::Error;

use crate::{Budget, CachePlan, Fingerprint, PlanRequest, Rule, SCHEMA_VERSION, Violation, check};

/// A file that holds no plan this version can read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PlanFileError {
    /// The text is no JSON.
    #[error("{origin} is no JSON: {message}")]
    NotJson {
        /// The file.
        origin: String,
        /// What is wrong, with its line and column.
        message: String,
    },
    /// The JSON is not a plan.
    #[error(
        "{origin} is no plan: it has no whole number `schema_version`; `cacheplan plan MODEL --out FILE` writes one"
    )]
    NoSchemaVersion {
        /// The file.
        origin: String,
    },
    /// A plan of another schema.
    #[error("{origin} has schema_version {found}, this version reads {SCHEMA_VERSION}; plan the model anew")]
    OtherSchema {
        /// The file.
        origin: String,
        /// Its version.
        found: u64,
    },
    /// A key is absent or has a value of the wrong kind.
    #[error("{origin} is no plan of schema_version {SCHEMA_VERSION}: {message}")]
    Malformed {
        /// The file.
        origin: String,
        /// What is wrong.
        message: String,
    },
}

impl CachePlan {
    /// Reads a plan from JSON; `origin` names the text in errors.
    ///
    /// # Errors
    /// Text that is no JSON, another schema, or keys that are absent or of the wrong kind.
    pub fn from_json(text: &str, origin: &str) -> Result<Self, PlanFileError> {
        let origin = || origin.to_owned();
        let value: Value = serde_json::from_str(text)
            .map_err(|error| PlanFileError::NotJson { origin: origin(), message: error.to_string() })?;
        match value.get("schema_version").and_then(Value::as_u64) {
            None => Err(PlanFileError::NoSchemaVersion { origin: origin() }),
            Some(found) if found != u64::from(SCHEMA_VERSION) => {
                Err(PlanFileError::OtherSchema { origin: origin(), found })
            }
            // From the text again, since only its errors have a line.
            Some(_) => serde_json::from_str(text)
                .map_err(|error| PlanFileError::Malformed { origin: origin(), message: error.to_string() }),
        }
    }
}

impl Fingerprint {
    /// Which of `model`, `budget` and `device` are not what the other fingerprint was made from.
    pub fn differences(&self, other: &Self) -> Vec<&'static str> {
        let parts = [
            ("model", self.model == other.model),
            ("budget", self.budget == other.budget),
            ("device", self.device == other.device),
        ];
        parts.into_iter().filter(|(_, same)| !same).map(|(part, _)| part).collect()
    }
}

/// Proves what can be proved of a plan without its model and budget: that every resource is a member of one pool that
/// may hold it, and that offsets, units and sums are what the resources' shapes make of them.
///
/// Limits, capacity, ledger and fingerprint follow from the request; [`check`](fn@check) proves those too.
///
/// # Errors
/// Everything that is not as it must be.
pub fn check_alone(plan: &CachePlan) -> Result<(), Vec<Violation>> {
    let mut resources = Resources::default();
    for planned in &plan.resources {
        let resource = Resource {
            name: planned.name.clone(),
            layer: planned.layer,
            handler: planned.handler.clone(),
            node: String::new(),
            provenance: Vec::new(),
            shared_by: planned.shared_by.clone(),
        };
        resources.push(resource).map_err(|error| {
            vec![Violation {
                rule: Rule::Coverage,
                place: "resources".into(),
                found: error.to_string(),
                expected: "each once".into(),
            }]
        })?;
    }
    // A pool of compressed entries rounds the budget's block up, so the smallest is the budget's own or a multiple.
    let tokens_per_block = plan.pools.iter().filter_map(|pool| pool.tokens_per_block).min();
    let budget = Budget { max_seq_len: Some(plan.limits.max_seq_len), tokens_per_block, ..Budget::default() };
    let of_the_plan_alone = |violation: &Violation| {
        matches!(
            violation.rule,
            Rule::Coverage | Rule::Membership | Rule::Compatibility | Rule::Owner | Rule::Layout | Rule::Size
        )
    };
    let found = check(&PlanRequest::new(&plan.model, &resources, &budget), plan).err().unwrap_or_default();
    let found: Vec<Violation> = found.into_iter().filter(of_the_plan_alone).collect();
    if found.is_empty() { Ok(()) } else { Err(found) }
}
