//! Products with a weight: what they refuse.

use crate::error::{KernelError, Result};
use candle_core::Tensor;

/// Checks the operands of a call.
pub(super) fn check(x: &Tensor, weight: &Tensor) -> Result<()> {
    let (_, in_width) = weight.dims2()?;
    if x.dims().last() == Some(&in_width) {
        return Ok(());
    }
    let (found, expected) = (x.dims().to_vec(), format!("[.., {in_width}]"));
    Err(KernelError::Shape { op: "linear", operand: "x", found, expected })
}

/// The shape of a product, and the rows of `x`.
pub(crate) fn shape(x: &Tensor, weight: &Tensor) -> Result<(Vec<usize>, usize)> {
    let (out_width, in_width) = weight.dims2()?;
    let outer = x.dims().len() - 1;
    let rows = x.dims()[..outer].iter().product();
    debug_assert_eq!(x.dims()[outer], in_width);
    Ok(([&x.dims()[..outer], &[out_width]].concat(), rows))
}
