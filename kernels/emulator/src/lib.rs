//! Runs PTX on the CPU and reports what a GPU would let pass.
//!
//! A [`Module`] is read from the text that `nvcc -ptx` writes; a [`Device`] has buffers and runs kernels over them, one
//! warp at a time. Beside the bytes it keeps a shadow of every cell, in which accesses out of bounds, misaligned,
//! of memory that nobody wrote, races, copies that have not landed and barriers that part of a warp misses show
//! whatever the values are. `docs/emulator.md` says what that proves and what it does not.
//!
//! Read `parse` and `table` for what PTX is understood, `op` for what it becomes, `launch` for how blocks and warps take turns, `execute` for
//! what an instruction does, `shadow` for what a race is.
//!
//! ```
//! use cacheplan_emulator::{Device, Fault, Module, Options, Shape};
//!
//! // out[thread] = thread
//! let ptx = ".version 9.0
//! .target sm_80
//! .address_size 64
//! .visible .entry ids(
//! .param .u64 ids_param_0
//! )
//! {
//! .reg .b32 %r<2>;
//! .reg .b64 %rd<5>;
//! ld.param.u64 %rd1, [ids_param_0];
//! cvta.to.global.u64 %rd2, %rd1;
//! mov.u32 %r1, %tid.x;
//! mul.wide.u32 %rd3, %r1, 4;
//! add.s64 %rd4, %rd2, %rd3;
//! st.global.u32 [%rd4], %r1;
//! ret;
//! }
//! ";
//! let module = Module::parse(ptx)?;
//! let mut device = Device::new();
//! let out = device.buffer("out", 31 * 4, 4);
//! let shape = Shape { grid: [1; 3], block: [32, 1, 1], shared_bytes: 0 };
//! let parameter = device.address(out).to_le_bytes();
//! let run = device.run(module.kernel("ids")?, &shape, &parameter, &Options::default())?;
//! // One thread is too many.
//! assert_eq!(run.reports.iter().map(|report| (report.fault, report.thread)).collect::<Vec<_>>(), [(Fault::OutOfBounds, 31)]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
#![deny(unnameable_types)]

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
