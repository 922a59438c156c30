//! Runs PTX on the CPU and reports what a GPU would let pass.
//!
//! A [`Module`] is read from the text that `nvcc -ptx` writes; a [`Device`] has buffers and runs kernels over them, one
//! warp at a time. Beside the bytes it keeps a shadow of every cell, in which accesses out of bounds, misaligned,
//! of memory that nobody wrote, races, copies that have not landed and barriers that part of a warp misses show
//! whatever the values are. `docs/emulator.md` says what that proves and what it does not.
//!
//! Read `parse` and `table` for what PTX is understood, `op` for what it becomes, `launch` for how blocks and warps take turns, `execute` for
//! what an instruction does, `shadow` for what a race is.
#![forbid(unsafe_code)]

mod execute;
mod float;
mod kernel;
mod launch;
mod memory;
mod op;
mod parse;
mod report;
mod shadow;
mod stats;
mod table;
mod types;
mod warp;

pub use kernel::Kernel;
pub use launch::{BufferId, Device, LaunchError, Options, Run, Shape};
pub use parse::Module;
pub use report::{Fault, Report};
pub use stats::Stats;

/// PTX that is not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct PtxError {
    /// Line of the text, from 1.
    pub line: u32,
    /// What is not known there.
    pub what: String,
}
