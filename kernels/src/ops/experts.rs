//! Products of rows with the weights of the experts that they chose: what they are told, and what they refuse.

use super::check;
use crate::error::{KernelError, Result};
use candle_core::{DType, Tensor};

const OP: &str = "experts";

/// The operands of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpertProducts<'a> {
    /// `[rows, inputs]`, or `[rows * per_token, inputs]` with a row for each choice.
    pub(crate) x: &'a Tensor,
    /// `[experts, outputs, inputs]`.
    pub(crate) weight: &'a Tensor,
    /// `[experts, outputs]`.
    pub(crate) bias: Option<&'a Tensor>,
    /// `[rows, per_token]` of u32.
    pub(crate) chosen: &'a Tensor,
    /// `[rows, per_token]` in f32: what each choice counts in the sum that is wanted.
    pub(crate) shares: Option<&'a Tensor>,
}

impl ExpertProducts<'_> {
    /// Rows, choices of each, and choices that have a row of `x` in common.
    pub(crate) fn choices(&self) -> Result<[usize; 3]> {
        let (rows, per_token) = self.chosen.dims2()?;
        Ok([rows, per_token, if self.x.dim(0)? == rows { per_token } else { 1 }])
    }

    pub(super) fn check(&self) -> Result<()> {
        let Self { x, weight, bias, chosen, shares } = *self;
        let (experts, outputs, inputs) = weight.dims3()?;
        let (rows, per_token) = chosen.dims2()?;
        if x.dims() != [rows, inputs] && x.dims() != [rows * per_token, inputs] {
            let expected = format!("[{rows}, {inputs}] or [{}, {inputs}]", rows * per_token);
            return Err(KernelError::shape(OP, "x", x, expected));
        }
        if let Some(bias) = bias {
            check::rows(OP, "bias", bias, experts, outputs)?;
        }
        if let Some(shares) = shares {
            check::rows(OP, "shares", shares, rows, per_token)?;
        }
        match chosen.dtype() {
            DType::U32 => Ok(()),
            found => Err(KernelError::DType { op: OP, operand: "chosen", found, expected: "u32" }),
        }
    }
}

/// The numbers of chosen experts, all of which there are.
pub(crate) fn numbers(of: &ExpertProducts<'_>) -> Result<Vec<u32>> {
    let experts = of.weight.dim(0)?;
    let chosen = of.chosen.flatten_all()?.to_vec1::<u32>()?;
    match chosen.iter().position(|&expert| expert as usize >= experts) {
        None => Ok(chosen),
        Some(at) => Err(KernelError::index(OP, "chosen", at, chosen[at], format!("below {experts}"))),
    }
}
