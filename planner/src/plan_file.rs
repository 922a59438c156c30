//! A plan read back from JSON, and whether it still holds.

use cacheplan_files::{Limit, Shown};
use cacheplan_transforms::ModelInfo;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_path_to_error::{Deserializer as PathDeserializer, Track};
use thiserror::Error;

use crate::check::Violation;
use crate::engines::EnginePrediction;
use crate::parallel::Parallel;
use crate::plan::{
    CachePlan, Capacity, Deployment, Fingerprint, Grouping, HostPlan, LedgerLine, Limits, ManagerKind, PlannedResource,
    Pool, SCHEMA_VERSION, Scheme, SlotDomain, Totals,
};

/// A file that holds no plan this version can read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PlanFileError {
    /// The text is no JSON.
    #[error("{origin} is no JSON: {message}", origin = Shown(.origin), message = Shown(.message))]
    NotJson {
        /// The file.
        origin: String,
        /// What is wrong, with its line and column.
        message: String,
    },
    /// The JSON is not a plan.
    #[error(
        "{origin} is no plan: it has no whole number `schema_version`; `cacheplan plan MODEL --out FILE` writes one", origin = Shown(.origin))]
    NoSchemaVersion {
        /// The file.
        origin: String,
    },
    /// A plan of another schema.
    #[error("{origin} has schema_version {found}, this version reads {SCHEMA_VERSION}; `cacheplan plan MODEL --out FILE` makes it anew", origin = Shown(.origin))]
    OtherSchema {
        /// The file.
        origin: String,
        /// Its version.
        found: u64,
    },
    /// A key is absent or has a value of the wrong kind.
    #[error("{origin} is no plan of schema_version {SCHEMA_VERSION}: {message}", origin = Shown(.origin), message = Shown(.message))]
    Malformed {
        /// The file.
        origin: String,
        /// What is wrong.
        message: String,
    },
    /// The plan contradicts itself.
    #[error("{} contradicts itself{}", Shown(.origin), listed(.violations))]
    Contradiction {
        /// The file.
        origin: String,
        /// Where.
        violations: Vec<Violation>,
    },
}

impl PlanFileError {
    /// The exit code of a command that ends with this error: 5 where the plan contradicts itself, else 1.
    pub const fn exit_code(&self) -> u8 {
        if matches!(self, Self::Contradiction { .. }) { 5 } else { 1 }
    }
}

/// One line for each of the first violations.
fn listed(violations: &[Violation]) -> String {
    const MOST: usize = 20;
    let more = violations.len().saturating_sub(MOST);
    let more = if more > 0 { format!("\n  and {more} more") } else { String::new() };
    violations.iter().take(MOST).map(|violation| format!("\n  {violation}")).chain([more]).collect()
}

impl CachePlan {
    /// Reads a plan from JSON and proves what it says of itself; `origin` names the text in errors.
    ///
    /// # Errors
    /// Text that is no JSON, another schema, keys that are absent, stated twice or of the wrong kind, and a plan that
    /// contradicts itself.
    pub fn from_json(text: &str, origin: &str) -> Result<Self, PlanFileError> {
        /// What every version has.
        #[derive(Deserialize)]
        struct Schema {
            #[serde(default)]
            schema_version: Value,
        }
        let origin = || origin.to_owned();
        let schema: Schema = match Limit::PLAN.parse_json(text.as_bytes()) {
            // A list would be taken for the values of the keys in order.
            Ok(_) if !text.trim_start().starts_with('{') => {
                return Err(PlanFileError::NoSchemaVersion { origin: origin() });
            }
            Ok(schema) => schema,
            Err(error) if error.is_other_kind() => return Err(PlanFileError::NoSchemaVersion { origin: origin() }),
            Err(error) => return Err(PlanFileError::NotJson { origin: origin(), message: error.to_string() }),
        };
        match schema.schema_version.as_u64() {
            None => Err(PlanFileError::NoSchemaVersion { origin: origin() }),
            Some(found) if found != u64::from(SCHEMA_VERSION) => {
                Err(PlanFileError::OtherSchema { origin: origin(), found })
            }
            Some(_) => {
                let (mut json, mut place) = (serde_json::Deserializer::from_str(text), Track::new());
                let plan = PlanFields::deserialize(PathDeserializer::new(&mut json, &mut place)).map_err(|error| {
                    let place = Some(place.path().to_string()).filter(|place| place != ".");
                    let place = place.map(|place| place + ": ").unwrap_or_default();
                    PlanFileError::Malformed { origin: origin(), message: format!("{place}{error}") }
                })?;
                plan.check_alone()
                    .map_err(|violations| PlanFileError::Contradiction { origin: origin(), violations })?;
                Ok(plan)
            }
        }
    }
}

impl EnginePrediction {
    /// Reads what a plan's JSON says beside the plan of an engine's allocation; `None` where it says nothing of one.
    ///
    /// # Errors
    /// As [`CachePlan::from_json`]. What it reads is not proved:
    /// [`PlanRequest::check_prediction`](crate::request::PlanRequest::check_prediction) does that.
    pub fn from_plan_json(text: &str, origin: &str) -> Result<Option<Self>, PlanFileError> {
        /// What stands beside the plan.
        #[derive(Deserialize)]
        struct Beside {
            #[serde(default)]
            engine: Option<EnginePrediction>,
        }
        let beside: Result<Beside, _> = Limit::PLAN.parse_json(text.as_bytes());
        let malformed = |message: String| PlanFileError::Malformed { origin: origin.to_owned(), message };
        Ok(beside.map_err(|error| malformed(format!("engine: {error}")))?.engine)
    }
}

/// Proves what is read, whatever the format; [`CachePlan::from_json`] says more of what is wrong.
impl<'de> Deserialize<'de> for CachePlan {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let plan = PlanFields::deserialize(deserializer)?;
        let proved = plan.check_alone();
        proved.map_err(|violations| D::Error::custom(format!("the plan contradicts itself{}", listed(&violations))))?;
        Ok(plan)
    }
}

/// How a plan is read that is not proved yet. The fields of [`CachePlan`], as the compiler sees to.
#[derive(Deserialize)]
#[serde(remote = "CachePlan")]
pub(crate) struct PlanFields {
    schema_version: u32,
    tool_version: String,
    fingerprint: Fingerprint,
    model: ModelInfo,
    policy: Grouping,
    manager: ManagerKind,
    #[serde(default)]
    parallel: Parallel,
    limits: Limits,
    #[serde(default)]
    rollback: Option<Scheme>,
    slots: SlotDomain,
    resources: Vec<PlannedResource>,
    pools: Vec<Pool>,
    capacity: Capacity,
    totals: Totals,
    ledger: Vec<LedgerLine>,
    #[serde(default)]
    host: Option<HostPlan>,
    #[serde(default)]
    deployment: Option<Deployment>,
    #[serde(default)]
    engine_cache_bytes: Option<u64>,
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
