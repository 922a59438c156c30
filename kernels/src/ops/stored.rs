//! Products with matrices that stay as they are stored: what they refuse.

use crate::error::{KernelError, Result};
use crate::stored::StoredMatrix;
use candle_core::Tensor;

const OP: &str = "stored linear";

/// Checks the operands of a call.
pub(super) fn check(x: &Tensor, parts: &[StoredMatrix]) -> Result<()> {
    let (_, width) = x.dims2()?;
    if !x.device().is_cpu() {
        return Err(KernelError::Argument { op: OP, reason: "the rows are not on the CPU".to_owned() });
    }
    match parts.iter().find(|part| part.columns() != width) {
        None => Ok(()),
        Some(part) => {
            let (found, expected) = (x.dims().to_vec(), format!("[.., {}]", part.columns()));
            Err(KernelError::Shape { op: OP, operand: "x", found, expected })
        }
    }
}
