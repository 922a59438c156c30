//! A plan in the words of an engine that people run: flags or files, where each value comes from, and what is lost.
//!
//! One table of keys per engine; Dynamo, llm-d and Ray wrap the same arguments.

mod dialect;
mod edge_llm;
mod input;
mod render;
mod sglang;
mod target;
mod tensorrt_llm;
mod vllm;
mod yaml;

use serde::Serialize;
use serde_json::Value;
use thiserror::Error;

use crate::{CachePlan, Parallel};
use input::Input;
pub use target::Target;

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

/// A plan as an engine takes it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Export {
    /// The target's name, `vllm`.
    pub target: String,
    /// The engine that reads the values and its version, `vLLM 0.33.0`.
    pub engine: String,
    /// The file's suggested name.
    pub file_name: String,
    /// The file: YAML, a shell script or JSON.
    pub text: String,
    /// Every value with its key and where it comes from.
    pub settings: Vec<Setting>,
    /// What the plan says and the engine cannot be told, one sentence each.
    pub not_expressed: Vec<String>,
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
    #[error("unknown target `{found}`; known are {}", known.join(", "))]
    Target {
        /// What was asked for.
        found: String,
        /// The names of all targets.
        known: Vec<&'static str>,
    },
    /// A version whose keys were not read.
    #[error("unknown version `{found}` for {target}; the keys are known for {}", known.join(", "))]
    Version {
        /// The target's name.
        target: &'static str,
        /// What was asked for.
        found: String,
        /// The versions that are known, oldest first.
        known: Vec<&'static str>,
    },
    /// A plan whose numbers no planner makes.
    #[error("the plan is damaged: {0}; plan again")]
    Damaged(String),
    /// The plan needs what the engine has no words for, so that the rest would be wrong.
    #[error("{engine} cannot run this plan: {what}")]
    Unsupported {
        /// The engine.
        engine: &'static str,
        /// What it has no words for.
        what: String,
    },
}

/// Says `plan` in the words of `target` at `version`, or at the newest known one.
///
/// The version is that of the engine; for Dynamo it is Dynamo's own, which decides the engine's.
///
/// # Errors
/// A version whose keys are not known, or a plan that is damaged or that the engine has no words for.
pub fn export(
    plan: &CachePlan,
    target: Target,
    version: Option<&str>,
    serving: &Serving,
) -> Result<Export, ExportError> {
    let (dialect, release) = target.resolve(version)?;
    let host_bytes = serving.host_bytes.or(plan.host.as_ref().map(|host| host.bytes));
    let serving = &Serving { host_bytes, ..serving.clone() };
    let input = Input { plan, serving, release };
    input.refuse_damage()?;
    if let Some(what) = (dialect.refuses)(&input) {
        return Err(ExportError::Unsupported { engine: dialect.name, what });
    }
    let settings = dialect.settings(&input);
    let mut not_expressed = dialect.not_expressed(&input);
    not_expressed.extend(target.gaps(serving));
    let engine = format!("{} {}", dialect.name, dialect.versions[release]);
    let text = render::render(target, &engine, &settings, &not_expressed, &input);
    let file_name = target.file_name().into();
    Ok(Export { target: target.to_string(), engine, file_name, text, settings, not_expressed })
}
