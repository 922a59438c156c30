//! What was found wrong, once for each kind and line.

use std::fmt;

/// A kind of mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// Outside of every buffer, or of shared memory.
    OutOfBounds,
    /// Not aligned to the size of the access.
    Misaligned,
    /// A read of what nobody wrote.
    Uninitialised,
    /// A write to a buffer that is only read.
    ReadOnly,
    /// Two threads at the same bytes, one of them writing, and nothing that orders them.
    Race,
    /// Use of memory to which an asynchronous copy is under way.
    InFlight,
    /// A barrier of the block that part of a warp does not reach.
    BarrierDivergence,
    /// Lanes that wait for lanes that never come.
    Deadlock,
    /// An instruction of the whole warp that part of it executes, or a shuffle from a lane that takes no part.
    Unconverged,
}

/// A mistake and where it is.
#[derive(Clone, Debug)]
pub struct Report {
    /// What kind of mistake.
    pub fault: Fault,
    /// Line of the PTX text.
    pub line: u32,
    /// File and line of the source, and of the call that brought it in.
    pub source: String,
    /// The instruction.
    pub instruction: String,
    /// Block of the first occurrence.
    pub block: [u32; 3],
    /// Thread of the first occurrence.
    pub thread: u32,
    /// The first occurrence in words.
    pub what: String,
    /// Occurrences.
    pub count: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fault, line, source, instruction, block, thread, what, count } = self;
        write!(
            f,
            "{source}: {fault:?}, {count} times, first by thread {thread} of block {block:?}: {what} \
             (PTX line {line}: {instruction})"
        )
    }
}
