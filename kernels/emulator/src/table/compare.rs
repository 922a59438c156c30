//! Comparisons.

use super::{Operands, Words};
use crate::float::flush;
use crate::op::{Op, Scalar, With};
use crate::types::{Bits, Operand, Type};
use std::cmp::Ordering;

/// `setp`.
pub(super) fn compare(words: &mut Words<'_>, operands: &Operands<'_>) -> Option<Op> {
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
