//! Decoders over managed pools: load, plan, allocate, profile, resize, generate, report.
//!
//! [`Session`] is the whole way in one object; [`Decoder`] is for those who schedule themselves.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

mod decoder;
pub mod demo;
mod device;
mod eos;
mod error;
mod generate;
mod layers;
mod models;
mod profile;
mod report;
mod session;
mod step;
mod weights;

pub use decoder::Decoder;
pub use device::{device_info, open_device};
pub use error::{ConfigError, RequestError, RuntimeError};
pub use generate::{Output, Request};
pub use models::load;
pub use profile::MemoryProfile;
pub use report::{MemoryReport, PoolReport, RequestReport, RunReport};
pub use session::{Generation, Session, SessionOptions};
pub use weights::{Scope, WeightError, Weights};
