//! Front-ends, the graph, and the passes that collect cache resources.
//!
//! [`Model::read`] turns a model's own description into a [`Graph`], [`Graph::collect`] walks it and returns the
//! [`Resources`] that a plan is made from.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

mod builder;
mod cache_dtypes;
mod descriptors;
mod dot;
mod frontend;
mod graph;
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
pub use frontend::{Assumption, FrontendError, ReadOptions};
pub use graph::{Attribute, Graph, Op};
pub use model::{Model, ModelInfo, StateBinding, StatePart};
pub use passes::{Collected, PassContext, PassError};
pub use resources::{Resource, Resources};
pub use weights::{WeightBytes, WeightClasses};
