//! Whole rows of a pool: blocks of a KV pool, slots of a state pool. What is told to move them, and what is refused.

use crate::error::{KernelError, Result};
use candle_core::Tensor;

/// The rows of a pool `[rows, row_elems]` of any dtype, to be moved with their bits unchanged.
///
/// All layers of a block or slot are contiguous, so one copy moves a block of every layer or the whole state of a
/// sequence.
#[derive(Clone, Copy, Debug)]
pub struct PoolRows<'a>(pub &'a Tensor);

/// Checks that the pool has all `rows`.
pub(super) fn check(
    pool: &Tensor,
    op: &'static str,
    operand: &'static str,
    rows: impl Iterator<Item = u32>,
) -> Result<()> {
    let (count, _) = pool.dims2()?;
    for (at, row) in rows.enumerate() {
        if row as usize >= count {
            return Err(KernelError::index(op, operand, at, row, format!("expected less than {count}")));
        }
    }
    Ok(())
}

/// Checks that `values` are what `rows` of the pool hold.
pub(super) fn check_values(pool: &Tensor, rows: &[u32], values: &Tensor) -> Result<()> {
    const OP: &str = "scatter_rows";
    let (_, row_elems) = pool.dims2()?;
    if values.dims() != [rows.len(), row_elems] {
        return Err(KernelError::shape(OP, "values", values, format!("[{}, {row_elems}]", rows.len())));
    }
    if values.dtype() != pool.dtype() {
        return Err(KernelError::DType {
            op: OP,
            operand: "values",
            found: values.dtype(),
            expected: "the dtype of the pool",
        });
    }
    Ok(())
}
