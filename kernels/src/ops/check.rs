//! Shape checks that every op makes before it touches a pool.

use crate::error::{KernelError, Result};
use candle_core::Tensor;

/// Checks that `tensor` has `rows` in its first dimension and `width` elements behind each.
pub(crate) fn rows(op: &'static str, operand: &'static str, tensor: &Tensor, rows: usize, width: usize) -> Result<()> {
    let found = match tensor.dims() {
        [] => None,
        [first, rest @ ..] => Some((*first, rest.iter().product::<usize>())),
    };
    if found == Some((rows, width)) {
        return Ok(());
    }
    Err(KernelError::shape(op, operand, tensor, format!("[{rows}, {width}], trailing dimensions split at will")))
}

/// Checks that rows of `tensor` are whole pieces of `width` elements, and returns how many.
pub(crate) fn pieces(op: &'static str, operand: &'static str, tensor: &Tensor, width: usize) -> Result<usize> {
    let row = tensor.dims().get(1..).map(|dims| dims.iter().product::<usize>());
    match row.filter(|row| row.is_multiple_of(width)).and_then(|row| row.checked_div(width)) {
        Some(pieces) => Ok(pieces),
        None => {
            let expected = format!("rows of a multiple of {width} elements");
            Err(KernelError::shape(op, operand, tensor, expected))
        }
    }
}

/// Checks that `tensor`, where given, has `len` elements in all.
pub(crate) fn vector(op: &'static str, operand: &'static str, tensor: Option<&Tensor>, len: usize) -> Result<()> {
    match tensor {
        Some(tensor) if tensor.elem_count() != len => {
            Err(KernelError::shape(op, operand, tensor, format!("{len} elements")))
        }
        _ => Ok(()),
    }
}

/// Checks that `members` can be shared out evenly to `groups`, and returns the members of one.
pub(crate) fn shared(op: &'static str, members: usize, member: &str, groups: usize, group: &str) -> Result<usize> {
    if groups != 0 && members.is_multiple_of(groups) && members != 0 {
        return Ok(members / groups);
    }
    Err(KernelError::Argument { op, reason: format!("{members} {member} cannot share {groups} {group} evenly") })
}
