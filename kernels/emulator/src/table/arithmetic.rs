//! Arithmetic on a lane's own registers.

use super::Words;
use crate::float::{Towards, flush, fma_towards};
use crate::op::Scalar;
use crate::types::{Bits, Type};
use half::f16;

/// The function, its number of operands, and whether the hardware only approximates it.
pub(super) fn arithmetic(words: &mut Words<'_>) -> Option<(Scalar, usize, bool)> {
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
        ("sub", Type::F16x2) if words.take("rn") => exact(scalar!(|a: u32, b: u32| subtract_halves(a, b)), 2),
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
        ("dp4a", Type::S32) if words.types == [Type::S32; 2] => {
            exact(scalar!(|a: u32, b: u32, c: u32| products_of_bytes(a, b, c)), 3)
        }
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

/// The sum of four products of signed bytes, and a third number.
fn products_of_bytes(a: u32, b: u32, c: u32) -> u32 {
    let pairs = a.to_le_bytes().into_iter().zip(b.to_le_bytes());
    let products = pairs.map(|(a, b)| i32::from(a.cast_signed()) * i32::from(b.cast_signed()));
    products.fold(c.cast_signed(), i32::wrapping_add).cast_unsigned()
}

/// Each half's difference, to nearest: an f32 has room for more than twice the digits, so that rounding twice is rounding once.
fn subtract_halves(a: u32, b: u32) -> u32 {
    let half = |shift: u32| {
        let [a, b] = [a, b].map(|pair| f16::from_bits((pair >> shift) as u16).to_f32());
        u32::from(f16::from_f32(a - b).to_bits()) << shift
    };
    half(0) | half(16)
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
