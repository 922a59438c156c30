//! Sums and gates.

use super::silu;
use crate::error::Result;
use candle_core::{DType, Tensor};

pub(crate) fn silu_product(gate_up: &Tensor) -> Result<Tensor> {
    let width = gate_up.dim(1)? / 2;
    let (gate, up) = (gate_up.narrow(1, 0, width)?, gate_up.narrow(1, width, width)?);
    let product = (silu(&gate.to_dtype(DType::F32)?)? * up.to_dtype(DType::F32)?)?;
    Ok(product.to_dtype(gate_up.dtype())?)
}

pub(crate) fn weighted_sum(x: &Tensor, a: f32, y: &Tensor, b: f32) -> Result<Tensor> {
    Ok(((x * f64::from(a))? + (y * f64::from(b))?)?)
}
