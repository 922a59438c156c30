//! From resources and a budget to a [`CachePlan`]: pure, no device, no IO.
//!
//! [`plan`] groups the resources of a model into pools, sizes the pools for the most sequences that the budget admits,
//! and says who owns every byte and why. [`check`](fn@check) proves a plan from the request alone.
//!
//! ```
//! use cacheplan_handlers::{DType, ResourceHandler};
//! use cacheplan_planner::{Budget, PlanRequest, plan};
//! use cacheplan_transforms::{ModelInfo, Resource, Resources};
//!
//! let mut resources = Resources::default();
//! resources.push(Resource {
//!     name: "kv_cache_0".into(),
//!     layer: Some(0),
//!     handler: ResourceHandler::kv_paged(8, 128, DType::Bf16)?,
//!     node: "layers.0.attention".into(),
//!     provenance: Vec::new(),
//!     shared_by: Vec::new(),
//! })?;
//! let model = ModelInfo {
//!     model_type: "llama".into(),
//!     layers: 1,
//!     dtype: DType::Bf16,
//!     max_position_embeddings: Some(8192),
//!     weights: None,
//!     fingerprint: String::new(),
//! };
//! let budget = Budget::from_toml("max_seq_len = 1024\n[memory]\nbytes = '64MiB'", "budget.toml")?;
//! let plan = plan(&PlanRequest::new(&model, &resources, &budget))?;
//! assert_eq!(plan.capacity.sequences, 15);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

pub mod autodeploy;
mod budget;
mod check;
mod checkpoints;
mod compare;
mod config;
mod context;
mod demand;
mod device;
mod diff;
mod engines;
mod error;
mod explain;
mod export;
mod fingerprint;
mod group;
mod host;
mod ledger;
mod make;
mod notes;
mod plan;
mod plan_file;
mod ranks;
mod render;
mod request;
mod size;
mod solve;
mod speculation;
mod suggest;
mod workload;

pub use budget::{Base, Budget, BudgetError, Dtypes, Fraction, Host, Memory, Objective};
pub use check::{Rule, Violation, check, check_alone};
pub use compare::{Comparison, compare};
pub use config::{Config, ConfigValue, Origin, Override, budget_schema, commented_budget, environment};
pub use device::{DeviceInfo, DeviceKind, UnknownDevice};
pub use diff::{Change, PlanDiff, Side, diff};
pub use engines::{
    Engine, EngineOptions, EnginePlan, EnginePrediction, EngineSpec, MlaCache, UnknownEngine, Version, predict,
};
pub use error::{Overdrawn, PlanError, Shortfall, Suggestion};
pub use explain::{Derivation, ExplainError, explain};
pub use export::{Export, ExportError, Serving, Setting, Target, export};
pub use group::{MambaParams, mamba_params, n_groups};
pub use make::plan;
pub use plan::{
    CachePlan, Capacity, Fingerprint, HostPlan, HostPool, LedgerLine, Limits, ManagerKind, Member, Owner,
    PlannedResource, Policy, Pool, SCHEMA_VERSION, SlotDomain, Source, Totals, Unit,
};
pub use plan_file::PlanFileError;
pub use ranks::{Agreement, Parallel, RankPlans, plan_ranks};
pub use render::comparison_table;
pub use request::{Draft, Measurement, PlanRequest, resize};
pub use size::{BadByteSize, ByteSize};
pub use speculation::{Scheme, Speculation};
pub use suggest::knobs;
pub use workload::{CheckpointDType, Lengths, Workload};
