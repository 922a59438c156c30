//! What the page asks, answered by the planner; the same in a browser, as WebAssembly, and behind `cacheplan web`.
//!
//! A [`OpenModels`] keeps the models that were opened and answers one question after the other. It computes nothing itself:
//! `answers.rs` calls the planner as the command does, so that their numbers are the same.
//! [`Asset`]s are the files of the page as `cargo xtask web` built them.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

mod admits;
mod answers;
mod asset;
mod budget_text;
mod commands;
mod open_models;
mod pasted;
mod question;
#[cfg(not(target_family = "wasm"))]
mod server;
mod slices;
mod tiers;

pub use asset::Asset;
pub use open_models::{DiskModel, OpenModels, Opener};
#[cfg(not(target_family = "wasm"))]
pub use server::Server;
