//! Rotation by sliced products.

use crate::error::Result;
use crate::ops::rope::{RopeLayout, RopeTable};
use candle_core::{D, DType, Tensor};

pub(crate) fn apply(x: &Tensor, table: RopeTable<'_>) -> Result<Tensor> {
    let (tokens, heads, head_dim) = x.dims3()?;
    let half = table.half;
    let tensor = |values: &[f32]| Tensor::from_slice(values, (tokens, 1, half), x.device());
    let (cos, sin) = (tensor(&table.cos)?, tensor(&table.sin)?);
    let wide = x.to_dtype(DType::F32)?;
    let rotated = wide.narrow(2, 0, 2 * half)?;
    let (first, second) = match table.layout {
        RopeLayout::Neox => (rotated.narrow(2, 0, half)?, rotated.narrow(2, half, half)?),
        RopeLayout::Interleaved => {
            let pairs = rotated.contiguous()?.reshape((tokens, heads, half, 2))?;
            (pairs.narrow(3, 0, 1)?.squeeze(3)?, pairs.narrow(3, 1, 1)?.squeeze(3)?)
        }
    };
    let out_first = (first.broadcast_mul(&cos)? - second.broadcast_mul(&sin)?)?;
    let out_second = (second.broadcast_mul(&cos)? + first.broadcast_mul(&sin)?)?;
    let rotated = match table.layout {
        RopeLayout::Neox => Tensor::cat(&[out_first, out_second], D::Minus1)?,
        RopeLayout::Interleaved => Tensor::stack(&[out_first, out_second], 3)?.reshape((tokens, heads, 2 * half))?,
    };
    let passed = wide.narrow(2, 2 * half, head_dim - 2 * half)?;
    Ok(Tensor::cat(&[rotated, passed], D::Minus1)?.to_dtype(x.dtype())?)
}
