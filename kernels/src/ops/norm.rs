//! RMS normalisation, of rows and gated over groups: what it is told, and what it refuses.

use super::check;
use crate::error::{KernelError, Result};
use candle_core::{D, Tensor};

/// Divides rows by the root of their mean square, and multiplies them with a weight.
#[derive(Clone, Copy, Debug)]
pub struct RmsNorm<'a> {
    /// One factor per element of a row.
    pub weight: &'a Tensor,
    /// Added to the mean square.
    pub eps: f32,
}

/// Where the gate `silu(z)` stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateOrder {
    /// `rms(x * silu(z)) * w`: Mamba-2 and its hybrids.
    GateThenNorm,
    /// `rms(x) * w * silu(z)`: gated delta nets, Falcon-H1 with `mamba_norm_before_gate`.
    NormThenGate,
    /// `x * silu(z)`: Falcon-H1 without `mamba_rms_norm`; the weight is not used.
    GateOnly,
}

/// Checks the operands of a plain norm.
pub(super) fn check_plain(x: &Tensor, weight: &Tensor) -> Result<()> {
    check::vector("rms_norm", "weight", Some(weight), x.dim(D::Minus1)?)
}

/// Checks the operands of a gated norm.
pub(super) fn check_gated(x: &Tensor, z: &Tensor, weight: &Tensor, group_size: usize) -> Result<()> {
    const OP: &str = "gated_rms_norm";
    let (rows, width) = x.dims2()?;
    let expected = |operand, found: &Tensor, expected: String| Err(KernelError::shape(OP, operand, found, expected));
    if z.dims() != x.dims() {
        return expected("z", z, format!("[{rows}, {width}]"));
    }
    if weight.elem_count() != width && weight.elem_count() != group_size {
        return expected("weight", weight, format!("[{width}] or [{group_size}]"));
    }
    if group_size == 0 || !width.is_multiple_of(group_size) {
        return Err(KernelError::Argument {
            op: OP,
            reason: format!("rows of {width} cannot be cut into groups of {group_size}"),
        });
    }
    Ok(())
}
