//! Launches of the kernels in `kernels/cuda`: which one, over what, with how many blocks.
//!
//! A function here turns the checked operands of an op into [`Launches`], which are plain data: it needs no CUDA, no
//! device, and is the same for whatever executes them. What a kernel was not instantiated for has no launches, and is
//! left to the portable path.
//!
//! So far only the proofs execute them, in the emulator: until a device does, this is compiled for tests alone.
//!
//! An argument list mirrors the struct `Args` of its `.cu` file, in the same order.

pub(crate) mod attention;
pub(crate) mod conv1d;
pub(crate) mod mamba2;
pub(crate) mod pool;

use candle_core::{DType, Tensor};

/// What a launch has to know of the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Device {
    /// Streaming multiprocessors.
    pub(crate) processors: usize,
}

/// What an op launches, one kernel after the other, over the same buffers.
#[derive(Debug)]
pub(crate) struct Launches<'a> {
    /// The memory that arguments point to.
    pub(crate) buffers: Vec<Buffer<'a>>,
    /// The kernels, in order.
    pub(crate) launches: Vec<Launch>,
}

/// Memory of a launch.
#[derive(Debug)]
pub(crate) struct Buffer<'a> {
    /// What it holds.
    pub(crate) name: &'static str,
    /// Where it comes from.
    pub(crate) contents: Contents<'a>,
}

/// Where the memory of a launch comes from, and what becomes of it.
#[derive(Debug)]
pub(crate) enum Contents<'a> {
    /// A tensor that is only read. The argument points to its first element.
    Input(&'a Tensor),
    /// A pool that is written in place.
    Pool(&'a Tensor),
    /// Metadata of the step, uploaded with it.
    Indices(&'a [i32]),
    /// Metadata of the step, uploaded with it.
    Lengths(&'a [u32]),
    /// Pairs of rows, uploaded with the step.
    Pairs(&'a [(u32, u32)]),
    /// Parameters of the op, uploaded with it.
    Floats(&'a [f32]),
    /// So many f32 that one kernel leaves to the next.
    Scratch(usize),
    /// The result of the op.
    Output(DType, Vec<usize>),
}

/// One kernel launch. There is nothing to execute where its grid has no block.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Launch {
    /// The instantiation, as the module names it.
    pub(crate) kernel: String,
    /// Blocks of the grid.
    pub(crate) grid: [u32; 3],
    /// Threads of a block.
    pub(crate) threads: u32,
    /// Bytes of dynamic shared memory.
    pub(crate) shared_bytes: usize,
    /// The fields of the kernel's one parameter.
    pub(crate) arguments: Vec<Argument>,
}

/// A field of a kernel's parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Argument {
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
    pub(crate) fn parameter(&self, address: impl Fn(usize) -> u64) -> Vec<u8> {
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

/// The buffers of an op while its arguments are listed.
#[derive(Default)]
struct Buffers<'a>(Vec<Buffer<'a>>);

impl<'a> Buffers<'a> {
    fn add(&mut self, name: &'static str, contents: Contents<'a>) -> Argument {
        self.0.push(Buffer { name, contents });
        Argument::Pointer(Some(self.0.len() - 1))
    }

    fn input(&mut self, name: &'static str, tensor: impl Into<Option<&'a Tensor>>) -> Argument {
        match tensor.into() {
            Some(tensor) => self.add(name, Contents::Input(tensor)),
            None => Argument::Pointer(None),
        }
    }
}

/// A dtype as names of kernels say it.
fn format(dtype: DType) -> Option<&'static str> {
    match dtype {
        DType::F32 => Some("f32"),
        DType::F16 => Some("f16"),
        DType::BF16 => Some("bf16"),
        _ => None,
    }
}

/// Tokens of a sequence over which a kernel loops; with more, stretches or chunks of them are worth it.
const MAX_TOKENS: usize = 16;

/// Bytes of the widest load.
const VECTOR: usize = 16;

/// Elements from one row of `tensor` to its next, where a row is contiguous.
fn row_stride(tensor: &Tensor) -> Option<i64> {
    let layout = tensor.layout();
    let mut width = 1;
    for (&dim, &stride) in layout.dims().iter().zip(layout.stride()).skip(1).rev() {
        if dim != 1 && stride != width {
            return None;
        }
        width *= dim;
    }
    // With one row the stride is never used, and may be anything.
    Some(if layout.dims()[0] <= 1 { width } else { layout.stride()[0] } as i64)
}

/// As [`row_stride`], where every row begins at a multiple of 16 bytes.
fn vector_stride(tensor: &Tensor) -> Option<i64> {
    let stride = row_stride(tensor)?;
    let starts = [tensor.layout().start_offset(), stride as usize];
    starts.iter().all(|at| is_vector(*at, tensor.dtype())).then_some(stride)
}

/// Whether an offset in elements is a multiple of 16 bytes.
fn is_vector(offset: usize, dtype: DType) -> bool {
    (offset * dtype.size_in_bytes()).is_multiple_of(VECTOR)
}

/// A vector of f32, contiguous.
fn is_plain(tensor: Option<&Tensor>) -> bool {
    tensor.is_none_or(|tensor| tensor.dtype() == DType::F32 && tensor.is_contiguous())
}
