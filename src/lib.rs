//! Plans, proves, allocates and runs the caches of LLM inference.
//!
//! From a model's description to the tables of a step: blocks, slots, and where each token is written.
//!
//! ```
//! use cacheplan::managers::BookError;
//! use cacheplan::managers::book::{CacheBook, SequenceId, StepMetadata, Work};
//! use cacheplan::planner::{Budget, PlanRequest};
//! use cacheplan::transforms::{Model, ReadOptions};
//!
//! // A `config.json`; `Model::read` takes a folder, a file of safetensors, a GGUF or an ONNX file.
//! let config = r#"{ "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
//!   "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 256, "max_position_embeddings": 8192 }"#;
//! let model = Model::read_config("config.json", config, &ReadOptions::default())?;
//! let budget = Budget::from_toml("max_seq_len = 64\n[memory]\nbytes = '128KiB'", "budget.toml")?;
//! let plan = PlanRequest::of(model).with_budget(budget).plan()?;
//! println!("{}", plan.table());
//!
//! let mut book = CacheBook::new(&plan)?;
//! let mut step = StepMetadata::default();
//! let mut waiting = vec![40; 6];
//! // What runs, and how many tokens each has still to decode.
//! let mut running: Vec<(SequenceId, u32)> = Vec::new();
//! while !(waiting.is_empty() && running.is_empty()) {
//!     // Prompts are admitted until blocks or slots are lacking, and computed whole.
//!     let mut work = Vec::new();
//!     while let Some(&prompt) = waiting.last() {
//!         match book.admit(prompt) {
//!             Ok(sequence) => work.push(Work { sequence, tokens: prompt }),
//!             Err(BookError::Lack(_)) => break,
//!             Err(error) => return Err(error.into()),
//!         }
//!         waiting.pop();
//!     }
//!     let decoding = running.iter().map(|(sequence, _)| Work { sequence: *sequence, tokens: 1 });
//!     work.extend(decoding);
//!     book.step(&work, &mut step)?;
//!     // Here the kernels run over `step.pools`: block tables, and the place of each token in `slot_mapping`.
//!     running.iter_mut().for_each(|(_, left)| *left -= 1);
//!     running.extend(work.iter().filter(|part| part.tokens > 1).map(|part| (part.sequence, 8)));
//!     for (sequence, _) in running.extract_if(.., |(_, left)| *left == 0) {
//!         book.finish(sequence)?;
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | what you have | where to go on |
//! |---|---|
//! | an engine that owns its memory | [`managers::book`], and [`managers::prefix`] for reuse |
//! | an engine that wants its pools allocated | `managers::device::CacheSet` (feature `candle`) |
//! | a layer that nobody knows | `GraphBuilder` of [`transforms`], or a description in [`transforms::ReadOptions`] |
//! | a question about devices or engines | [`planner::fit`], [`planner::engines`] |
//! | a model to run | `runtime` (feature `candle`) |
//!
//! The examples of the repository stand in `examples`, whole.
//! Without features the crate plans and keeps books, and needs no candle.
//!
//! | feature | what it adds |
//! |---|---|
//! | `candle` | pools in memory, kernels, tokenizers, and sessions that run models |
//! | `cuda` | `candle`, and its CUDA backend with kernels of our own |
//! | `ort` | `candle`, and ONNX Runtime for exported graphs |
//! | `hub` | descriptions of models by their names on the Hugging Face hub, fetched |
//! | `index` | for routers: which worker can reuse what of a prompt |
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

/// Shows the examples of the repository, whole, to be copied.
#[cfg(doc)]
pub mod examples {
    /// Walks from a plan to pools, block tables, slots and a step: `cargo run --example allocate --features candle`.
    ///
    #[doc = concat!("```ignore\n", include_str!("../examples/allocate.rs"), "\n```")]
    pub mod allocate {}

    /// Runs an engine's loop: prefix reuse, chunked prefill, speculation and preemption.
    ///
    #[doc = concat!("```ignore\n", include_str!("../examples/engine.rs"), "\n```")]
    pub mod engine {}

    /// Plans, allocates and reuses the cache of an op of one's own, and describes it in TOML.
    ///
    #[doc = concat!("```ignore\n", include_str!("../examples/custom_op.rs"), "\n```")]
    pub mod custom_op {}
}
