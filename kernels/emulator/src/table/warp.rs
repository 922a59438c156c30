//! Instructions of whole warps, and those that steer.

use super::{Operands, Words};
use crate::op::{HalfFloat, Op, Shuffle, Vote};
use crate::types::{Operand, Type};

/// Instructions that the lanes of a warp execute together, and those that steer.
pub(super) fn warp(words: &mut Words<'_>, operands: &Operands<'_>) -> Option<Op> {
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
