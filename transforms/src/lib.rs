//! Front-ends, the graph, and the passes that collect cache resources.
//!
//! [`read_model`] turns a model's own description into a [`Graph`](graph::Graph), [`collect`] walks it and returns the
//! [`Resources`] that a plan is made from.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

mod builder;
mod cache_dtypes;
mod descriptors;
mod dot;
mod frontend;
pub mod graph;
mod inspect;
pub mod layers;
mod model;
mod near;
pub mod ops;
mod passes;
pub mod registry;
mod resources;
mod weights;

pub use builder::GraphBuilder;
pub use cache_dtypes::CacheDTypes;
pub use frontend::{Assumption, FrontendError, ReadOptions, gguf_files, read_config_str, read_model, read_source};
pub use inspect::Inspection;
pub use model::{Fact, Model, ModelInfo, StateBinding, StatePart};
pub use near::edit_distance;
pub use passes::{Collected, PassContext, PassError, PassReport, Stage, collect};
pub use resources::{Resource, Resources};
pub use weights::{WeightBytes, WeightClasses};
