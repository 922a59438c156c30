//! int8 in candle tensors, which have no such type: U8 tensors hold the same bits.

use crate::error::Result;
use candle_core::{DType, Tensor};

/// Rounds half to even and clamps to -128..=127, still as f32.
pub(super) fn round(x: &Tensor) -> Result<Tensor> {
    // Adding 1.5 * 2^23 leaves no fraction, by the rounding of f32 itself.
    const ROUND: f64 = 12_582_912.0;
    Ok(((x.clamp(-128.0, 127.0)? + ROUND)? - ROUND)?)
}

/// The bits of the nearest int8.
pub(super) fn encode(x: &Tensor) -> Result<Tensor> {
    let rounded = round(&x.to_dtype(DType::F32)?)?;
    Ok(rounded.lt(0.0)?.where_cond(&(&rounded + 256.0)?, &rounded)?.to_dtype(DType::U8)?)
}

/// The values of int8 bits, as f64.
pub(super) fn decode(bits: &Tensor) -> Result<Tensor> {
    let wide = bits.to_dtype(DType::F64)?;
    Ok(wide.ge(128.0)?.where_cond(&(&wide - 256.0)?, &wide)?)
}
