//! The table of instructions: from an opcode with its modifiers and operands to what it does.
//!
//! An instruction that works on each lane for itself is a function from three registers to one. Every modifier must
//! be understood: one that is left over makes the instruction unknown.

use crate::float::{E4M3, E5M2, Fp8, Towards, flush, fma_towards};
use crate::parse::{Address, Kernel, Operand};
use crate::types::{Bits, Register, Space, Type};
use half::{bf16, f16};
use std::cmp::Ordering;

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

/// A function of typed operands as one of registers.
macro_rules! scalar {
    ($t:ty, ($($x:ident),*), $e:expr) => { scalar!(|$($x: $t),*| $e) };
    (|$a:ident: $A:ty| $e:expr) => {
        (|a: u64, _: u64, _: u64| { let $a = <$A as Bits>::of(a); Bits::bits($e) }) as Scalar
    };
    (|$a:ident: $A:ty, $b:ident: $B:ty| $e:expr) => {
        (|a: u64, b: u64, _: u64| { let ($a, $b) = (<$A as Bits>::of(a), <$B as Bits>::of(b)); Bits::bits($e) }) as Scalar
    };
    (|$a:ident: $A:ty, $b:ident: $B:ty, $c:ident: $C:ty| $e:expr) => {
        (|a: u64, b: u64, c: u64| {
            let ($a, $b, $c) = (<$A as Bits>::of(a), <$B as Bits>::of(b), <$C as Bits>::of(c));
            Bits::bits($e)
        }) as Scalar
    };
}

/// The same expression for each integer type that is named.
macro_rules! by_type {
    ($ty:expr, $types:tt, |$($x:ident),*| $e:expr) => { by_type!($ty, $types, ($($x),*), $e) };
    ($ty:expr, [$($name:ident = $int:ty),*], $operands:tt, $e:expr) => {
        match $ty { $(Type::$name => Some(scalar!($int, $operands, $e)),)* _ => None }
    };
}

macro_rules! integers {
    ($ty:expr, |$($x:ident),*| $e:expr) => {
        by_type!($ty, [U16 = u16, S16 = i16, U32 = u32, S32 = i32, U64 = u64, S64 = i64], |$($x),*| $e)
    };
}

macro_rules! bits {
    ($ty:expr, |$($x:ident),*| $e:expr) => {
        by_type!($ty, [Pred = bool, B16 = u16, B32 = u32, B64 = u64], |$($x),*| $e)
    };
}

/// An f32 operation, with its operands and its result flushed where the instruction says so.
macro_rules! f32_op {
    ($flush:expr, |$($x:ident),*| $e:expr) => {
        if $flush { scalar!(|$($x: f32),*| { $(let $x = flush($x);)* flush($e) }) } else { scalar!(|$($x: f32),*| $e) }
    };
}

/// The words behind an opcode, each to be understood once.
struct Words<'a> {
    opcode: &'a str,
    words: Vec<&'a str>,
    types: Vec<Type>,
}

impl<'a> Words<'a> {
    fn new(text: &'a str) -> Self {
        let mut parts = text.split('.');
        let opcode = parts.next().unwrap_or("");
        // `max.NaN` and the like are no types; `bf16` behind `mma` is.
        let (types, words): (Vec<_>, Vec<_>) = parts.partition(|word| Type::parse(word).is_some());
        Self { opcode, words, types: types.into_iter().filter_map(Type::parse).collect() }
    }

    fn take(&mut self, word: &str) -> bool {
        let before = self.words.len();
        self.words.retain(|known| *known != word);
        self.words.len() < before
    }

    fn one_of<T: Copy>(&mut self, known: &[(&str, T)]) -> Option<T> {
        known.iter().find_map(|(word, value)| self.take(word).then_some(*value))
    }
}

/// The operands of an instruction, asked for by kind.
struct Operands<'a> {
    kernel: &'a Kernel,
    operands: &'a [Operand],
}

impl Operands<'_> {
    fn register(&self, at: usize) -> Option<Register> {
        match self.operands.get(at)? {
            Operand::Register(register) => Some(*register),
            _ => None,
        }
    }

    /// The first `count` operands behind the result; the rest are register 0.
    fn sources<const N: usize>(&self, first: usize, count: usize) -> Option<[Register; N]> {
        let mut sources = [0; N];
        for (at, source) in sources.iter_mut().enumerate().take(count) {
            *source = self.register(first + at)?;
        }
        Some(sources)
    }

    fn address(&self, at: usize) -> Option<Address> {
        match self.operands.get(at)? {
            Operand::Address(address) => Some(*address),
            _ => None,
        }
    }

    /// A register or the registers of a vector, of which `_` is none.
    fn optional_vector(&self, at: usize) -> Option<Vec<Option<Register>>> {
        match self.operands.get(at)? {
            Operand::Vector(registers) => Some(registers.clone()),
            Operand::Register(register) => Some(vec![Some(*register)]),
            _ => None,
        }
    }

    fn vector(&self, at: usize) -> Option<Vec<Register>> {
        self.optional_vector(at)?.into_iter().collect()
    }

    fn constant(&self, at: usize) -> Option<u64> {
        self.kernel.constant(self.register(at)?)
    }

    fn len(&self) -> usize {
        self.operands.len()
    }
}

/// What an instruction does, or why it is not known.
pub(crate) fn decode(kernel: &Kernel, opcode: &str, operands: &[Operand]) -> Result<Op, String> {
    let mut words = Words::new(opcode);
    let operands = Operands { kernel, operands };
    let op = memory(&mut words, &operands)
        .or_else(|| warp(&mut words, &operands))
        .or_else(|| compare(&mut words, &operands))
        .or_else(|| moves(&mut words, &operands))
        .or_else(|| lanes(&mut words, &operands));
    match op {
        Some(_) if !words.words.is_empty() => Err(format!("unknown modifier .{}", words.words.join("."))),
        Some(op) => Ok(op),
        None => Err("unknown instruction".to_owned()),
    }
}

/// Instructions whose result depends on nothing but the lane's own registers.
fn lanes(words: &mut Words<'_>, operands: &Operands<'_>) -> Option<Op> {
    if words.opcode == "bfi" && words.types == [Type::B32] && operands.len() == 5 {
        return Some(Op::InsertBits { into: operands.register(0)?, from: operands.sources(1, 4)? });
    }
    let (compute, count, approximate) = match words.opcode {
        "cvt" => (convert(words)?, operands.len().checked_sub(1)?, false),
        _ => arithmetic(words)?,
    };
    if operands.len() != count + 1 {
        return None;
    }
    Some(Op::Lanes { compute, into: operands.register(0)?, from: operands.sources(1, count)?, approximate })
}

/// The function, its number of operands, and whether the hardware only approximates it.
fn arithmetic(words: &mut Words<'_>) -> Option<(Scalar, usize, bool)> {
    let ty = *words.types.first()?;
    let single = words.types.len() == 1;
    let flushed = words.take("ftz");
    let exact = |compute: Scalar, count: usize| Some((compute, count, false));
    let approximate = |compute: Scalar, count: usize| Some((compute, count, true));
    match (words.opcode, ty) {
        ("add", Type::F32) if words.take("rz") => {
            exact(f32_op!(flushed, |a, b| fma_towards(a, 1.0, b, Towards::Zero)), 2)
        }
        ("add", Type::F32) => {
            words.take("rn");
            exact(f32_op!(flushed, |a, b| a + b), 2)
        }
        ("sub", Type::F32) => {
            words.take("rn");
            exact(f32_op!(flushed, |a, b| a - b), 2)
        }
        ("mul", Type::F32) => {
            words.take("rn");
            exact(f32_op!(flushed, |a, b| a * b), 2)
        }
        ("fma", Type::F32) => {
            let towards = words.one_of(&[
                ("rn", None),
                ("rz", Some(Towards::Zero)),
                ("rm", Some(Towards::Down)),
                ("rp", Some(Towards::Up)),
            ])?;
            let compute = match towards {
                None => f32_op!(flushed, |a, b, c| a.mul_add(b, c)),
                Some(Towards::Zero) => f32_op!(flushed, |a, b, c| fma_towards(a, b, c, Towards::Zero)),
                Some(Towards::Down) => f32_op!(flushed, |a, b, c| fma_towards(a, b, c, Towards::Down)),
                Some(Towards::Up) => f32_op!(flushed, |a, b, c| fma_towards(a, b, c, Towards::Up)),
            };
            exact(compute, 3)
        }
        ("div", Type::F32) if words.take("rn") => exact(f32_op!(flushed, |a, b| a / b), 2),
        ("div", Type::F32) if words.take("full") || words.take("approx") => {
            approximate(f32_op!(flushed, |a, b| a / b), 2)
        }
        ("rcp", Type::F32) if words.take("rn") => exact(f32_op!(flushed, |a| 1.0 / a), 1),
        ("rcp", Type::F32) if words.take("approx") => approximate(f32_op!(flushed, |a| 1.0 / a), 1),
        ("sqrt", Type::F32) if words.take("rn") => exact(f32_op!(flushed, |a| a.sqrt()), 1),
        ("sqrt", Type::F32) if words.take("approx") => approximate(f32_op!(flushed, |a| a.sqrt()), 1),
        ("rsqrt", Type::F32) if words.take("approx") => {
            approximate(f32_op!(flushed, |a| (1.0 / f64::from(a).sqrt()) as f32), 1)
        }
        ("ex2", Type::F32) if words.take("approx") => approximate(f32_op!(flushed, |a| f64::from(a).exp2() as f32), 1),
        ("lg2", Type::F32) if words.take("approx") => approximate(f32_op!(flushed, |a| f64::from(a).log2() as f32), 1),
        ("tanh", Type::F32) if words.take("approx") => approximate(f32_op!(flushed, |a| f64::from(a).tanh() as f32), 1),
        // The sign of the first, on the second.
        ("copysign", Type::F32) => exact(scalar!(|a: f32, b: f32| b.copysign(a)), 2),
        ("neg", Type::F32) => exact(f32_op!(flushed, |a| -a), 1),
        ("abs", Type::F32) => exact(f32_op!(flushed, |a| a.abs()), 1),
        // A NaN loses to a number, unless the instruction says otherwise.
        ("max", Type::F32) if words.take("NaN") => {
            exact(f32_op!(flushed, |a, b| if a.is_nan() || b.is_nan() { f32::NAN } else { larger(a, b) }), 2)
        }
        ("min", Type::F32) if words.take("NaN") => {
            exact(f32_op!(flushed, |a, b| if a.is_nan() || b.is_nan() { f32::NAN } else { -larger(-a, -b) }), 2)
        }
        ("max", Type::F32) => exact(f32_op!(flushed, |a, b| larger(a, b)), 2),
        ("min", Type::F32) => exact(f32_op!(flushed, |a, b| -larger(-a, -b)), 2),
        _ if flushed || !single => None,
        ("add", _) => exact(integers!(ty, |a, b| a.wrapping_add(b))?, 2),
        ("sub", _) => exact(integers!(ty, |a, b| a.wrapping_sub(b))?, 2),
        ("mul", _) if words.take("lo") => exact(integers!(ty, |a, b| a.wrapping_mul(b))?, 2),
        ("mul", _) if words.take("hi") => exact(multiply_high(ty)?, 2),
        ("mul", _) if words.take("wide") => exact(multiply_wide(ty)?, 2),
        ("mad", _) if words.take("lo") => exact(integers!(ty, |a, b, c| a.wrapping_mul(b).wrapping_add(c))?, 3),
        ("mad", _) if words.take("wide") => exact(multiply_wide_add(ty)?, 3),
        // Division by 0 has no stated result.
        ("div", _) => exact(integers!(ty, |a, b| if b == 0 { !0 } else { a.wrapping_div(b) })?, 2),
        ("rem", _) => exact(integers!(ty, |a, b| if b == 0 { a } else { a.wrapping_rem(b) })?, 2),
        ("neg", _) => {
            let signed = by_type!(ty, [S16 = i16, S32 = i32, S64 = i64], |a| a.wrapping_neg())?;
            exact(signed, 1)
        }
        ("abs", _) => exact(by_type!(ty, [S16 = i16, S32 = i32, S64 = i64], |a| a.wrapping_abs())?, 1),
        ("max", _) => exact(integers!(ty, |a, b| a.max(b))?, 2),
        ("min", _) => exact(integers!(ty, |a, b| a.min(b))?, 2),
        ("and", _) => exact(bits!(ty, |a, b| a & b)?, 2),
        ("or", _) => exact(bits!(ty, |a, b| a | b)?, 2),
        ("xor", _) => exact(bits!(ty, |a, b| a ^ b)?, 2),
        ("not", _) => exact(bits!(ty, |a| !a)?, 1),
        ("shl" | "shr", _) => exact(shift(words.opcode, ty)?, 2),
        ("shf", Type::B32) => {
            let left = words.one_of(&[("l", true), ("r", false)])?;
            let wraps = words.one_of(&[("wrap", true), ("clamp", false)])?;
            let compute = match (left, wraps) {
                (true, true) => scalar!(|low: u32, high: u32, by: u32| funnel_left(low, high, by % 32)),
                (true, false) => scalar!(|low: u32, high: u32, by: u32| funnel_left(low, high, by.min(32))),
                (false, true) => scalar!(|low: u32, high: u32, by: u32| funnel_right(low, high, by % 32)),
                (false, false) => scalar!(|low: u32, high: u32, by: u32| funnel_right(low, high, by.min(32))),
            };
            exact(compute, 3)
        }
        ("bfe", Type::U32) => exact(scalar!(|a: u32, from: u32, len: u32| extract_bits(a, from, len)), 3),
        ("prmt", Type::B32) => exact(scalar!(|low: u32, high: u32, pick: u32| permute_bytes(low, high, pick)), 3),
        ("popc", Type::B32) => exact(scalar!(|a: u32| a.count_ones()), 1),
        ("popc", Type::B64) => exact(scalar!(|a: u64| a.count_ones()), 1),
        ("clz", Type::B32) => exact(scalar!(|a: u32| a.leading_zeros()), 1),
        ("brev", Type::B32) => exact(scalar!(|a: u32| a.reverse_bits()), 1),
        ("selp", _) => {
            let numbers = scalar!(|a: u64, b: u64, take: bool| if take { a } else { b });
            exact(numbers, 3)
        }
        ("cvta", Type::U64) => {
            let to = words.take("to");
            exact(address_of_space(words, to)?, 1)
        }
        _ => None,
    }
}

/// Generic addresses of shared memory begin here, beyond all buffers.
pub(crate) const SHARED_WINDOW: u64 = 1 << 62;

fn address_of_space(words: &mut Words<'_>, to: bool) -> Option<Scalar> {
    match (words.one_of(&[("global", false), ("shared", true)])?, to) {
        (false, _) => Some(scalar!(|a: u64| a)),
        (true, true) => Some(scalar!(|a: u64| a.wrapping_sub(SHARED_WINDOW))),
        (true, false) => Some(scalar!(|a: u64| a.wrapping_add(SHARED_WINDOW))),
    }
}

fn larger(a: f32, b: f32) -> f32 {
    match (a.is_nan(), b.is_nan()) {
        (true, _) => b,
        (_, true) => a,
        // +0 is larger than -0.
        _ if a == b => {
            if a.is_sign_positive() {
                a
            } else {
                b
            }
        }
        _ => {
            if a > b {
                a
            } else {
                b
            }
        }
    }
}

fn multiply_high(ty: Type) -> Option<Scalar> {
    Some(match ty {
        Type::U32 => scalar!(|a: u32, b: u32| ((u64::from(a) * u64::from(b)) >> 32) as u32),
        Type::S32 => scalar!(|a: i32, b: i32| ((i64::from(a) * i64::from(b)) >> 32) as i32),
        Type::U64 => scalar!(|a: u64, b: u64| ((u128::from(a) * u128::from(b)) >> 64) as u64),
        Type::S64 => scalar!(|a: i64, b: i64| ((i128::from(a) * i128::from(b)) >> 64) as i64),
        _ => return None,
    })
}

fn multiply_wide(ty: Type) -> Option<Scalar> {
    Some(match ty {
        Type::U16 => scalar!(|a: u16, b: u16| u32::from(a) * u32::from(b)),
        Type::S16 => scalar!(|a: i16, b: i16| i32::from(a) * i32::from(b)),
        Type::U32 => scalar!(|a: u32, b: u32| u64::from(a) * u64::from(b)),
        Type::S32 => scalar!(|a: i32, b: i32| i64::from(a) * i64::from(b)),
        _ => return None,
    })
}

fn multiply_wide_add(ty: Type) -> Option<Scalar> {
    Some(match ty {
        Type::U16 => scalar!(|a: u16, b: u16, c: u32| (u32::from(a) * u32::from(b)).wrapping_add(c)),
        Type::S16 => scalar!(|a: i16, b: i16, c: i32| (i32::from(a) * i32::from(b)).wrapping_add(c)),
        Type::U32 => scalar!(|a: u32, b: u32, c: u64| (u64::from(a) * u64::from(b)).wrapping_add(c)),
        Type::S32 => scalar!(|a: i32, b: i32, c: i64| (i64::from(a) * i64::from(b)).wrapping_add(c)),
        _ => return None,
    })
}

/// Shifts by the width or more give what shifting bit by bit would.
fn shift(opcode: &str, ty: Type) -> Option<Scalar> {
    Some(match (opcode, ty) {
        ("shl", Type::B16) => scalar!(|a: u16, by: u32| a.checked_shl(by).unwrap_or(0)),
        ("shl", Type::B32) => scalar!(|a: u32, by: u32| a.checked_shl(by).unwrap_or(0)),
        ("shl", Type::B64) => scalar!(|a: u64, by: u32| a.checked_shl(by).unwrap_or(0)),
        ("shr", Type::B16 | Type::U16) => scalar!(|a: u16, by: u32| a.checked_shr(by).unwrap_or(0)),
        ("shr", Type::B32 | Type::U32) => scalar!(|a: u32, by: u32| a.checked_shr(by).unwrap_or(0)),
        ("shr", Type::B64 | Type::U64) => scalar!(|a: u64, by: u32| a.checked_shr(by).unwrap_or(0)),
        ("shr", Type::S16) => scalar!(|a: i16, by: u32| a >> by.min(15)),
        ("shr", Type::S32) => scalar!(|a: i32, by: u32| a >> by.min(31)),
        ("shr", Type::S64) => scalar!(|a: i64, by: u32| a >> by.min(63)),
        _ => return None,
    })
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

fn funnel_left(low: u32, high: u32, by: u32) -> u32 {
    ((pair(low, high) << by) >> 32) as u32
}

fn funnel_right(low: u32, high: u32, by: u32) -> u32 {
    (pair(low, high) >> by) as u32
}

fn extract_bits(a: u32, from: u32, len: u32) -> u32 {
    let (from, len) = (from & 255, len & 255);
    a.checked_shr(from).unwrap_or(0) & 1u32.checked_shl(len).map_or(u32::MAX, |bit| bit - 1)
}

pub(crate) fn insert_bits(a: u32, b: u32, from: u32, len: u32) -> u32 {
    let (from, len) = (from & 255, len & 255);
    let field = 1u32.checked_shl(len).map_or(u32::MAX, |bit| bit - 1).checked_shl(from).unwrap_or(0);
    (b & !field) | (a.checked_shl(from).unwrap_or(0) & field)
}

/// Each digit of `pick` names a byte of the pair; its top bit asks for that byte's sign instead.
fn permute_bytes(low: u32, high: u32, pick: u32) -> u32 {
    let bytes = pair(low, high).to_le_bytes();
    let picked = |at: u32| {
        let digit = pick >> (4 * at) & 15;
        let byte = bytes[(digit & 7) as usize];
        if digit & 8 == 0 { byte } else { 0u8.wrapping_sub(byte >> 7) }
    };
    u32::from_le_bytes([picked(0), picked(1), picked(2), picked(3)])
}

/// `cvt`: the first type is the result's.
fn convert(words: &mut Words<'_>) -> Option<Scalar> {
    let &[to, from] = words.types.as_slice() else { return None };
    let flushed = words.take("ftz");
    if let Some(compute) = convert_integers(to, from) {
        return (!flushed).then_some(compute);
    }
    match (to, from) {
        (Type::F32, Type::F32) if words.take("sat") => {
            // NaN becomes 0.
            return Some(f32_op!(flushed, |a| if a > 0.0 { a.min(1.0) } else { 0.0 }));
        }
        (Type::F32, Type::F32) => return round_f32(words, flushed),
        (Type::F32, Type::F16) if !flushed => return Some(scalar!(|a: f16| a.to_f32())),
        (Type::F32, Type::Bf16) if !flushed => return Some(scalar!(|a: bf16| a.to_f32())),
        (Type::F64, Type::F32) if !flushed => return Some(scalar!(|a: f32| f64::from(a))),
        (_, Type::F32) if to.signed() || matches!(to, Type::U32 | Type::U64 | Type::U16 | Type::U8) => {
            return f32_to_integer(words, to, flushed);
        }
        _ => {}
    }
    if flushed {
        return None;
    }
    // All others round to nearest, with ties to even.
    if !words.take("rn") {
        return None;
    }
    Some(match (to, from) {
        (Type::F16, Type::F32) => scalar!(|a: f32| f16::from_f32(a)),
        (Type::Bf16, Type::F32) => scalar!(|a: f32| bf16::from_f32(a)),
        // The first operand is the upper half.
        (Type::F16x2, Type::F32) => {
            scalar!(|high: f32, low: f32| halves(f16::from_f32(low).to_bits(), f16::from_f32(high).to_bits()))
        }
        (Type::Bf16x2, Type::F32) => {
            scalar!(|high: f32, low: f32| halves(bf16::from_f32(low).to_bits(), bf16::from_f32(high).to_bits()))
        }
        (Type::E4m3x2, Type::F32) if words.take("satfinite") => scalar!(|high: f32, low: f32| bytes(E4M3, low, high)),
        (Type::E5m2x2, Type::F32) if words.take("satfinite") => scalar!(|high: f32, low: f32| bytes(E5M2, low, high)),
        (Type::F16x2, Type::E4m3x2) => scalar!(|codes: u16| from_bytes(E4M3, codes)),
        (Type::F16x2, Type::E5m2x2) => scalar!(|codes: u16| from_bytes(E5M2, codes)),
        (Type::F32, Type::F64) => scalar!(|a: f64| a as f32),
        (Type::F32, Type::S32) => scalar!(|a: i32| a as f32),
        (Type::F32, Type::U32) => scalar!(|a: u32| a as f32),
        (Type::F32, Type::S64) => scalar!(|a: i64| a as f32),
        (Type::F32, Type::U64) => scalar!(|a: u64| a as f32),
        (Type::F32, Type::U16) => scalar!(|a: u16| f32::from(a)),
        _ => return None,
    })
}

fn halves(low: u16, high: u16) -> u32 {
    u32::from(high) << 16 | u32::from(low)
}

fn bytes(format: Fp8, low: f32, high: f32) -> u16 {
    u16::from_le_bytes([format.encode(low), format.encode(high)])
}

fn from_bytes(format: Fp8, codes: u16) -> u32 {
    let [low, high] = codes.to_le_bytes().map(|code| f16::from_f32(format.decode(code)).to_bits());
    halves(low, high)
}

fn round_f32(words: &mut Words<'_>, flushed: bool) -> Option<Scalar> {
    Some(match words.one_of(&[("rni", 0), ("rzi", 1), ("rmi", 2), ("rpi", 3)]) {
        Some(0) => f32_op!(flushed, |a| a.round_ties_even()),
        Some(1) => f32_op!(flushed, |a| a.trunc()),
        Some(2) => f32_op!(flushed, |a| a.floor()),
        Some(_) => f32_op!(flushed, |a| a.ceil()),
        None => return None,
    })
}

/// Values beyond the range become the nearest of it, NaN becomes 0: as Rust's `as`.
fn f32_to_integer(words: &mut Words<'_>, to: Type, flushed: bool) -> Option<Scalar> {
    macro_rules! rounded {
        ($int:ty) => {
            match words.one_of(&[("rni", 0), ("rzi", 1), ("rmi", 2), ("rpi", 3)])? {
                0 => scalar!(|a: f32| a.round_ties_even() as $int),
                1 => scalar!(|a: f32| a as $int),
                2 => scalar!(|a: f32| a.floor() as $int),
                _ => scalar!(|a: f32| a.ceil() as $int),
            }
        };
    }
    // A subnormal only matters to a rounding away from 0.
    if flushed && !words.words.iter().any(|word| matches!(*word, "rni" | "rzi")) {
        return None;
    }
    Some(match to {
        Type::S32 => rounded!(i32),
        Type::U32 => rounded!(u32),
        Type::S64 => rounded!(i64),
        Type::U64 => rounded!(u64),
        _ => return None,
    })
}

/// Extends by the sign of the source, then truncates to the result.
fn convert_integers(to: Type, from: Type) -> Option<Scalar> {
    macro_rules! from_type {
        ($source:ty) => {
            match to {
                Type::U8 => scalar!(|a: $source| a as u8),
                Type::S8 => scalar!(|a: $source| i64::from(a as i8)),
                Type::U16 => scalar!(|a: $source| a as u16),
                Type::S16 => scalar!(|a: $source| i64::from(a as i16)),
                Type::U32 => scalar!(|a: $source| a as u32),
                Type::S32 => scalar!(|a: $source| i64::from(a as i32)),
                Type::U64 => scalar!(|a: $source| a as u64),
                Type::S64 => scalar!(|a: $source| a as i64),
                _ => return None,
            }
        };
    }
    Some(match from {
        Type::U8 => from_type!(u8),
        Type::S8 => from_type!(i8),
        Type::U16 => from_type!(u16),
        Type::S16 => from_type!(i16),
        Type::U32 => from_type!(u32),
        Type::S32 => from_type!(i32),
        Type::U64 => from_type!(u64),
        Type::S64 => from_type!(i64),
        _ => return None,
    })
}

/// `setp`.
fn compare(words: &mut Words<'_>, operands: &Operands<'_>) -> Option<Op> {
    if words.opcode != "setp" {
        return None;
    }
    let ty = *words.types.first()?;
    let flushed = words.take("ftz");
    let join: Option<fn(bool, bool) -> bool> =
        words.one_of(&[("and", (|a, b| a & b) as fn(bool, bool) -> bool), ("or", |a, b| a | b), ("xor", |a, b| a ^ b)]);
    let [comparison] = words.words.as_slice() else { return None };
    let compute = if ty == Type::F32 { compare_f32(comparison, flushed)? } else { compare_integers(comparison, ty)? };
    if flushed && ty != Type::F32 {
        return None;
    }
    words.words.clear();
    let (into, complement) = match operands.operands.first()? {
        Operand::Register(into) => (*into, None),
        Operand::Pair(into, complement) => (*into, Some(*complement)),
        _ => return None,
    };
    let with = match join {
        Some(join) => Some(With { join, predicate: operands.register(3)? }),
        None => None,
    };
    Some(Op::Compare { compute, into, complement, from: operands.sources(1, 2)?, with })
}

fn compare_integers(comparison: &str, ty: Type) -> Option<Scalar> {
    macro_rules! compare {
        (|$a:ident, $b:ident| $e:expr) => {
            by_type!(
                ty,
                [U16 = u16, S16 = i16, U32 = u32, S32 = i32, U64 = u64, S64 = i64, B16 = u16, B32 = u32, B64 = u64],
                |$a, $b| $e
            )
        };
    }
    match comparison {
        "eq" => compare!(|a, b| a == b),
        "ne" => compare!(|a, b| a != b),
        "lt" | "lo" => compare!(|a, b| a < b),
        "le" | "ls" => compare!(|a, b| a <= b),
        "gt" | "hi" => compare!(|a, b| a > b),
        "ge" | "hs" => compare!(|a, b| a >= b),
        _ => None,
    }
}

/// A comparison with NaN has no order: it is false, and true for those with a `u`.
fn compare_f32(comparison: &str, flushed: bool) -> Option<Scalar> {
    macro_rules! compare {
        (|$order:ident| $e:expr) => {
            if flushed {
                scalar!(|a: f32, b: f32| {
                    let $order = flush(a).partial_cmp(&flush(b));
                    $e
                })
            } else {
                scalar!(|a: f32, b: f32| {
                    let $order = a.partial_cmp(&b);
                    $e
                })
            }
        };
    }
    Some(match comparison {
        "eq" => compare!(|order| order.is_some_and(Ordering::is_eq)),
        "ne" => compare!(|order| order.is_some_and(Ordering::is_ne)),
        "lt" => compare!(|order| order.is_some_and(Ordering::is_lt)),
        "le" => compare!(|order| order.is_some_and(Ordering::is_le)),
        "gt" => compare!(|order| order.is_some_and(Ordering::is_gt)),
        "ge" => compare!(|order| order.is_some_and(Ordering::is_ge)),
        "equ" => compare!(|order| order.is_none_or(Ordering::is_eq)),
        "neu" => compare!(|order| order.is_none_or(Ordering::is_ne)),
        "ltu" => compare!(|order| order.is_none_or(Ordering::is_lt)),
        "leu" => compare!(|order| order.is_none_or(Ordering::is_le)),
        "gtu" => compare!(|order| order.is_none_or(Ordering::is_gt)),
        "geu" => compare!(|order| order.is_none_or(Ordering::is_ge)),
        "num" => compare!(|order| order.is_some()),
        "nan" => compare!(|order| order.is_none()),
        _ => return None,
    })
}

/// `mov`, also from and to the parts of a register.
fn moves(words: &mut Words<'_>, operands: &Operands<'_>) -> Option<Op> {
    if words.opcode != "mov" || operands.len() != 2 {
        return None;
    }
    let bits = words.types.first()?.bits();
    match (&operands.operands[0], &operands.operands[1]) {
        (Operand::Vector(into), Operand::Register(from)) => {
            Some(Op::Split { into: into.clone(), from: *from, bits: bits / into.len() as u32 })
        }
        (Operand::Register(into), Operand::Vector(from)) => {
            let from: Vec<Register> = from.iter().copied().collect::<Option<_>>()?;
            Some(Op::Join { into: *into, bits: bits / from.len() as u32, from })
        }
        (Operand::Register(into), Operand::Register(from)) => {
            let compute = scalar!(|a: u64| a);
            Some(Op::Lanes { compute, into: *into, from: [*from, 0, 0], approximate: false })
        }
        _ => None,
    }
}

/// Loads, stores, atomics, asynchronous copies.
fn memory(words: &mut Words<'_>, operands: &Operands<'_>) -> Option<Op> {
    let opcode = words.opcode;
    match opcode {
        "ld" => {
            let space = space(words);
            cache_hints(words);
            let ty = *words.types.first()?;
            Some(Op::Load { space, ty, into: operands.optional_vector(0)?, address: operands.address(1)? })
        }
        "st" => {
            let space = space(words);
            cache_hints(words);
            let ty = *words.types.first()?;
            Some(Op::Store { space, ty, from: operands.vector(1)?, address: operands.address(0)? })
        }
        "atom" | "red" => {
            let space = space(words);
            // Of the orders there are, the weakest is all that is relied on.
            words.take("relaxed");
            words.take("gpu");
            words.take("cta");
            let ty = *words.types.first()?;
            let combine = atomic(words, ty)?;
            let first = usize::from(words.opcode == "atom");
            let into = (first == 1).then(|| operands.register(0)).flatten();
            let other = operands.register(first + 2).unwrap_or(0);
            let from = [operands.register(first + 1)?, other];
            Some(Op::Atomic { space, combine, into, address: operands.address(first)?, from })
        }
        "cp" if words.take("async") => {
            if words.take("commit_group") {
                return Some(Op::CopyCommit);
            }
            if words.take("wait_group") {
                return Some(Op::CopyWait(operands.constant(0)? as usize));
            }
            if words.take("wait_all") {
                return Some(Op::CopyWait(0));
            }
            let known =
                words.one_of(&[("cg", true), ("ca", false)]).is_some() && words.take("shared") && words.take("global");
            words.take("L2::128B");
            known.then_some(())?;
            let source_bytes = if operands.len() > 3 { Some(operands.register(3)?) } else { None };
            let bytes = operands.constant(2)? as usize;
            let (to, from) = (operands.address(0)?, operands.address(1)?);
            Some(Op::CopyAsync { to, from, bytes, source_bytes })
        }
        "membar" | "fence" => {
            words.words.clear();
            Some(Op::Nothing)
        }
        _ => None,
    }
}

fn space(words: &mut Words<'_>) -> Space {
    words
        .one_of(&[("global", Space::Global), ("shared", Space::Shared), ("param", Space::Param)])
        .unwrap_or(Space::Generic)
}

/// Words that choose caches and vectors, and change no value.
fn cache_hints(words: &mut Words<'_>) {
    for hint in ["nc", "cs", "cg", "ca", "lu", "cv", "wb", "wt", "L1::no_allocate", "L2::128B", "L2::256B", "v2", "v4"]
    {
        words.take(hint);
    }
}

/// From the old value, the operand and, for `cas`, the second operand to the new value.
fn atomic(words: &mut Words<'_>, ty: Type) -> Option<Scalar> {
    Some(match ty {
        Type::F32 if words.take("add") => scalar!(|old: f32, a: f32| old + a),
        Type::U32 | Type::S32 if words.take("add") => scalar!(|old: u32, a: u32| old.wrapping_add(a)),
        Type::U32 if words.take("max") => scalar!(|old: u32, a: u32| old.max(a)),
        Type::S32 if words.take("max") => scalar!(|old: i32, a: i32| old.max(a)),
        Type::U32 if words.take("min") => scalar!(|old: u32, a: u32| old.min(a)),
        Type::S32 if words.take("min") => scalar!(|old: i32, a: i32| old.min(a)),
        Type::B32 if words.take("exch") => scalar!(|_old: u32, a: u32| a),
        Type::B32 if words.take("and") => scalar!(|old: u32, a: u32| old & a),
        Type::B32 if words.take("or") => scalar!(|old: u32, a: u32| old | a),
        Type::B32 if words.take("cas") => scalar!(|old: u32, a: u32, b: u32| if old == a { b } else { old }),
        _ => return None,
    })
}

/// Instructions that the lanes of a warp execute together, and those that steer.
fn warp(words: &mut Words<'_>, operands: &Operands<'_>) -> Option<Op> {
    let opcode = words.opcode;
    match opcode {
        "bra" => {
            words.take("uni");
            match operands.operands.first()? {
                Operand::Label(target) => Some(Op::Branch(*target)),
                _ => None,
            }
        }
        "ret" | "exit" => {
            words.take("uni");
            Some(Op::Exit)
        }
        "bar" if words.take("warp") => {
            words.take("sync").then_some(())?;
            Some(Op::WarpBarrier(operands.register(0)?))
        }
        // Barrier 0, which all threads of the block reach.
        "bar" | "barrier" if words.take("sync") => {
            words.take("cta");
            (operands.len() == 1 && operands.constant(0)? == 0).then_some(Op::BlockBarrier)
        }
        "shfl" => {
            words.take("sync").then_some(())?;
            let mode = words.one_of(&[
                ("idx", Shuffle::Index),
                ("up", Shuffle::Up),
                ("down", Shuffle::Down),
                ("bfly", Shuffle::Butterfly),
            ])?;
            let (into, found) = match operands.operands.first()? {
                Operand::Register(into) => (*into, None),
                Operand::Pair(into, found) => (*into, Some(*found)),
                _ => return None,
            };
            Some(Op::Shuffle { mode, into, found, from: operands.sources(1, 3)?, members: operands.register(4)? })
        }
        "vote" => {
            words.take("sync").then_some(())?;
            let vote = words.one_of(&[("ballot", Vote::Ballot), ("any", Vote::Any), ("all", Vote::All)])?;
            let (from, members) = (operands.register(1)?, operands.register(2)?);
            Some(Op::Vote { vote, into: operands.register(0)?, from, members })
        }
        "ldmatrix" => {
            let known = words.take("sync") && words.take("aligned") && words.take("m8n8") && words.take("shared");
            known.then_some(())?;
            let into = operands.vector(0)?;
            words.take(&format!("x{}", into.len())).then_some(())?;
            Some(Op::LoadMatrix { into, address: operands.address(1)?, transposed: words.take("trans") })
        }
        "mma" => {
            let known = ["sync", "aligned", "m16n8k16", "row", "col"].iter().all(|word| words.take(word));
            let float = match words.types.as_slice() {
                [Type::F32, Type::Bf16, Type::Bf16, Type::F32] => HalfFloat::Bf16,
                [Type::F32, Type::F16, Type::F16, Type::F32] => HalfFloat::F16,
                _ => return None,
            };
            let (d, a, b, c) = (operands.vector(0)?, operands.vector(1)?, operands.vector(2)?, operands.vector(3)?);
            let sizes = (d.len(), a.len(), b.len(), c.len()) == (4, 4, 2, 4);
            (known && sizes).then_some(Op::Multiply { float, d, a, b, c })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
