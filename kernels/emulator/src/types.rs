//! The types, spaces and registers of PTX, and how a Rust value lies in a register.

use half::{bf16, f16};

/// A type as instructions name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    Pred,
    B8,
    U8,
    S8,
    B16,
    U16,
    S16,
    B32,
    U32,
    S32,
    B64,
    U64,
    S64,
    F16,
    Bf16,
    F16x2,
    Bf16x2,
    F32,
    F64,
    E4m3x2,
    E5m2x2,
}

impl Type {
    pub(crate) fn parse(word: &str) -> Option<Self> {
        Some(match word {
            "pred" => Self::Pred,
            "b8" => Self::B8,
            "u8" => Self::U8,
            "s8" => Self::S8,
            "b16" => Self::B16,
            "u16" => Self::U16,
            "s16" => Self::S16,
            "b32" => Self::B32,
            "u32" => Self::U32,
            "s32" => Self::S32,
            "b64" => Self::B64,
            "u64" => Self::U64,
            "s64" => Self::S64,
            "f16" => Self::F16,
            "bf16" => Self::Bf16,
            "f16x2" => Self::F16x2,
            "bf16x2" => Self::Bf16x2,
            "f32" => Self::F32,
            "f64" => Self::F64,
            "e4m3x2" => Self::E4m3x2,
            "e5m2x2" => Self::E5m2x2,
            _ => return None,
        })
    }

    pub(crate) fn bits(self) -> u32 {
        match self {
            Self::Pred => 1,
            Self::B8 | Self::U8 | Self::S8 => 8,
            Self::B16 | Self::U16 | Self::S16 | Self::F16 | Self::Bf16 | Self::E4m3x2 | Self::E5m2x2 => 16,
            Self::B32 | Self::U32 | Self::S32 | Self::F32 | Self::F16x2 | Self::Bf16x2 => 32,
            Self::B64 | Self::U64 | Self::S64 | Self::F64 => 64,
        }
    }

    pub(crate) fn bytes(self) -> usize {
        self.bits() as usize / 8
    }

    pub(crate) fn signed(self) -> bool {
        matches!(self, Self::S8 | Self::S16 | Self::S32 | Self::S64)
    }
}

/// Where an address points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Generic,
    Global,
    Shared,
    Param,
}

/// A register of any width; predicates, numbers and constants lie in one bank. Each lane has 64 bits for each of
/// them, of which those above the register's width are 0.
pub(crate) type Register = usize;

/// The low `bits` bits of a register.
pub(crate) fn mask(bits: u32) -> u64 {
    if bits >= 64 { u64::MAX } else { (1 << bits) - 1 }
}

/// A Rust value as the bits of a register.
pub(crate) trait Bits: Sized {
    fn of(bits: u64) -> Self;
    fn bits(self) -> u64;
}

macro_rules! integers {
    ($($int:ty as $unsigned:ty),*) => {$(
        impl Bits for $int {
            fn of(bits: u64) -> Self { bits as Self }
            fn bits(self) -> u64 { u64::from(self as $unsigned) }
        }
    )*};
}
integers!(u8 as u8, i8 as u8, u16 as u16, i16 as u16, u32 as u32, i32 as u32, u64 as u64, i64 as u64);

macro_rules! floats {
    ($($float:ty as $unsigned:ty),*) => {$(
        impl Bits for $float {
            fn of(bits: u64) -> Self { Self::from_bits(bits as $unsigned) }
            fn bits(self) -> u64 { u64::from(self.to_bits()) }
        }
    )*};
}
floats!(f16 as u16, bf16 as u16, f32 as u32, f64 as u64);

impl Bits for bool {
    fn of(bits: u64) -> Self {
        bits & 1 == 1
    }
    fn bits(self) -> u64 {
        u64::from(self)
    }
}

/// An operand as written.
#[derive(Clone, Debug)]
pub(crate) enum Operand {
    Register(Register),
    Address(Address),
    Vector(Vec<Option<Register>>),
    Pair(Register, Register),
    Label(usize),
}

/// `[base + offset]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    pub(crate) base: Option<Register>,
    pub(crate) offset: i64,
}
