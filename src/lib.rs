//! Plans, proves, allocates and runs the caches of LLM inference.
//!
//! This crate is the facade: each room is re-exported under its own name.
//! `docs/architecture.md` tells what each may and may not do.
//! Without features it plans and keeps books, and needs no candle.
//!
//! | feature | what it adds |
//! |---|---|
//! | `candle` | pools in memory, kernels, tokenizers, and sessions that run models |
//! | `cuda` | `candle`, and its CUDA backend with kernels of our own |
//! | `ort` | `candle`, and ONNX Runtime for exported graphs |
//! | `hub` | descriptions of models by their names on the Hugging Face hub, fetched |
#![forbid(unsafe_code)]

pub use cacheplan_files as files;
#[cfg(feature = "candle")]
pub use cacheplan_graphs as graphs;
pub use cacheplan_handlers as handlers;
#[cfg(feature = "hub")]
pub use cacheplan_hub as hub;
#[cfg(feature = "index")]
pub use cacheplan_index as index;
#[cfg(feature = "candle")]
pub use cacheplan_kernels as kernels;
pub use cacheplan_managers as managers;
pub use cacheplan_planner as planner;
#[cfg(feature = "candle")]
pub use cacheplan_runtime as runtime;
#[cfg(feature = "candle")]
pub use cacheplan_text as text;
pub use cacheplan_transforms as transforms;
/// The tensor library that everything runs on, in the version that this crate was built with.
#[cfg(feature = "candle")]
pub use candle_core as candle;
