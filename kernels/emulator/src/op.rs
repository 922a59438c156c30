//! What a decoded instruction does.

use crate::types::{Address, Register, Space, Type};

/// What one lane computes; operands that the instruction does not have are register 0.
pub(crate) type Scalar = fn(u64, u64, u64) -> u64;

/// A decoded instruction.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    /// `approximate`: real hardware may differ in the last bits.
    Lanes {
        compute: Scalar,
        into: Register,
        from: [Register; 3],
        approximate: bool,
    },
    Compare {
        compute: Scalar,
        into: Register,
        complement: Option<Register>,
        from: [Register; 2],
        with: Option<With>,
    },
    /// The low bits of the first placed into the second: from where, and how many.
    InsertBits {
        into: Register,
        from: [Register; 4],
    },
    /// Parts of `bits` bits each, the first the lowest.
    Split {
        into: Vec<Option<Register>>,
        from: Register,
        bits: u32,
    },
    Join {
        into: Register,
        from: Vec<Register>,
        bits: u32,
    },
    Load {
        space: Space,
        ty: Type,
        into: Vec<Option<Register>>,
        address: Address,
    },
    Store {
        space: Space,
        ty: Type,
        from: Vec<Register>,
        address: Address,
    },
    Atomic {
        space: Space,
        combine: Scalar,
        into: Option<Register>,
        address: Address,
        from: [Register; 2],
    },
    CopyAsync {
        to: Address,
        from: Address,
        bytes: usize,
        source_bytes: Option<Register>,
    },
    CopyCommit,
    /// Until at most so many groups are open.
    CopyWait(usize),
    LoadMatrix {
        into: Vec<Register>,
        address: Address,
        transposed: bool,
    },
    /// `[16, 16] x [16, 8]` with sums in f32.
    Multiply {
        float: HalfFloat,
        d: Vec<Register>,
        a: Vec<Register>,
        b: Vec<Register>,
        c: Vec<Register>,
    },
    Shuffle {
        mode: Shuffle,
        into: Register,
        found: Option<Register>,
        from: [Register; 3],
        members: Register,
    },
    Vote {
        vote: Vote,
        into: Register,
        from: Register,
        members: Register,
    },
    Branch(usize),
    Exit,
    BlockBarrier,
    WarpBarrier(Register),
    /// A fence, which orders nothing that the emulator reorders; what a removed synchronisation becomes.
    Nothing,
}

/// How a comparison joins another predicate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct With {
    pub(crate) join: fn(bool, bool) -> bool,
    pub(crate) predicate: Register,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HalfFloat {
    F16,
    Bf16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shuffle {
    Index,
    Up,
    Down,
    Butterfly,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vote {
    Ballot,
    Any,
    All,
}

impl Op {
    /// Registers whose values the instruction needs.
    pub(crate) fn reads(&self) -> Vec<Register> {
        let mut reads = Vec::new();
        let address = |reads: &mut Vec<Register>, address: &Address| reads.extend(address.base);
        match self {
            Self::Lanes { from, .. } => reads.extend(from),
            Self::Compare { from, with, .. } => {
                reads.extend(from);
                reads.extend(with.map(|with| with.predicate));
            }
            Self::InsertBits { from, .. } => reads.extend(from),
            Self::Split { from, .. } | Self::Vote { from, .. } => reads.push(*from),
            Self::Join { from, .. } => reads.extend(from),
            Self::Load { address: at, .. } | Self::LoadMatrix { address: at, .. } => address(&mut reads, at),
            Self::Store { from, address: at, .. } => {
                reads.extend(from);
                address(&mut reads, at);
            }
            Self::Atomic { from, address: at, .. } => {
                reads.extend(from);
                address(&mut reads, at);
            }
            Self::CopyAsync { to, from, source_bytes, .. } => {
                address(&mut reads, to);
                address(&mut reads, from);
                reads.extend(source_bytes);
            }
            Self::Multiply { a, b, c, .. } => [a, b, c].into_iter().for_each(|part| reads.extend(part)),
            Self::Shuffle { from, .. } => reads.extend(from),
            Self::CopyCommit
            | Self::CopyWait(_)
            | Self::Branch(_)
            | Self::Exit
            | Self::BlockBarrier
            | Self::WarpBarrier(_)
            | Self::Nothing => {}
        }
        reads
    }

    /// Whether the instruction orders memory accesses: those that a proof removes one by one.
    pub(crate) fn synchronises(&self) -> bool {
        matches!(self, Self::BlockBarrier | Self::WarpBarrier(_) | Self::CopyCommit | Self::CopyWait(_))
    }
}
