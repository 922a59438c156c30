//! A kernel, decoded.

use crate::op::Op;
use crate::types::Register;

/// One kernel, decoded.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Its name.
    pub name: String,
    /// Bytes of its parameters, padding included.
    pub param_bytes: usize,
    /// Bytes of shared memory that it declares.
    pub shared_bytes: usize,
    /// The most threads of a block, where it states them.
    pub max_threads: Option<u32>,
    pub(crate) code: Vec<Instruction>,
    /// The width of each register in bits.
    pub(crate) widths: Vec<u32>,
    /// Registers that hold the literals of the code.
    pub(crate) constants: Vec<(Register, u64)>,
    pub(crate) specials: Vec<(Special, Register)>,
}

/// A register that the machine fills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Special {
    Thread(usize),
    ThreadCount(usize),
    Block(usize),
    BlockCount(usize),
    Lane,
}

/// One instruction and where it comes from.
#[derive(Clone, Debug)]
pub(crate) struct Instruction {
    pub(crate) guard: Option<Guard>,
    pub(crate) op: Op,
    pub(crate) line: u32,
    /// File and line of the source, and of the call that brought it in where it was inlined.
    pub(crate) source: String,
    pub(crate) text: String,
    /// Registers that the instruction reads.
    pub(crate) reads: Vec<Register>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Guard {
    pub(crate) predicate: Register,
    pub(crate) negated: bool,
}

impl Kernel {
    /// The value of a register that holds a literal.
    pub(crate) fn constant(&self, register: Register) -> Option<u64> {
        self.constants.iter().find(|(known, _)| *known == register).map(|(_, value)| *value)
    }
}
