//! Runs ONNX graphs on the CPU, in an interpreter, or in ONNX Runtime where it is asked for ([`GraphEngine`]).
//!
//! [`Runner::open`] reads a graph with its weights and computes what is constant. The interpreter infers the shapes of a
//! graph once for each shape of its inputs: what only moves numbers becomes another layout of the same numbers, and
//! what is left are the steps of a program over buffers that it shares out beforehand. A run then allocates next to
//! nothing. Inputs are lent, so that a cache is read where it lies; one that is lent to be written takes new rows in place,
//! until the outputs are dropped.
//!
//! A row of a product does not depend on how many rows there are: a padded prompt, a prompt in pieces and one token
//! after the other give the same bits, where the graph itself sums in the same order.
//!
//! ```no_run
//! use cacheplan_graphs::{GraphEngine, Input, Runner, Slice};
//!
//! let mut runner = Runner::open("model.onnx".as_ref(), &GraphEngine::Interpreter)?;
//! let mut inputs = [Input::new(Slice::Float(&[1.0, 2.0]), vec![1, 2])];
//! let outputs = runner.run(&mut inputs)?;
//! assert!(outputs.get(0).is_some_and(|view| view.floats().is_some()));
//! # Ok::<(), cacheplan_graphs::GraphError>(())
//! ```
#![forbid(unsafe_code)]
#![deny(unnameable_types)]
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

mod builder;
mod cached_attention;
mod call;
mod custom;
mod error;
mod fuse;
mod graph;
mod interpreter;
mod kernels;
mod layout;
mod masked_attention;
mod nest;
mod node;
mod nodes;
#[cfg(feature = "ort")]
mod onnx_runtime;
mod products;
mod program;
mod runner;
mod stateful;
mod tensor;

pub use error::GraphError;
pub use graph::Port;
pub use program::{Input, Lent};
pub use runner::{GraphEngine, Outputs, Runner};
pub use tensor::{Element, Pooled, Slice, SliceMut, View};
