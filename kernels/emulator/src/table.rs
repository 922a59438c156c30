//! The table of instructions: from an opcode with its modifiers and operands to what it does.
//!
//! An instruction that works on each lane for itself is a function from three registers to one. Every modifier must
//! be understood: one that is left over makes the instruction unknown.

#[macro_use]
mod scalar;

mod arithmetic;
mod compare;
mod convert;
mod memory;
#[cfg(test)]
mod tests;
mod warp;

pub(crate) use self::arithmetic::{SHARED_WINDOW, insert_bits};

use self::arithmetic::arithmetic;
use self::compare::compare;
use self::convert::convert;
use self::memory::memory;
use self::warp::warp;
use crate::kernel::Kernel;
use crate::op::{Op, Scalar};
use crate::types::{Address, Bits, Operand, Register, Type};

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
