//! The managers: the only place that allocates device memory for caches.
//!
//! - [`book`]: plain bookkeeping without candle. A [`CacheBook`](book::CacheBook) owns blocks, slots and block tables.
//! - [`prefix`]: [`PrefixReuse`](prefix::PrefixReuse) shares what sequences have in common.
//! - [`simulate`]: what prefix reuse would save of a workload, without a model.
//! - `device` (feature of that name): a `CacheSet` has the books and the tensors of a plan's pools.
//!
//! A [`CacheBook`](book::CacheBook) serves engines that own their memory; lengths are in tokens, tables in blocks:
//!
//! ```
//! use cacheplan_handlers::DType;
//! use cacheplan_managers::book::{CacheBook, StepMetadata, Work};
//! use cacheplan_planner::{Budget, PlanRequest};
//! use cacheplan_transforms::{GraphBuilder, layers::Attention};
//!
//! // A decoder of one layer: 8 heads, 2 of them for keys and values, of 64 elements each.
//! let mut builder = GraphBuilder::new("my_decoder", 512, DType::Bf16);
//! builder.layer();
//! builder.attention(&Attention::grouped(8, 2, 64));
//!
//! let budget = Budget::from_toml("max_seq_len = 1024\nmax_batch_size = 4", "budget.toml")?;
//! let plan = PlanRequest::of(builder.build()).with_budget(budget).plan()?;
//!
//! let mut book = CacheBook::new(&plan)?;
//! let sequence = book.admit(40)?;
//! let mut step = StepMetadata::default();
//! book.step(&[Work { sequence, tokens: 40 }], &mut step)?;
//! // 40 tokens lie in three blocks of 16; block 0 is padding.
//! assert_eq!(step.pools[0].block_tables, [1, 2, 3]);
//! assert_eq!(step.pools[0].slot_mapping[..2], [16, 17]);
//! book.finish(sequence)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! `device::CacheSet` does the same and allocates the pools; `examples/allocate.rs` of the facade crate walks through it.
#![deny(unnameable_types)]
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

pub mod book;
mod counting;
#[cfg(feature = "device")]
pub mod device;
pub mod prefix;
pub mod simulate;

pub use book::error::{BookError, Lack, Scarce};
pub use counting::CountingAllocator;
#[cfg(feature = "device")]
pub use device::error::ManagerError;
