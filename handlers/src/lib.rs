//! What a cache resource is, as plain data.
//!
//! A [`ResourceHandler`] says what one node of a model needs to remember between steps: its kind, its shape, how it
//! grows, its dtype and its memory order.
//! It allocates nothing and knows no budget; the planner decides who owns it, the managers allocate it.
//!
//! ```
//! use cacheplan_handlers::{DType, ResourceHandler};
//!
//! let kv = ResourceHandler::kv_paged(2, 128, DType::Bf16)?;
//! assert_eq!(kv.unit_bytes(), 2 * 2 * 128 * 2);
//! # Ok::<(), cacheplan_handlers::HandlerError>(())
//! ```
#![forbid(unsafe_code)]
#![deny(unnameable_types)]
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

mod compat;
mod dtype;
mod handler;
mod kinds;
mod recurrence;
mod replay;

pub use compat::{CompatKey, Mismatch};
pub use dtype::{DType, UnknownDType};
pub use handler::{Dim, Growth, HandlerError, Kind, KvLayout, ResourceHandler, Shape, Split};
pub use recurrence::{DecayKind, Recurrence, Ring};
