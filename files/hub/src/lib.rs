//! Models by their names on the Hugging Face hub: what its own tools have put on this disk, and, with the feature
//! `fetch`, the descriptions of models that are not there. Weights are never fetched, only the headers of their files.
//!
//! [`Hub::located`] finds a name in the hub's cache. [`Hub::open`] gives the files of a [`Description`] as
//! [`Source`](cacheplan_files::Source)s, and [`Description::keep`] puts what was fetched where the next run finds it.
#![forbid(unsafe_code)]
#![deny(unnameable_types)]
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

mod cache;
#[cfg(feature = "fetch")]
mod certificates;
#[cfg(feature = "fetch")]
mod client;
mod description;
mod error;
#[cfg(feature = "fetch")]
mod fetch;
#[cfg(feature = "fetch")]
mod fetched;
mod head;
mod hub;
mod name;
#[cfg(feature = "fetch")]
mod settings;

pub use description::Description;
pub use error::HubError;
pub use hub::Hub;

use cacheplan_files::Limit;

/// The files that describe a model and are read whole. The config is put into the cache last, so that a snapshot with it is
/// as whole as it gets.
const DESCRIBING: [(&str, Limit); 3] =
    [(INDEX, Limit::INDEX), ("hf_quant_config.json", Limit::CONFIG), ("config.json", Limit::CONFIG)];

/// Which tensor is in which file.
const INDEX: &str = "model.safetensors.index.json";
