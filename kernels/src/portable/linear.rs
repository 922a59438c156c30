//! Products with a weight.

use crate::error::Result;
use crate::ops::linear::shape;
use candle_core::Tensor;

pub(crate) fn linear(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let (shape, rows) = shape(x, weight)?;
    let weight = weight.to_dtype(x.dtype())?;
    Ok(x.reshape((rows, weight.dim(1)?))?.matmul(&weight.t()?)?.reshape(shape)?)
}
