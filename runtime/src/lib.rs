//! Runs decoder models in planned caches: load, plan, allocate, profile, resize, generate, report.
//!
//! [`Session`] is the whole way in one object, [`Request`]s in and a [`Generation`] out; [`Decoder`] is for those who
//! schedule themselves. Generation knows of a model what `TextModel` says.
//!
//! ```
//! use cacheplan_kernels::Backend;
//! use cacheplan_runtime::{Request, Session};
//!
//! let mut session = Session::demo(Backend::Cpu)?;
//! let generation = session.generate(&Request::demo(), false)?;
//! assert_eq!(generation.outputs.len(), 3);
//! # Ok::<(), cacheplan_runtime::RuntimeError>(())
//! ```
#![forbid(unsafe_code)]
#![deny(unnameable_types)]
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

pub mod beam;
mod block;
mod cache_use;
mod commit;
mod costs;
mod decoder;
mod demo;
mod device;
mod device_steps;
mod disk;
mod draft_model;
mod drafts;
pub mod error;
mod exported;
mod features;
mod follow;
mod generate;
mod generation;
pub mod generation_config;
mod inputs;
mod layer_cache;
mod layers;
mod markdown;
mod models;
mod prediction;
pub mod profile;
mod prompts;
mod replies;
pub mod report;
pub mod request;
pub mod requests;
pub mod sampling;
mod session;
mod speculate;
pub mod speed;
mod step;
pub mod timeline;
mod totals;
mod verify;
pub mod weights;

pub use beam::Beams;
pub use cache_use::CacheUse;
pub use decoder::Decoder;
pub use error::{ConfigError, RequestError, RuntimeError};
pub use exported::{GraphDType, GraphExport, GraphForm, is_graph};
pub use follow::{Admission, Follow};
pub use generation::Generation;
pub use prompts::{Prompt, Prompts};
pub use replies::{Replies, Reply};
pub use report::{PoolReport, RunReport};
pub use request::{Finish, Output, Request};
pub use requests::RequestLine;
pub use sampling::{Sampling, SamplingError, SamplingOptions};
pub use session::{Session, SessionOptions};
pub use verify::Verified;
pub use weights::{WeightError, Weights};
