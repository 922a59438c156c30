//! Reads models, and collects the caches that they need.
//!
//! [`Model::read`] reads what people have on disk: a folder with `config.json`, safetensors' headers, GGUF, ONNX.
//! [`GraphBuilder`] makes the same [`Model`] without any file. Both state the [`layers`] of the model and add the same blocks
//! to its [`Graph`], whose [`passes`] look at every op, ask the [`registry`] what it keeps between steps, and give the
//! [`Resources`] that a plan is made from.
//!
//! ```
//! use cacheplan_handlers::DType;
//! use cacheplan_transforms::layers::Attention;
//! use cacheplan_transforms::{GraphBuilder, PassContext};
//!
//! let mut builder = GraphBuilder::new("made_up", 64, DType::Bf16);
//! builder.layer();
//! builder.attention(&Attention::grouped(4, 2, 16));
//! let mut model = builder.build();
//! let collected = model.graph.collect(&PassContext::default())?;
//! assert_eq!(collected.resources.get("kv_cache_0").map(|cache| cache.handler.shape()[0].size), Some(2));
//! # Ok::<(), cacheplan_transforms::PassError>(())
//! ```
#![forbid(unsafe_code)]
#![deny(unnameable_types)]
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

mod builder;
mod cache_dtypes;
mod descriptors;
mod dot;
mod fact;
mod frontend;
pub mod graph;
mod inspect;
pub mod layers;
pub mod model;
mod near;
pub mod onnx;
pub mod ops;
pub mod passes;
pub mod registry;
pub mod resources;
mod weights;

pub use builder::GraphBuilder;
pub use cache_dtypes::CacheDTypes;
pub use frontend::{Assumption, DescriptionPlace, FrontendError, ReadOptions, gguf, is_built_in};
pub use graph::{Attribute, Graph, Op};
pub use model::{Model, ModelInfo, StateBinding, StatePart};
pub use passes::{Collected, PassContext, PassError};
pub use resources::{Resource, ResourceError, Resources};
pub use weights::{WeightBytes, WeightClasses};
