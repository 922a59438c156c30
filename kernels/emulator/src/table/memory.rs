//! Instructions that touch memory.

use super::{Operands, Words};
use crate::op::{Op, Scalar};
use crate::types::{Bits, Space, Type};

/// Loads, stores, atomics, asynchronous copies.
pub(super) fn memory(words: &mut Words<'_>, operands: &Operands<'_>) -> Option<Op> {
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
