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
            return Err(KernelError::Index {
                op,
                operand,
                at,
                found: i64::from(row),
                expected: format!("expected less than {count}"),
            });
        }
    }
    Ok(())
}

/// Checks that `values` are what `rows` of the pool hold.
pub(super) fn check_values(pool: &Tensor, rows: &[u32], values: &Tensor) -> Result<()> {
    const OP: &str = "scatter_rows";
    let (_, row_elems) = pool.dims2()?;
    if values.dims() != [rows.len(), row_elems] {
        return Err(KernelError::Shape {
            op: OP,
            operand: "values",
            found: values.dims().to_vec(),
            expected: format!("[{}, {row_elems}]", rows.len()),
        });
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

/// Adds to `pairs` what a commit copies: for each sequence the snapshot of its last accepted token, and its slot.
pub(super) fn accepted(
    slots: &[i32],
    snapshots: &[i32],
    depth: usize,
    accepted: &[u32],
    pairs: &mut Vec<(u32, u32)>,
) -> Result<()> {
    const OP: &str = "commit_accepted";
    if snapshots.len() != slots.len() * depth || accepted.len() != slots.len() {
        let reason = format!(
            "{} snapshot slots and {} accepted lengths for {} sequences of depth {depth}",
            snapshots.len(),
            accepted.len(),
            slots.len()
        );
        return Err(KernelError::Argument { op: OP, reason });
    }
    for (sequence, (&slot, &accepted)) in slots.iter().zip(accepted).enumerate() {
        let Ok(slot) = u32::try_from(slot) else { continue };
        let Some(last) = (accepted as usize).checked_sub(1) else { continue };
        if last >= depth {
            return Err(KernelError::Index {
                op: OP,
                operand: "accepted",
                at: sequence,
                found: i64::from(accepted),
                expected: format!("expected at most the depth of {depth}"),
            });
        }
        let at = sequence * depth + last;
        let snapshot = u32::try_from(snapshots[at]).map_err(|_| KernelError::Index {
            op: OP,
            operand: "snapshots",
            at,
            found: i64::from(snapshots[at]),
            expected: "but its token was accepted: expected a slot".to_owned(),
        })?;
        pairs.push((snapshot, slot));
    }
    Ok(())
}
