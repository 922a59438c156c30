//! How bytes from outside come in, and how text and files go out.
//!
//! Nothing else in this workspace opens a file. What is read is a [`Source`], a regular file or what the caller has,
//! within one of the [`Limit`]s; JSON goes through [`Limit::parse_json`], TOML through [`Source::parse_toml`]. What
//! strangers wrote is shown as [`Shown`]. A file is written by [`replace`], so that whoever looks finds the old one or
//! the new one; one that grows is made of [`Lines`]. A command that calls [`remember_inputs`] writes none that it has read.
#![forbid(unsafe_code)]
#![deny(unnameable_types)]
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

mod inputs;
mod json;
mod limits;
mod lines;
mod replace;
mod shown;
mod source;
mod toml;

pub use inputs::{remember_inputs, remember_model};
pub use json::{JsonError, Object};
pub use limits::Limit;
pub use lines::Lines;
pub use replace::{ReplaceError, is_begun_so, refuse_input, refuse_places, refuse_twice, replace};
pub use shown::Shown;
pub use source::{ReadAt, Source, SourceError};
pub use toml::TomlError;
