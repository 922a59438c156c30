//! From resources and a budget to a [`CachePlan`]: pure, no device, no IO.
//!
//! A [`PlanRequest`] asks: it groups the caches of a model into pools, sizes the pools for the most sequences that the budget
//! admits, and says who owns every byte and why. [`PlanRequest::check`] proves a plan from the request alone.
//!
//! ```
//! use cacheplan_planner::{Budget, PlanRequest};
//! use cacheplan_transforms::{Model, ReadOptions};
//!
//! let config = r#"{ "model_type": "llama", "num_hidden_layers": 1, "hidden_size": 1024, "num_attention_heads": 8,
//!   "intermediate_size": 256, "vocab_size": 256, "max_position_embeddings": 8192, "torch_dtype": "bfloat16" }"#;
//! let model = Model::read_config("config.json", config, &ReadOptions::default())?;
//! let budget = Budget::from_toml("max_seq_len = 1024\n[memory]\nbytes = '64MiB'", "budget.toml")?;
//! let request = PlanRequest::of(model).with_budget(budget);
//! let plan = request.plan()?;
//! assert_eq!(plan.capacity.sequences, 15);
//! assert_eq!(request.check(&plan), Ok(()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`budget`], [`plan`], [`check`] and [`error`] are data and its proof; the solver knows no engine; [`engines`], [`logs`] and
//! [`export`] are what is known of others; [`fit`], [`compare`], [`curves`] and [`disaggregation`] ask many requests; nothing knows [`pictures`].
#![forbid(unsafe_code)]
#![deny(unnameable_types)]
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

pub mod bound;
pub mod budget;
pub mod check;
pub mod compare;
pub mod config;
pub mod curves;
pub mod device;
pub mod devices;
pub mod diff;
pub mod disaggregation;
pub mod engines;
pub mod error;
pub mod explain;
pub mod export;
mod fingerprint;
pub mod fit;
pub mod forward_profile;
mod limits;
pub mod logs;
pub mod measured;
mod mla_cache;
pub mod model_caches;
mod notes;
mod overheads;
mod parallel;
pub mod pictures;
pub mod plan;
pub mod plan_file;
mod prediction_check;
mod render;
pub mod request;
pub mod size;
mod solver;
mod stated;
pub mod subjects;
mod suggest;
mod weight_bits;

pub use budget::key::{BudgetKey, Values};
pub use budget::{Budget, BudgetError, Memory};
pub use compare::Comparison;
pub use config::{Config, Override};
pub use device::DeviceInfo;
pub use devices::Devices;
pub use disaggregation::Disaggregation;
pub use engines::{Engine, EngineSpec};
pub use error::PlanError;
pub use export::{ExportError, Serving, Target};
pub use fit::{FitQuestion, Prices};
pub use forward_profile::ForwardProfile;
pub use logs::EngineLog;
pub use logs::start::{EngineStart, StartCheck};
pub use measured::MeasuredLedger;
pub use model_caches::ModelCaches;
pub use parallel::Parallel;
pub use plan::{
    CachePlan, Grouping, Limits, ManagerKind, Member, Owner, PlannedResource, Pool, RankPlans, SlotDomain,
    StoredStates, Unit,
};
pub use request::PlanRequest;
pub use size::ByteSize;
pub use solver::step::StepBytes;
pub use stated::Stated;
pub use weight_bits::{GgufType, StatedWeights, WeightBits};
