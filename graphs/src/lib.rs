//! Runs ONNX graphs on the CPU, in an interpreter, or in ONNX Runtime where it is asked for ([`GraphEngine`]).
//!
//! [`Runner::open`] reads a graph with its weights and computes what is constant. The interpreter infers the shapes of a
//! graph once for each shape of its inputs: what only moves numbers becomes another layout of the same numbers, and
//! what is left are the steps of a program over buffers that it shares out beforehand. A run then allocates next to
//! nothing. Inputs are lent, so that a cache is read where it lies.
//!
//! A row of a product does not depend on how many rows there are: a padded prompt, a prompt in pieces and one token
//! after the other give the same bits, where the graph itself sums in the same order.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

mod builder;
mod custom;
mod error;
mod graph;
mod interpreter;
mod kernels;
mod nest;
mod nodes;
#[cfg(feature = "ort")]
mod onnx_runtime;
mod program;
pub mod proto;
mod runner;
mod tensor;
mod weigh;

pub use error::GraphError;
pub use graph::Port;
pub use program::Input;
pub use runner::{GraphEngine, Runner};
pub use tensor::{Element, Slice, View};
