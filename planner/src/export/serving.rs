//! What is said of a plan that is served, and why it cannot be.

use cacheplan_files::Shown;
use serde::Serialize;
use serde_json::Value;
use thiserror::Error;

use crate::error::EngineRefusal;
use crate::parallel::Parallel;

/// What is served, as far as a plan does not say it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Serving {
    /// The name or path that the engine loads the model by; where absent the file has `<MODEL>` in its place.
    pub model: Option<String>,
    /// The groups of ranks, of which the plan is that of one rank; the plan's own where absent.
    pub parallel: Option<Parallel>,
    /// Host memory that one rank offloads caches to, in bytes.
    pub host_bytes: Option<u64>,
}

impl Serving {
    /// What a pod in which the engine offloads must have.
    pub(super) fn pod_memory(&self) -> Option<String> {
        self.host_bytes.map(|bytes| {
            format!("the pod's memory limit and /dev/shm: both must exceed {bytes} bytes for each rank in it")
        })
    }
}

/// One value that an engine is told.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Setting {
    /// The engine's key; a dot leads into a section.
    pub key: String,
    /// Its value.
    pub value: Value,
    /// Where the value comes from.
    pub source: String,
}

/// Why a plan cannot be exported.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ExportError {
    /// No such target.
    #[error("unknown target `{found}`; known are {}", known.join(", "), found = Shown(.found))]
    Target {
        /// What was asked for.
        found: String,
        /// The names of all targets.
        known: Vec<&'static str>,
    },
    /// A version whose keys were not read.
    #[error("unknown version `{found}` for {target}; the keys are known for {}", known.join(", "), found = Shown(.found))]
    Version {
        /// The target's name.
        target: &'static str,
        /// What was asked for.
        found: String,
        /// The versions that are known, oldest first.
        known: Vec<&'static str>,
    },
    /// A plan whose numbers no planner makes.
    #[error("the plan is damaged: {shown}; plan again", shown = Shown(.0))]
    Damaged(String),
    /// A name that an engine would take for something else.
    #[error(
        "the model's name `{}` cannot be told to an engine: it is empty, begins with `-` or has characters that are not seen; a path may begin with `./`",
        Shown(found)
    )]
    Model {
        /// The name.
        found: String,
    },
    /// The engine does not run the model, or not with these caches.
    #[error("the plan cannot be told: {0}")]
    Refused(EngineRefusal),
    /// The plan needs what the engine has no words for, so that the rest would be wrong.
    #[error("{engine} cannot run this plan: {what}", what = Shown(.what))]
    Unsupported {
        /// The engine.
        engine: &'static str,
        /// What it has no words for.
        what: String,
    },
}
