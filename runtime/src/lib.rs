//! Decoders over managed pools: load, plan, allocate, profile, resize, generate, report.
//!
//! [`Session`] is the whole way in one object; [`Decoder`] is for those who schedule themselves. Generation knows of a
//! model what `TextModel` says.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

mod beam;
mod commit;
mod costs;
mod decoder;
mod demo;
mod device;
mod device_steps;
mod draft_model;
mod drafts;
mod error;
mod exported;
mod features;
mod follow;
mod generate;
mod generation;
mod generation_config;
mod inputs;
mod layers;
mod markdown;
mod models;
mod prediction;
mod profile;
mod prompts;
mod replies;
mod report;
mod request;
mod requests;
mod sampling;
mod session;
mod speculate;
mod speed;
mod step;
mod timeline;
mod totals;
mod weights;

pub use beam::Beams;
pub use decoder::Decoder;
pub use error::{ConfigError, RequestError, RuntimeError};
pub use exported::GraphExport;
pub use follow::{Admission, Follow};
pub use generation::Generation;
pub use prompts::{Prompt, Prompts};
pub use replies::{Replies, Reply};
pub use report::{PoolReport, RunReport};
pub use request::{Finish, Output, Request};
pub use requests::RequestLine;
pub use sampling::{Sampling, SamplingOptions};
pub use session::{Session, SessionOptions};
pub use step::CacheUse;
pub use weights::{WeightError, Weights};
