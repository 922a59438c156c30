//! Launches as data: kernels, and the memory that they work on.

use crate::numbers::Numbers;
use candle_core::{DType, Tensor};

/// What launches are made for: a device as far as they depend on it.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Streaming multiprocessors.
    pub processors: usize,
    /// Bytes of shared memory that a block may have, if it asks for them.
    pub shared_bytes: usize,
}

/// What an op launches, one kernel after the other, over the same buffers.
#[derive(Debug)]
pub struct Launches<'a> {
    /// The memory that arguments point to.
    pub buffers: Vec<Buffer<'a>>,
    /// The kernels, in order.
    pub launches: Vec<Launch>,
}

impl Launches<'_> {
    /// Whether blocks of this device may have as much shared memory as these ask for.
    pub(crate) fn fit(&self, target: &Target) -> bool {
        self.launches.iter().all(|launch| launch.shared_bytes <= target.shared_bytes)
    }
}

/// Memory of a launch.
#[derive(Debug)]
pub struct Buffer<'a> {
    /// What it holds.
    pub name: &'static str,
    /// Where it comes from.
    pub contents: Contents<'a>,
}

/// Where the memory of a launch comes from, and what becomes of it.
#[derive(Debug)]
pub enum Contents<'a> {
    /// A tensor that is only read. The argument points to its first element.
    Input(&'a Tensor),
    /// A pool that is written in place.
    Pool(&'a Tensor),
    /// Indices that the step has, uploaded with the launches.
    Indices(Numbers<'a, i32>),
    /// Lengths, offsets and rows, uploaded with the launches.
    Lengths(Numbers<'a, u32>),
    /// Slots of tokens, uploaded with the launches.
    Slots(Numbers<'a, i64>),
    /// Pairs of rows, uploaded with the launches.
    Pairs(&'a [(u32, u32)]),
    /// Parameters of the op, or rotations of the step, uploaded with the launches.
    Floats(Numbers<'a, f32>),
    /// Any of these that a [`StepBuffer`](crate::StepBuffer) holds since the step began, as words of it.
    Uploaded(Tensor),
    /// So many f32 that one kernel leaves to the next.
    Scratch(usize),
    /// The result of the op.
    Output(DType, Vec<usize>),
}

/// One kernel launch. There is nothing to execute where its grid has no block.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// The instantiation, as the module names it.
    pub kernel: String,
    /// Blocks of the grid.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of dynamic shared memory.
    pub shared_bytes: usize,
    /// The fields of the kernel's one parameter.
    pub arguments: Vec<Argument>,
}

/// A field of a kernel's parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Argument {
    /// The buffer of that number; none is a null pointer.
    Pointer(Option<usize>),
    /// A 64-bit number.
    I64(i64),
    /// A 32-bit number.
    I32(i32),
    /// A float.
    F32(f32),
}

impl Launch {
    /// The bytes of the kernel's parameter, laid out as C does. `address` says where a buffer lies on the device.
    pub fn parameter(&self, address: impl Fn(usize) -> u64) -> Vec<u8> {
        let mut bytes: Vec<u8> = Vec::new();
        let mut push = |value: &[u8]| {
            bytes.resize(bytes.len().next_multiple_of(value.len()), 0);
            bytes.extend_from_slice(value);
        };
        for argument in &self.arguments {
            match *argument {
                Argument::Pointer(buffer) => push(&buffer.map_or(0, &address).to_le_bytes()),
                Argument::I64(value) => push(&value.to_le_bytes()),
                Argument::I32(value) => push(&value.to_le_bytes()),
                Argument::F32(value) => push(&value.to_le_bytes()),
            }
        }
        // A struct is as aligned as its widest field, and each of ours begins with a pointer.
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes
    }
}
