//! RMS normalisation, plain and gated.

use super::silu;
use crate::error::Result;
use crate::ops::norm::GateOrder;
use candle_core::{D, DType, Tensor};

pub(crate) fn rms_norm(x: &Tensor, weight: &Tensor, eps: f32) -> Result<Tensor> {
    let wide = x.to_dtype(DType::F32)?;
    let scale = (wide.sqr()?.mean_keepdim(D::Minus1)? + f64::from(eps))?.sqrt()?.recip()?;
    let normed = wide.broadcast_mul(&scale)?.broadcast_mul(&weight.to_dtype(DType::F32)?.flatten_all()?)?;
    Ok(normed.to_dtype(x.dtype())?)
}

pub(crate) fn gated_rms_norm(
    x: &Tensor,
    z: &Tensor,
    weight: &Tensor,
    eps: f32,
    group_size: usize,
    order: GateOrder,
) -> Result<Tensor> {
    let (rows, width) = x.dims2()?;
    let gate = silu(&z.to_dtype(DType::F32)?)?;
    let wide = x.to_dtype(DType::F32)?;
    let gated = match order {
        GateOrder::NormThenGate => wide,
        GateOrder::GateThenNorm | GateOrder::GateOnly => (wide * &gate)?,
    };
    let out = if order == GateOrder::GateOnly {
        gated
    } else {
        let groups = gated.reshape((rows, width / group_size, group_size))?;
        let scale = (groups.sqr()?.mean_keepdim(D::Minus1)? + f64::from(eps))?.sqrt()?.recip()?;
        let weight = weight.to_dtype(DType::F32)?.reshape(((), group_size))?;
        groups.broadcast_mul(&scale)?.broadcast_mul(&weight)?.reshape((rows, width))?
    };
    let out = match order {
        GateOrder::NormThenGate => (out * gate)?,
        GateOrder::GateThenNorm | GateOrder::GateOnly => out,
    };
    Ok(out.to_dtype(x.dtype())?)
}
