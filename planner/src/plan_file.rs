//! A plan read back from JSON, and whether it still holds.

use serde_json::Value;
use thiserror::Error;

use crate::{CachePlan, Fingerprint, SCHEMA_VERSION};

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
