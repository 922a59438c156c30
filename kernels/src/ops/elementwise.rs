//! What stands between the products of a layer: sums and gates.

use super::check;
use crate::error::{KernelError, Result};
use candle_core::Tensor;

/// Checks the operand of a gated product.
pub(super) fn check_product(gate_up: &Tensor) -> Result<()> {
    let (_, both) = gate_up.dims2()?;
    if both % 2 == 0 {
        return Ok(());
    }
    let expected = "[rows, an even number]".to_owned();
    Err(KernelError::shape("silu_product", "gate_up", gate_up, expected))
}

/// Checks the operands of a sum.
pub(super) fn check_sum(x: &Tensor, y: &Tensor) -> Result<()> {
    let (rows, width) = x.dims2()?;
    check::rows("weighted_sum", "y", y, rows, width)
}
