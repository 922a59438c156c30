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
