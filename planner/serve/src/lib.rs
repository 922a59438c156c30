//! Commands and manifests that start an engine, read as questions to the planner.
//!
//! A [`Launch`] is a command as a shell or a manifest has it. A [`Question`] is what it asks: its words are read as the engine's own
//! parser would, with tables made from that parser. [`answer`] says what the engine would log at its start, what caps it, and which
//! flags would change that; [`repaired`] finds the nearest command that starts. [`fit`] asks of devices what commands would.
#![forbid(unsafe_code)]
#![deny(unnameable_types)]
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

mod answer;
mod asked;
mod bisect;
mod cap;
mod change;
mod check;
mod command;
mod dynamo;
mod error;
pub mod fit;
mod flags;
mod found;
mod launch;
pub mod manifest;
mod part;
mod program;
mod question;
mod remedy;
mod repair;
mod said;
mod search;
mod secret;
mod started;
mod visible;
mod words;

pub use answer::{Answer, Change, Starts};
pub use asked::{Asked, Refusal};
pub use check::{CommandCheck, Compared};
pub use error::ServeError;
pub use found::{outcome, request};
pub use launch::Launch;
pub use question::{Limits, Models, Options, Question, ReadFlag};
pub use remedy::Remedy;
pub use repair::{answer, nearest, repaired};
pub use words::line;
