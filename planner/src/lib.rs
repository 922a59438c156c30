//! From resources and a budget to a [`CachePlan`]: pure, no device, no IO.
//!
//! A [`PlanRequest`] asks: it groups the caches of a model into pools, sizes the pools for the most sequences that the budget
//! admits, and says who owns every byte and why. [`PlanRequest::check`] proves a plan from the request alone.
//!
//! ```
//! use cacheplan_handlers::{DType, ResourceHandler};
//! use cacheplan_planner::{Budget, PlanRequest};
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
//!     revision: None,
//!     step_tokens: None,
//! };
//! let budget = Budget::from_toml("max_seq_len = 1024\n[memory]\nbytes = '64MiB'", "budget.toml")?;
//! let plan = PlanRequest::of((model, resources)).with_budget(budget).plan()?;
//! assert_eq!(plan.capacity.sequences, 15);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
#![deny(unnameable_types)]
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

pub mod budget;
pub mod check;
mod checkpoints;
pub mod compare;
pub mod config;
mod context;
pub mod curves;
mod demand;
pub mod device;
pub mod devices;
pub mod diff;
mod divisible;
pub mod engines;
pub mod error;
pub mod explain;
pub mod export;
mod fingerprint;
pub mod fit;
pub mod forward_profile;
mod group;
mod host;
mod inputs;
mod ledger;
mod limits;
pub mod logs;
mod make;
pub mod measured;
mod mla_cache;
pub mod model_caches;
mod notes;
mod overheads;
mod parallel;
pub mod pictures;
pub mod plan;
pub mod plan_file;
mod ranks;
mod render;
pub mod request;
mod room;
pub mod size;
mod solve;
mod speculation;
mod stated;
pub mod step;
mod suggest;
mod weights;

pub use budget::{Budget, BudgetError, Memory};
pub use compare::Comparison;
pub use config::{BudgetKey, Config, Override, Values};
pub use device::DeviceInfo;
pub use devices::Devices;
pub use engines::{Engine, EngineSpec};
pub use error::PlanError;
pub use export::{ExportError, Serving, Target};
pub use fit::{FitQuestion, Prices};
pub use forward_profile::ForwardProfile;
pub use logs::EngineLog;
pub use measured::Measured;
pub use model_caches::ModelCaches;
pub use parallel::Parallel;
pub use plan::{
    CachePlan, Grouping, Limits, ManagerKind, Member, Owner, PlannedResource, Pool, RankPlans, SlotDomain, Unit,
};
pub use request::PlanRequest;
pub use size::ByteSize;
pub use stated::Stated;
pub use step::StepBytes;
