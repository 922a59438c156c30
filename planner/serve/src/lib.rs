//! Commands and manifests that start an engine, read as questions to the planner.
#![forbid(unsafe_code)]
#![deny(unnameable_types)]
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

mod launch;
pub mod manifest;
mod secret;

pub use launch::Launch;
