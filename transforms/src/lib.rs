//! Front-ends, the graph, and the passes that collect cache resources.
#![forbid(unsafe_code)]

mod model;
mod resources;

pub use model::{ModelInfo, WeightBytes};
pub use resources::{Resource, ResourceError, Resources};
