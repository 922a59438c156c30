//! Row moves as slices.

use crate::error::Result;
use candle_core::Tensor;

pub(crate) fn copy_rows(pool: &Tensor, pairs: &[(u32, u32)]) -> Result<()> {
    for &(from, to) in pairs {
        let row = pool.narrow(0, from as usize, 1)?.copy()?;
        pool.slice_set(&row, 0, to as usize)?;
    }
    Ok(())
}

pub(crate) fn zero_rows(pool: &Tensor, rows: &[u32]) -> Result<()> {
    let (_, width) = pool.dims2()?;
    let zeros = Tensor::zeros((1, width), pool.dtype(), pool.device())?;
    for &row in rows {
        pool.slice_set(&zeros, 0, row as usize)?;
    }
    Ok(())
}

pub(crate) fn gather_rows(pool: &Tensor, rows: &[u32]) -> Result<Tensor> {
    if rows.is_empty() {
        return Ok(pool.narrow(0, 0, 0)?.copy()?);
    }
    let parts = rows.iter().map(|&row| pool.narrow(0, row as usize, 1)).collect::<candle_core::Result<Vec<_>>>()?;
    // One part alone would come back as a view of the pool.
    Ok(match parts.as_slice() {
        [part] => part.copy()?,
        parts => Tensor::cat(parts, 0)?,
    })
}

pub(crate) fn scatter_rows(pool: &Tensor, rows: &[u32], values: &Tensor) -> Result<()> {
    let values = values.to_device(pool.device())?.contiguous()?;
    for (index, &row) in rows.iter().enumerate() {
        pool.slice_set(&values.narrow(0, index, 1)?, 0, row as usize)?;
    }
    Ok(())
}
