//! Conversions between types.

use super::Words;
use crate::float::{E4M3, E5M2, Fp8, flush};
use crate::op::Scalar;
use crate::types::{Bits, Type};
use half::{bf16, f16};

/// `cvt`: the first type is the result's.
pub(super) fn convert(words: &mut Words<'_>) -> Option<Scalar> {
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
