//! Front-ends, the graph, and the passes that collect cache resources.
//!
//! [`read_model`] turns a model's own description into a [`Graph`], [`collect`] walks it and returns the
//! [`Resources`] that a plan is made from.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

mod builder;
mod descriptors;
mod dot;
mod frontend;
mod graph;
mod inspect;
mod model;
mod near;
pub mod ops;
mod passes;
mod registry;
mod resources;

pub use builder::{Attention, CompressedAttention, FeedForward, GraphBuilder, LinearAttention, Mamba1, Mamba2, Mla};
pub use dot::Dot;
pub use frontend::{Assumption, FrontendError, ReadOptions, read_config_str, read_model};
pub use graph::{Attribute, Edge, Extent, Graph, Name, Op, OpId, Origin, Tensor, TensorId};
pub use inspect::Inspection;
pub use model::{Fact, Model, ModelInfo, WeightBytes};
pub use near::edit_distance;
pub use passes::{Collected, PassContext, PassError, PassReport, Skipped, Stage, collect};
pub use registry::{Cache, CacheDTypes, DescribeError, Descriptor, OpView, Registry};
pub use resources::{Resource, ResourceError, Resources};
